//! The operands of the op surface: fixed values from one low-discrepancy sequence.

use mlx_rs::{Array, complex64};

/// Draws operands whose values are spread and distinct over all operands of an op.
///
/// Where not said otherwise the argument of a method is the shape.
#[derive(Default)]
pub(super) struct Draw {
    drawn: u32,
}

impl Draw {
    /// `0.1 < x < 0.9`.
    pub(super) fn positive(&mut self, shape: &[i32]) -> Array {
        let values = self.values(shape, Self::fraction);
        Array::from_slice(&values, shape)
    }

    /// `0.1 < |x| < 0.9`, about a third of them negative.
    pub(super) fn signed(&mut self, shape: &[i32]) -> Array {
        let values = self.values(shape, Self::signed_fraction);
        Array::from_slice(&values, shape)
    }

    /// `0.4 < |x| < 3.6`, about a third of them negative.
    pub(super) fn wide(&mut self, shape: &[i32]) -> Array {
        let values = self.values(shape, |draw| 4.0 * draw.signed_fraction());
        Array::from_slice(&values, shape)
    }

    /// `1.1 < x < 1.9`.
    pub(super) fn above_one(&mut self, shape: &[i32]) -> Array {
        let values = self.values(shape, |draw| 1.0 + draw.fraction());
        Array::from_slice(&values, shape)
    }

    /// Complex numbers with signed parts.
    pub(super) fn complex(&mut self, shape: &[i32]) -> Array {
        let values = self.values(shape, |draw| complex64::new(draw.signed_fraction(), draw.signed_fraction()));
        Array::from_slice(&values, shape)
    }

    /// Rows whose values increase along the last axis.
    pub(super) fn sorted(&mut self, shape: &[i32]) -> Array {
        let mut values = self.values(shape, Self::signed_fraction);
        values.sort_by(f32::total_cmp);
        Array::from_slice(&values, shape)
    }

    /// Finite values among NaN and infinities; `shape` is `[6]`.
    pub(super) fn special(&mut self, shape: &[i32]) -> Array {
        let finite = self.fraction();
        Array::from_slice(&[finite, f32::NAN, f32::INFINITY, -finite, f32::NEG_INFINITY, 0.0], shape)
    }

    /// Integers `0` to `4`, with repetitions.
    pub(super) fn integers(&mut self, shape: &[i32]) -> Array {
        let values = self.values(shape, |draw| (draw.fraction() * 5.0) as i32);
        Array::from_slice(&values, shape)
    }

    /// Truth values, both kinds.
    pub(super) fn flags(&mut self, shape: &[i32]) -> Array {
        let values = self.values(shape, |draw| draw.fraction() < 0.5);
        Array::from_slice(&values, shape)
    }

    /// The given integers as a vector: indices, offsets.
    pub(super) fn list(&mut self, values: &[i32]) -> Array {
        self.drawn += 1;
        Array::from_slice(values, &[values.len() as i32])
    }

    /// Integers below the first value in an array whose shape is the rest; those of a row are distinct.
    pub(super) fn permutations(&mut self, bound_and_shape: &[i32]) -> Array {
        self.drawn += 1;
        let (bound, shape) = (bound_and_shape[0], &bound_and_shape[1..]);
        let columns = *shape.last().unwrap_or(&1);
        let values: Vec<i32> =
            (0..shape.iter().product()).map(|i: i32| (i % columns * (bound - 1) + i / columns) % bound).collect();
        Array::from_slice(&values, shape)
    }

    /// The given boundaries as a matrix of ranges, one in a row.
    pub(super) fn segments(&mut self, boundaries: &[i32]) -> Array {
        self.drawn += 1;
        let ranges: Vec<u32> = boundaries.windows(2).flatten().map(|&bound| bound as u32).collect();
        Array::from_slice(&ranges, &[boundaries.len() as i32 - 1, 2])
    }

    /// A well-conditioned square matrix of the given order.
    pub(super) fn square(&mut self, order: &[i32]) -> Array {
        self.matrix(order[0], Self::entry)
    }

    /// A symmetric positive definite matrix of the given order, with distinct eigenvalues.
    pub(super) fn spd(&mut self, order: &[i32]) -> Array {
        let n = order[0] as usize;
        let half: Vec<f32> = (0..n * n).map(|i| self.entry(i / n, i % n)).collect();
        self.matrix(order[0], |_, row, column| half[row * n + column] + half[column * n + row])
    }

    /// A lower triangular matrix of the given order with a positive diagonal.
    pub(super) fn lower(&mut self, order: &[i32]) -> Array {
        self.matrix(order[0], |draw, row, column| if column > row { 0.0 } else { draw.entry(row, column) })
    }

    /// Four-bit codes, eight in a word; `shape` counts the codes.
    pub(super) fn packed(&mut self, shape: &[i32]) -> Array {
        let mut words = shape.to_vec();
        if let Some(last) = words.last_mut() {
            *last /= 8;
        }
        let values =
            self.values(&words, |draw| (0..8).fold(0_u32, |word, _| word << 4 | (draw.fraction() * 16.0) as u32));
        Array::from_slice(&values, &words)
    }

    /// Bytes around the exponent of one, as block scales.
    pub(super) fn scale_bytes(&mut self, shape: &[i32]) -> Array {
        let values = self.values(shape, |draw| 48 + (draw.fraction() * 16.0) as u8);
        Array::from_slice(&values, shape)
    }

    /// A key of the random number generator, from a seed.
    pub(super) fn key(&mut self, seed: &[i32]) -> Array {
        self.drawn += 1;
        Array::from_slice(&[0, seed[0] as u32], &[2])
    }

    /// The next value of the golden ratio's sequence, between 0.1 and 0.9.
    fn fraction(&mut self) -> f32 {
        self.drawn += 1;
        let step = (5_f64.sqrt() - 1.0) / 2.0;
        (0.1 + 0.8 * (f64::from(self.drawn) * step).fract()) as f32
    }

    fn signed_fraction(&mut self) -> f32 {
        let negative = self.drawn % 3 == 1;
        let value = self.fraction();
        if negative { -value } else { value }
    }

    /// An entry of a diagonally dominant matrix.
    fn entry(&mut self, row: usize, column: usize) -> f32 {
        let value = 0.3 * self.signed_fraction();
        if row == column { value + 1.0 + row as f32 } else { value }
    }

    fn matrix(&mut self, order: i32, mut entry: impl FnMut(&mut Self, usize, usize) -> f32) -> Array {
        let n = order as usize;
        let values: Vec<f32> = (0..n * n).map(|i| entry(self, i / n, i % n)).collect();
        Array::from_slice(&values, &[order, order])
    }

    fn values<T>(&mut self, shape: &[i32], mut value: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..shape.iter().product()).map(|_: i32| value(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Draw;

    #[test]
    fn drawn_values_keep_away_from_kinks_and_from_each_other() {
        let mut draw = Draw::default();
        let mut values = draw.values(&[96], Draw::signed_fraction);
        for value in &values[..24] {
            // Wide operands are four times as large: these are their halves.
            let kink = (value * 8.0).round() / 8.0;
            assert!((value - kink).abs() > 2e-3, "{value} is close to {kink}");
        }
        values.sort_by(f32::total_cmp);
        assert!(values.windows(2).all(|pair| pair[1] - pair[0] > 2e-3));
    }
}
