//! Scales for which the largest inputs lose least.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::{Error, Result, Value};

use crate::format::{AnyFormat, FloatScales};
use crate::training::calibration::best::Best;
use crate::training::calibration::calibrate::{Calibrate, matrices_and_squares};
use crate::training::calibration::coder::{Coder, Scaled};
use crate::training::calibration::refit::refitted;
use crate::training::observation::Observation;

/// A search for the scale of each block, in which the error of an element counts by the mean square of its input.
///
/// Multiples of the format's own scales are tried, and then least squares for the codes of the best of them. This is what llama.cpp
/// does by an importance matrix: of `x^T x` it looks at the diagonal alone, so that [`Observed::of_squares`](crate::Observed::of_squares)
/// records enough. [`Gptq`](crate::Gptq) looks at all of it, and loses less.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, random};
/// use tacit_arrays::format::{Affine, AnyFormat};
/// use tacit_arrays::{Calibrate, Observation, WeightedSearch};
///
/// let normal = |seed, shape: &[i32]| random::normal::<f32>(shape, None, None, &random::key(seed)?);
/// // Every sixteenth input is large.
/// let sizes = Array::from_iter((0..128).map(|i| if i % 16 == 0 { 20f32 } else { 1.0 }), &[128]);
/// let (x, w) = (normal(0, &[64, 128])?.multiply(sizes)?, normal(1, &[32, 128])?);
/// let format = AnyFormat::from(Affine { bits: 3, group: 64 });
/// let error = |codes: tacit_core::Value| -> tacit_core::Result<f32> {
///     Ok(x.matmul(w.subtract(codes.dense()?)?.t())?.square()?.sum(None)?.item_exact::<f32>())
/// };
/// let found = error(WeightedSearch.quantize(&format, &w, &Observation::from_inputs(&x)?)?)?;
/// assert!(found < 0.6 * error(format.quantize(&w)?)?);
/// # Ok(())
/// # }
/// ```
///
/// Scales that are quantized themselves are rounded after the search. A format whose scales may not be any floats is an error, as is
/// `mxfp4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightedSearch;

/// Where the search looks, as multiples of the format's own scales.
const MULTIPLES: std::ops::RangeInclusive<u8> = 12..=22;

/// Their unit.
const UNIT: f32 = 0.05;

/// How often scales are fitted to the codes, and codes chosen by the scales.
const FITS: usize = 2;

impl Calibrate for WeightedSearch {
    fn quantize(&self, format: &AnyFormat, weight: &Array, seen: &Observation) -> Result<Value> {
        let (stack, squares) = matrices_and_squares(weight, seen)?;
        let coder = match Coder::new("the weighted search", format, weight)? {
            Coder::Scaled(coder) if coder.has_free_scales() => coder,
            _ => {
                return Err(Error::invalid(
                    format!("the scales of {format} are not searched: each block has none that may be any float"),
                    "take a format such as affine:4:64 or nf4:64, or the method `Gptq`",
                ));
            }
        };
        let (mut numbers, mut scales) = (Vec::new(), Vec::new());
        for matrix in 0..stack.dim(0) {
            let of_matrix = |array: &Array| array.take_axis(Array::from_int(matrix), 0);
            let (w, squares) = (of_matrix(&stack)?.as_dtype(Dtype::Float32)?, of_matrix(&squares)?);
            let own = coder.fixed_scales(matrix, [w.dim(0), w.dim(1)])?;
            let best = Search { coder: &coder, w, squares }.run(&own)?;
            numbers.push(best.numbers);
            scales.push(best.scales);
        }
        let nested = coder.is_nested();
        let coder = coder.with_scales(&scales)?;
        if nested {
            // Scales are rounded together.
            numbers = vec![stack.as_dtype(Dtype::Float32)?];
        }
        coder.put_together(&numbers)
    }
}

/// One matrix: `w: f32[n, k]`, and the sums of squares of its inputs, `f32[k]`.
pub(super) struct Search<'s> {
    pub(super) coder: &'s Scaled,
    pub(super) w: Array,
    pub(super) squares: Array,
}

impl Search<'_> {
    /// The best from the format's own scales on.
    pub(super) fn run(&self, own: &FloatScales) -> Result<Best> {
        let numbers = self.coder.read(&self.w, own)?;
        let mut best = Best { lost: self.lost(&numbers)?, numbers, scales: own.clone() };
        for multiple in MULTIPLES {
            let factor = Array::from_f32(UNIT * f32::from(multiple));
            let scales = own.mapped(|numbers| Ok(numbers.multiply(factor.as_dtype(numbers.dtype())?)?))?;
            let numbers = self.coder.read(&self.w, &scales)?;
            best.keep(&numbers, &scales, &self.lost(&numbers)?)?;
        }
        let diagonal = ops::diag(&self.squares, None)?;
        for _ in 0..FITS {
            let (scales, numbers) = refitted(&self.w, &best.numbers, &best.scales, &diagonal)?;
            // The same codes, and then those that are nearest by the new scales.
            let again = self.coder.read(&self.w, &scales)?;
            let reread = self.coder.read(&numbers, &scales)?;
            best.keep(&reread, &scales, &self.lost(&reread)?)?;
            best.keep(&again, &scales, &self.lost(&again)?)?;
        }
        Ok(best)
    }

    /// What each block loses, `[n, groups]`.
    fn lost(&self, numbers: &Array) -> Result<Array> {
        let lost = self.w.subtract(numbers)?.square()?.multiply(&self.squares)?;
        Ok(lost.reshape(&[self.w.dim(0), -1, self.coder.group])?.sum_axis(2, false)?)
    }
}
