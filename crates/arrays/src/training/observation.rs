//! What was observed of a weight's inputs, as sums.

use mlx_rs::{Array, Dtype, ops, transforms};
use tacit_core::extra_ops::dynamic_slice_update;
use tacit_core::{Aval, Error, Result};

use crate::avals::checks::check_float;

/// Sums over the rows `x` that a weight was multiplied with: `x^T x`, the magnitudes, and how many rows there were.
///
/// [`Observed`](crate::Observed) makes one while plain code runs, and [`from_inputs`](Self::from_inputs) makes one of activations
/// that are at hand. A stack of matrices, such as the experts of a mixture, has these sums for each of them. One of
/// [`Observed::of_squares`](crate::Observed::of_squares) has of `x^T x` the diagonal alone.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_arrays::Observation;
///
/// let seen = Observation::from_inputs(&Array::from_slice(&[1f32, 2.0, 3.0, -4.0], &[2, 2]))?;
/// assert_eq!(seen.gram()?.as_slice::<f32>(), [10.0, -10.0, -10.0, 20.0]);
/// assert_eq!(seen.mean_magnitudes()?.as_slice::<f32>(), [2.0, 3.0]);
/// assert_eq!(seen.mean_squares()?.try_as_slice::<f32>()?, [5.0, 10.0]);
/// assert_eq!(seen.rows(), [2]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Observation {
    /// `x^T x`: `f32[k, k]`, or `f32[e, k, k]` of a stack. Or its diagonal: `f32[k]`, or `f32[e, k]`.
    products: Array,
    /// `f32[k]`, or `f32[e, k]`.
    magnitudes: Array,
    /// One number, or one for each matrix of a stack.
    rows: Vec<u64>,
}

/// What is summed of rows, beside their magnitudes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Recorded {
    /// Products of each two inputs.
    Products,
    /// Squares of each input.
    Squares,
}

impl Recorded {
    /// The sums over the last axis but one of `x: f32[n, k]` or `f32[e, n, k]`.
    fn sums(self, x: &Array) -> Result<Array> {
        Ok(match self {
            Self::Products => x.swap_axes(-1, -2)?.matmul(x)?,
            Self::Squares => x.square()?.sum_axis(-2, None)?,
        })
    }

    fn shape(self, k: i32) -> Vec<i32> {
        match self {
            Self::Products => vec![k, k],
            Self::Squares => vec![k],
        }
    }
}

impl Observation {
    /// The sums over `x: [.., k]`, computed.
    ///
    /// # Errors
    ///
    /// `x` is not float, is empty, or has an element that is not finite.
    pub fn from_inputs(x: &Array) -> Result<Self> {
        let aval = Aval::from(x);
        check_float("an activation", &aval)?;
        let &[.., k] = x.shape() else {
            return Err(Error::invalid(
                format!("the activations are {aval}, which has no axis of inputs"),
                "give activations with the inputs along the last axis",
            ));
        };
        Self::summed(&x.reshape(&[-1, k])?, Recorded::Products)?.finite()
    }

    /// The sums over the last axis but one of `x: [n, k]` or `[e, n, k]`, computed.
    pub(super) fn summed(x: &Array, recorded: Recorded) -> Result<Self> {
        let x = x.as_dtype(Dtype::Float32)?;
        let (products, magnitudes) = (recorded.sums(&x)?, x.abs()?.sum_axis(-2, None)?);
        transforms::eval([&products, &magnitudes])?;
        let count = if x.ndim() == 3 { x.dim(0) } else { 1 };
        Ok(Self { products, magnitudes, rows: vec![x.dim(-2) as u64; count as usize] })
    }

    /// The sums of each of `experts` over the rows of `x: [n, k]` whose entry in `indices: [n]` is its number, computed.
    pub(super) fn summed_by(x: &Array, indices: &Array, experts: i32, recorded: Recorded) -> Result<Self> {
        let (x, k) = (x.as_dtype(Dtype::Float32)?, x.dim(-1));
        let indices = indices.as_dtype(Dtype::Int64)?.contiguous()?;
        let indices = if indices.size() == 0 { &[][..] } else { indices.try_as_slice::<i64>()? };
        let mut products = ops::zeros::<f32>(&[&[experts][..], &recorded.shape(k)[..]].concat())?;
        transforms::eval([&products])?;
        let (mut magnitudes, mut rows) = (Vec::new(), Vec::new());
        for (expert, places) in places(indices, experts as usize).into_iter().enumerate() {
            rows.push(places.len() as u64);
            if places.is_empty() {
                magnitudes.push(ops::zeros::<f32>(&[k])?);
                continue;
            }
            // Its own rows alone: all experts together multiply each row once, and a NaN of another one does not show.
            let rows = x.take_axis(Array::from_slice(&places, &[places.len() as i32]), 0)?;
            magnitudes.push(rows.abs()?.sum_axis(0, None)?);
            let (sums, at) = (recorded.sums(&rows)?.expand_dims(0)?, Array::from_slice(&[expert as i32], &[1]));
            products = dynamic_slice_update(&products, &sums, &at, &[0])?;
            drop(sums);
            // The sums of all are nobody else's, so each is written where it belongs.
            transforms::eval([&products])?;
        }
        let magnitudes = ops::stack(&magnitudes, 0)?;
        transforms::eval([&magnitudes])?;
        Ok(Self { products, magnitudes, rows })
    }

