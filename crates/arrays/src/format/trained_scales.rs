//! Scales that are trained.

use mlx_rs::{Array, ops};
use tacit_core::{Result, Value};

/// The scales of an array of codes as floats, one for each block.
///
/// Where a format rounds its scales to 8 bits these are not rounded: they are what training moves.
#[derive(Clone, Debug)]
pub struct FloatScales {
    /// The scales, in the format's own units; NVFP4's without the factor of all.
    pub scales: Array,
    /// The biases, of as many, where the format has them.
    pub biases: Option<Array>,
    /// What NVFP4's scales are relative to, `f32[]`, which is not trained.
    pub global_scale: Option<Array>,
}

impl FloatScales {
    /// The scales, and biases if there are any, as `f` makes them.
    pub(crate) fn mapped(&self, f: impl Fn(&Array) -> Result<Array>) -> Result<Self> {
        let biases = self.biases.as_ref().map(&f).transpose()?;
        Ok(Self { scales: f(&self.scales)?, biases, global_scale: self.global_scale.clone() })
    }

    /// These where they are `better`, and `others` elsewhere.
    pub(crate) fn where_better(&self, better: &Array, others: &Self) -> Result<Self> {
        let biases = self.biases.as_ref().zip(others.biases.as_ref());
        let biases = biases.map(|(own, other)| ops::select(better, own, other)).transpose()?;
        Ok(Self { scales: ops::select(better, &self.scales, &others.scales)?, biases, ..self.clone() })
    }
}

/// A format whose scales can be trained, as every [`Format`](super::Format) with one float or byte for each block.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::format::{Nf4, Quantizer};
///
/// let x = ops::ones::<f32>(&[2, 32])?;
/// let format = Nf4 { block: 32, double: false };
/// let trained = format.trained_scales().expect("a float for each block");
/// let scales = trained.scales_of(&format.quantize(&x)?).expect("they are of this format");
/// assert_eq!(trained.quantize_by(&x, &scales)?.0.to_string(), "Nf4(f32[2,32])");
/// # Ok(())
/// # }
/// ```
pub trait TrainedScales {
    /// The scales of an array, if that is of this format.
    fn scales_of(&self, value: &Value) -> Option<FloatScales>;

    /// `x` coded by these scales; and an array that stands for its derivative: of the shape and dtype of `x`, with no value
    /// of its own, and with the gradients of `x` and of the scales.
    ///
    /// The gradients are those of [`tacit_kernels::scale_gradients`]; they pass straight through the rounding of scales to
    /// bytes, as through that of `x`. Neither array is built densely.
    ///
    /// # Errors
    ///
    /// `x` or the scales do not fit the format.
    fn quantize_by(&self, x: &Array, scales: &FloatScales) -> Result<(Value, Array)>;
}
