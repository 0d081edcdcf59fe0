//! Some rows of a stored matrix, as a matrix of their own.

use std::ops::Range;

use crate::{Isa, KernelError, Matrix, Scales};

/// Memory for the numbers of a part's blocks, one list for the scales and one for the biases.
pub(crate) type Numbers = [Vec<f32>; 2];

impl Matrix<'_> {
    /// The rows after which a block and a byte end: a part starts at a multiple of it.
    pub(crate) fn seam(&self) -> usize {
        if self.n == 0 {
            return 1;
        }
        let bytes = 8 / gcd(8, self.k * self.codes.bits() as usize);
        // One block for all of them has no end.
        let block = if self.block / self.n.max(1) >= self.k { 1 } else { self.block / gcd(self.block, self.k) };
        block / gcd(block, bytes) * bytes
    }

    /// Some rows, from a multiple of the [`seam`](Self::seam) on, of a matrix that was checked. Its numbers are `f32`, and what
    /// lies behind the rows remains within reach.
    pub(crate) fn part<'s>(&'s self, isa: Isa, rows: Range<usize>, numbers: &'s mut Numbers) -> Matrix<'s> {
        let elements = rows.start * self.k..rows.end * self.k;
        let blocks = elements.start / self.block..elements.end.div_ceil(self.block);
        // One block for all rows that may come behind is whole rows, as the loops want to see it.
        let rows_without_end = usize::MAX - usize::MAX % self.k.max(1);
        let block = if self.block / self.n.max(1) >= self.k { rows_without_end } else { self.block };
        let [scales, biases] = numbers;
        Matrix {
            n: rows.len(),
            k: self.k,
            codes: self.codes.part(elements.start * self.codes.bits() as usize / 8..self.codes.bytes().len()),
            scales: self.scales.part(isa, &blocks, scales),
            biases: self.biases.as_ref().map(|given| given.part(isa, &blocks, biases)),
            block,
        }
    }

    /// Whether the matrix is `groups` matrices of as many rows, each of which is a part.
    ///
    /// # Errors
    /// Its rows do not divide, or a block or a byte belongs to two of them.
    pub(crate) fn check_groups(&self, rows: usize) -> Result<(), KernelError> {
        let whole = rows > 0 && self.n.is_multiple_of(rows);
        if whole && (self.n == rows || rows.is_multiple_of(self.seam())) || self.n == 0 {
            return Ok(());
        }
        Err(KernelError::Groups { n: self.n, rows, seam: self.seam() })
    }
}

impl<'a> Scales<'a> {
    /// The numbers of some blocks as `f32`, and those behind them if they are `f32` already.
    fn part<'s>(&self, isa: Isa, blocks: &Range<usize>, widened: &'s mut Vec<f32>) -> Scales<'s>
    where
        'a: 's,
    {
        if let Self::One = self {
            return Scales::One;
        }
        if let Some(values) = self.floats() {
            return Scales::F32(&values[blocks.start..]);
        }
        widened.resize(blocks.len(), 0.0);
        self.widen(isa, blocks.start, widened);
        Scales::F32(widened)
    }
}

/// The greatest number that divides both, and 1 where both are 0.
///
/// ```
/// assert_eq!((tacit_kernels::gcd(96, 64), tacit_kernels::gcd(0, 0)), (32, 1));
/// ```
#[must_use]
pub fn gcd(mut a: usize, mut b: usize) -> usize {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Codes, scales::Spread};

    /// Otherwise each vector would have its scale copied out, and an attention over half floats took twice as long.
    #[test]
    fn rows_of_a_part_without_scales_have_one_number() {
        let codes = vec![half::f16::ONE; 6 * 96];
        for k in [2, 3, 64, 96] {
            let (n, codes) = (codes.len() / k, Codes::F16 { codes: &codes });
            let whole = Matrix { n, k, codes, scales: Scales::One, biases: None, block: n * k };
            let mut numbers = Numbers::default();
            let part = whole.part(Isa::detect(), 0..n / 2, &mut numbers);
            let spread = Spread::new(&part, 1, 1).expect("a span is an element");
            assert_eq!(spread.count(&(0..k)), 1, "{k}");
        }
    }
}