    /// The sums over the rows of both, computed, such as those of two batches.
    ///
    /// # Errors
    ///
    /// The two are of inputs of different shapes, or of one the squares alone.
    pub fn plus(&self, other: &Self) -> Result<Self> {
        // Squares of a stack may have the shape of the products of one matrix.
        let shapes = |seen: &Self| [seen.products.shape().to_vec(), seen.magnitudes.shape().to_vec()];
        if shapes(self) != shapes(other) {
            return Err(Error::invalid(
                format!("{} and {} are of different inputs", self.summary(), other.summary()),
                "add what was seen of one weight",
            ));
        }
        self.clone().and(other.clone())
    }

    /// The sums over the rows of both, of the same shapes, computed where those of one of them lie that nobody else holds.
    pub(super) fn and(self, other: Self) -> Result<Self> {
        let (products, magnitudes) = (self.products.add(&other.products)?, self.magnitudes.add(&other.magnitudes)?);
        let rows = self.rows.iter().zip(&other.rows).map(|(own, other)| own + other).collect();
        drop((self, other));
        transforms::eval([&products, &magnitudes])?;
        Ok(Self { products, magnitudes, rows })
    }

    /// The sums over the rows of all ranks of a group, computed: `all_sum` adds an array up over them.
    ///
    /// Each rank calls it, with what it saw of the same weight.
    ///
    /// # Errors
    ///
    /// An array cannot be added up, or sums are beyond `f32`.
    pub fn over_ranks(&self, mut all_sum: impl FnMut(&Array) -> Result<Array>) -> Result<Self> {
        let rows: Vec<i64> = self.rows.iter().map(|&rows| rows as i64).collect();
        let rows = all_sum(&Array::from_slice(&rows, &[rows.len() as i32]))?;
        let (products, magnitudes) = (all_sum(&self.products)?, all_sum(&self.magnitudes)?);
        transforms::eval([&products, &magnitudes, &rows])?;
        let rows = rows.try_as_slice::<i64>()?.iter().map(|&rows| rows as u64).collect();
        Self { products, magnitudes, rows }.finite()
    }

    /// The same, but a matrix that met no rows, such as an expert that nothing chose, counts as if it had met each of its inputs
    /// alone, and very small: codes that are chosen for it by itself are those of rounding, and what is chosen for a whole stack is
    /// chosen by the others.
    ///
    /// # Errors
    ///
    /// MLX refuses an op.
    pub fn rounding_unmet(&self) -> Result<Self> {
        if !self.rows.contains(&0) {
            return Ok(self.clone());
        }
        let k = self.products.dim(-1);
        let met = self.rows.iter().filter(|&&rows| rows > 0).count() as f32;
        let squares = self.squares()?.sum(None)?.item_exact::<f32>();
        // A millionth of the mean square sum of the others, if they are there and have one.
        let hardly = 1e-6 * squares / (met * k as f32);
        let hardly = if hardly.is_normal() { hardly } else { 1.0 };
        let unmet: Vec<f32> = self.rows.iter().map(|&rows| if rows == 0 { hardly } else { 0.0 }).collect();
        // `[1]`, or `[e, 1]` of a stack.
        let unmet = Array::from_slice(&unmet, &[unmet.len() as i32, 1][..self.magnitudes.ndim()]);
        let products = if self.has_squares_alone() {
            self.products.add(unmet)?
        } else {
            self.products.add(ops::eye::<f32>(k, None, None)?.multiply(unmet.expand_dims(-1)?)?)?
        };
        transforms::eval([&products])?;
        let rows = self.rows.iter().map(|&rows| rows.max(1)).collect();
        Ok(Self { products, magnitudes: self.magnitudes.clone(), rows })
    }

    /// `x^T x` summed over all rows: `f32[k, k]`, or `f32[e, k, k]` of a stack.
    ///
    /// # Errors
    ///
    /// Squares alone were recorded.
    pub fn gram(&self) -> Result<&Array> {
        if self.has_squares_alone() {
            return Err(Error::invalid(
                format!("of what was seen only the {} were recorded", self.summary()),
                "observe the weight by `Observed::new`, or the model by `Model::observe`",
            ));
        }
        Ok(&self.products)
    }

