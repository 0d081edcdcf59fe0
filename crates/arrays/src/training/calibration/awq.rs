//! AWQ: large inputs get finer codes.

use mlx_rs::{Array, Dtype, ops, transforms};
use tacit_core::{Error, Result, Value, tree};

use crate::families::packed::Packed;
use crate::format::AnyFormat;
use crate::training::calibration::calibrate::{Calibrate, errors, matrices, not_finite};
use crate::training::calibration::coder::dense;
use crate::training::observation::Observation;
use crate::views::scaled_channels::ScaledChannels;

/// The method AWQ (Lin et al., 2023): the codes are those of the weight with scaled inputs, `W diag(s)`, and products divide
/// the inputs by `s`.
///
/// `s` is a power of the mean magnitude of each input, `s = mean|x|^a`, with its geometric middle at 1; of so many `a` from 0
/// to 1 the one counts whose layer error `tr((W - Q) x^T x (W - Q)^T)` is the least. The division is kept beside the codes,
/// as [`ScaledChannels`], `k` floats for a weight of `[n, k]`: so it is exact in any model, and nothing of a model's graph need
/// be known. Where the plain codes are the best, they are the result.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops, random};
/// use tacit_arrays::format::Affine;
/// use tacit_arrays::{Awq, Calibrate, Observation};
///
/// let normal = |seed, shape: &[i32]| random::normal::<f32>(shape, None, None, &random::key(seed)?);
/// // Every sixteenth input is large.
/// let sizes = Array::from_iter((0..128).map(|i| if i % 16 == 0 { 20f32 } else { 1.0 }), &[128]);
/// let (x, w) = (normal(0, &[64, 128])?.multiply(sizes)?, normal(1, &[32, 128])?);
/// let codes = Awq::default().quantize(&Affine { bits: 3, group: 64 }.into(), &w, &Observation::from_inputs(&x)?)?;
/// assert_eq!(codes.to_string(), "ScaledChannels(f32[32,128])");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awq {
    steps: u32,
}

impl Default for Awq {
    /// Twenty exponents, as the authors' code has.
    fn default() -> Self {
        Self { steps: 20 }
    }
}

impl Awq {
    /// A search among so many exponents besides 0.
    ///
    /// # Errors
    ///
    /// There are none, or more than 1000.
    pub fn new(steps: u32) -> Result<Self> {
        if !(1..=1000).contains(&steps) {
            return Err(Error::invalid(
                format!("{steps} exponents are not searched"),
                "search among 20, the usual choice, and at most 1000",
            ));
        }
        Ok(Self { steps })
    }
}

impl Calibrate for Awq {
    fn quantize(&self, format: &AnyFormat, weight: &Array, seen: &Observation) -> Result<Value> {
        let (stack, grams) = matrices(weight, seen)?;
        let wide = stack.as_dtype(Dtype::Float32)?;
        let plain = format.quantize(weight)?;
        if plain.family::<dyn Packed>().is_some_and(|packed| packed.stored().scales.is_none()) {
            return Err(Error::invalid(
                format!("the format {format} has no scales, and codes an input alike however that is scaled"),
                "take a format with scales, such as affine:4:64, or quantize without AWQ",
            ));
        }
        let magnitudes = seen.mean_magnitudes()?;
        let error = |value: &Value, factors: Option<&Array>| -> Result<f32> {
            let codes = dense(value)?.reshape(wide.shape())?;
            let stands_for = factors.map_or(Ok(codes.clone()), |factors| codes.multiply(factors))?;
            let lost = wide.subtract(stands_for)?;
            let sum = errors(&lost, &grams)?.sum(None)?;
            transforms::eval([&sum])?;
            Ok(sum.item_exact::<f32>())
        };
        let mut best = (error(&plain, None)?, plain, None);
        for step in 1..=self.steps {
            let scales = scales(&magnitudes, step as f32 / self.steps as f32)?;
            let scaled = weight.as_dtype(Dtype::Float32)?.multiply(&scales)?.as_dtype(weight.dtype())?;
            // A half float may not bear the scale of its input.
            if !scaled.is_finite()?.all(None)?.item_exact::<bool>() {
                continue;
            }
            let (value, factors) = (format.quantize(&scaled)?, scales.reciprocal()?);
            let loss = error(&value, Some(&factors))?;
            if loss < best.0 {
                best = (loss, value, Some(factors));
            }
        }
        if !best.0.is_finite() {
            return Err(not_finite(weight));
        }
        let value = match best {
            (_, value, None) => value,
            (_, value, Some(factors)) => ScaledChannels::new(value, &factors, -1)?.into(),
        };
        tree::eval(&value)?;
        Ok(value)
    }
}

/// `magnitudes^exponent`, divided by the geometric mean of the largest and the least, within what codes can bear.
fn scales(magnitudes: &Array, exponent: f32) -> Result<Array> {
    // Inputs that were seldom there would be scaled to nothing.
    let powers = ops::maximum(magnitudes.power(Array::from_f32(exponent))?, Array::from_f32(1e-4))?;
    let middle = powers.max(None)?.multiply(powers.min(None)?)?.sqrt()?;
    let scales = powers.divide(middle)?;
    transforms::eval([&scales])?;
    Ok(scales)
}
