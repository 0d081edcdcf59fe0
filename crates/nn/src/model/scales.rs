//! The float type of the scales of packed parameters.

use mlx_rs::Dtype;
use mlx_rs::module::ModuleParameters;
use tacit_arrays::Packed;
use tacit_core::{Error, Result, Value, dtype_name};

use super::Model;
use crate::within;

impl<M: ModuleParameters> Model<M> {
    /// Holds the scales and biases of packed parameters in this float type, where their format has them in any: those of `affine`
    /// and `symmetric`.
    ///
    /// Codes stay, and so does the type in which the parameters compute.
    ///
    /// Scales of half floats hardly move in training, whose steps are less than the distance to the next half float. So train
    /// them in `f32`, and round them once when they are trained.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::{Dtype, nn};
    /// use tacit_nn::Model;
    ///
    /// let mut model = Model::new(nn::Linear::new(64, 8)?)?;
    /// model.replace("*", |_, value| Ok(Some(value.dense()?.as_dtype(Dtype::Bfloat16)?.into())))?;
    /// let mut model = model.quantize("weight", "affine:4:64")?;
    /// let bytes = model.nbytes();
    /// model.cast_scales(Dtype::Float32)?;
    /// assert_eq!(model.nbytes(), bytes + 2 * 8 * 2);
    /// assert_eq!(model.get("weight")?.to_string(), "Affine(bf16[8,64])");
    /// model.cast_scales(Dtype::Bfloat16)?;
    /// assert_eq!(model.nbytes(), bytes);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The dtype is neither `f32` nor that of half floats.
    pub fn cast_scales(&mut self, dtype: Dtype) -> Result<&mut Self> {
        if !matches!(dtype, Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16) {
            return Err(Error::invalid(
                format!("scales are not held as {}", dtype_name(dtype)),
                "give `Dtype::Float32`, or the half floats of the model",
            ));
        }
        let parameters = self.mapped_parameters(|_, value| within::mapped(&value, &mut |value| cast(value, dtype)))?;
        self.put_all(parameters)?;
        Ok(self)
    }
}

/// A packed array with other scales, if it has such ones, and they are of another type.
fn cast(value: &Value, dtype: Dtype) -> Result<Option<Value>> {
    let Some(array) = value.family::<dyn Packed>() else { return Ok(None) };
    let mut stored = array.stored();
    let scales = stored.scales.as_ref().and_then(Value::as_dense).filter(|_| stored.scheme.takes_half_scales());
    let Some(scales) = scales.filter(|scales| scales.dtype() != dtype) else { return Ok(None) };
    stored.scales = Some(scales.as_dtype(dtype)?.into());
    stored.biases = stored.biases.map(|biases| biases.as_dtype(dtype)).transpose()?;
    Ok(Some(Value::from(array.restored(stored))))
}