    /// How many rows there were: one number, or one for each matrix of a stack.
    #[must_use]
    pub fn rows(&self) -> &[u64] {
        &self.rows
    }

    /// The mean magnitude of each input: `f32[k]`, of a stack over the rows of all its matrices.
    ///
    /// # Errors
    ///
    /// MLX refuses an op.
    pub fn mean_magnitudes(&self) -> Result<Array> {
        self.mean(&self.magnitudes)
    }

    /// The mean square of each input: `f32[k]`, of a stack over the rows of all its matrices.
    ///
    /// # Errors
    ///
    /// MLX refuses an op.
    pub fn mean_squares(&self) -> Result<Array> {
        self.mean(&self.squares()?)
    }

    /// Sums of the squares of each input: `f32[k]`, or `f32[e, k]` of a stack.
    pub(super) fn squares(&self) -> Result<Array> {
        if self.has_squares_alone() {
            return Ok(self.products.clone());
        }
        let axis = self.products.ndim() as i32;
        Ok(self.products.diagonal(None, Some(axis - 2), Some(axis - 1))?)
    }

    fn has_squares_alone(&self) -> bool {
        self.products.ndim() == self.magnitudes.ndim()
    }

    /// `products f32[k,k]` or `squares f32[k]`.
    fn summary(&self) -> String {
        let recorded = if self.has_squares_alone() { "squares" } else { "products" };
        format!("{recorded} {}", Aval::from(&self.products))
    }

    /// Sums of each input over all rows: `f32[k]`, or `f32[e, k]` of a stack.
    fn mean(&self, sums: &Array) -> Result<Array> {
        let rows = self.rows.iter().sum::<u64>().max(1) as f32;
        let sums = if sums.ndim() == 2 { sums.sum_axis(0, None)? } else { sums.clone() };
        Ok(sums.divide(Array::from_f32(rows))?)
    }

    pub(super) fn finite(self) -> Result<Self> {
        if self.products.is_finite()?.all(None)?.item_exact::<bool>() {
            return Ok(self);
        }
        Err(Error::invalid(
            "the activations have an element that is NaN or infinite, or squares whose sum is beyond f32",
            "look for the input that makes it, such as a position that is masked whole",
        ))
    }
}

/// Where in `indices` the number of each of so many experts stands. A number that is no expert's is left out.
fn places(indices: &[i64], experts: usize) -> Vec<Vec<u32>> {
    let mut places = vec![Vec::new(); experts];
    for (place, &expert) in indices.iter().enumerate() {
        if let Some(rows) = usize::try_from(expert).ok().and_then(|expert| places.get_mut(expert)) {
            rows.push(place as u32);
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use mlx_rs::ops::indexing::TryIndexOp;

    use super::*;

    #[test]
    fn each_row_is_multiplied_for_one_expert() {
        assert_eq!(places(&[2, 0, 2, 3, 0], 4), [&[1, 4][..], &[], &[0, 2], &[3]]);
        // What no expert has is left out, as a product has no such matrix.
        assert_eq!(places(&[-1, 1, 4, 0], 2), [[3], [1]]);
        let indices: Vec<i64> = (0..1000).map(|row| row * row % 128).collect();
        assert_eq!(places(&indices, 128).iter().map(Vec::len).sum::<usize>(), indices.len());
    }

    #[test]
    fn the_sums_of_an_expert_are_those_of_its_rows() -> Result<()> {
        let x = Array::from_slice(&[1f32, 2.0, f32::NAN, 4.0, 5.0, 6.0], &[3, 2]);
        let indices = Array::from_slice(&[2u32, 1, 2], &[3]);
        let found = Observation::summed_by(&x, &indices, 3, Recorded::Products)?;
        assert_eq!(found.rows, [0, 1, 2]);
        let gram = found.products.try_as_slice::<f32>()?;
        assert_eq!((&gram[..4], &gram[8..]), (&[0.0; 4][..], &[26.0, 32.0, 32.0, 40.0][..]));
        assert_eq!(found.magnitudes.try_as_slice::<f32>()?[4..], [6.0, 8.0]);
        let squares = Observation::summed_by(&x, &indices, 3, Recorded::Squares)?;
        let sums = squares.products.try_as_slice::<f32>()?;
        assert_eq!((&sums[..2], &sums[4..]), (&[0.0; 2][..], &[26.0, 40.0][..]));
        let none = Observation::summed_by(&x.try_index(..0)?, &indices.try_index(..0)?, 2, Recorded::Products)?;
        assert_eq!((none.rows, none.products.shape()), (vec![0, 0], &[2, 2, 2][..]));
        Ok(())
    }
}
