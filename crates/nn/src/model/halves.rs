//! Half-precision models where MLX multiplies half floats one by one: on CPUs.

use mlx_rs::module::ModuleParameters;
use mlx_rs::{Array, Device, DeviceType, Dtype, transforms};
use tacit_arrays::format::{Bf16, F16, Quantizer};
use tacit_arrays::{Bf16Array, F16Array};
use tacit_core::{Error, Result, Value};

use super::Model;
use crate::report::{Outcome, Row};
use crate::{Parameters, Pattern};

/// Lets [`F16Array`] and [`Bf16Array`] hold the dense matrices of half floats, where the default device is a CPU.
///
/// MLX has no fast product of half floats there; theirs are at the memory's speed, with sums in `f32` and results in the
/// type of the activations. Values that lie row by row are the same memory, a mapped checkpoint's too, and what it comes to is
/// told through `tracing`. Vectors, such as biases and norms, arrays of more axes and what is implicit already stay as they are; nothing
/// changes on a GPU. Codes are not trained: a model whose matrices are to be stays dense. Caches of half floats are held so by
/// [`KvCache::hold_halves`](crate::KvCache::hold_halves): without it attention is what takes the time of a long prompt.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Dtype, ops};
/// use tacit_nn::{Parameters, hold_halves};
///
/// let weight = ops::ones::<f32>(&[8, 4])?.as_dtype(Dtype::Bfloat16)?;
/// let held = hold_halves(Parameters::from([("weight".to_owned(), weight.into())]))?;
/// # if cfg!(target_os = "linux") {
/// assert_eq!(held["weight"].to_string(), "Bf16(bf16[8,4])");
/// # }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// A parameter cannot be evaluated.
pub fn hold_halves(mut parameters: Parameters) -> Result<Parameters> {
    let halves = as_halves(&parameters, Device::try_default()?.get_type()?, &|_, array| array.ndim() == 2)?;
    parameters.extend(halves);
    Ok(parameters)
}

impl<M: ModuleParameters> Model<M> {
    /// Makes dense matrices of half floats implicit arrays with faster products, on a CPU: see [`hold_halves`].
    ///
    /// [`report`](Self::report) tells of each.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::{Dtype, module::Module, nn, ops};
    /// use tacit_nn::Model;
    ///
    /// let mut model = Model::new(nn::Linear::new(64, 8)?)?;
    /// model.replace("*", |_, value| Ok(Some(value.dense()?.as_dtype(Dtype::Bfloat16)?.into())))?;
    /// model.hold_halves()?;
    /// let y = model.forward(&ops::ones::<f32>(&[1, 64])?.as_dtype(Dtype::Bfloat16)?)?;
    /// assert_eq!(y.dtype(), Dtype::Bfloat16);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`hold_halves`]. The model is then what it was.
    pub fn hold_halves(&mut self) -> Result<&mut Self> {
        let halves = as_halves(&self.values()?, Device::try_default()?.get_type()?, &|_, array| array.ndim() == 2)?;
        self.hold(halves)
    }

    /// Makes implicit arrays of stacks of half-precision matrices `[e, n, k]` that a pattern names, such as the experts of a
    /// mixture, which MLX multiplies in `f32` alone on a CPU.
    ///
    /// A convolution, which has three axes too, is no such stack.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::macros::ModuleParameters;
    /// use mlx_rs::module::Param;
    /// use mlx_rs::{Array, Dtype, ops};
    /// use tacit_nn::Model;
    ///
    /// #[derive(Debug, Clone, ModuleParameters)]
    /// struct Experts {
    ///     #[param]
    ///     weight: Param<Array>,
    /// }
    ///
    /// let weight = ops::ones::<f32>(&[4, 8, 16])?.as_dtype(Dtype::Bfloat16)?;
    /// let mut model = Model::new(Experts { weight: Param::new(weight) })?;
    /// model.hold_stacked_halves("weight")?;
    /// # if cfg!(target_os = "linux") {
    /// assert_eq!(model.get("weight")?.to_string(), "Bf16(bf16[4,8,16])");
    /// # }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`hold_halves`](Self::hold_halves), or the text is no pattern.
    pub fn hold_stacked_halves(&mut self, pattern: impl TryInto<Pattern, Error: Into<Error>>) -> Result<&mut Self> {
        let pattern = pattern.try_into().map_err(Into::into)?;
        let takes = |path: &str, array: &Array| array.ndim() == 3 && pattern.names(&self.paths(path), &array.into());
        let halves = as_halves(&self.values()?, Device::try_default()?.get_type()?, &takes)?;
        self.hold(halves)
    }

    fn hold(&mut self, held: Parameters) -> Result<&mut Self> {
        let mut report = self.report.clone();
        for (path, value) in &held {
            let format: &dyn Quantizer = if F16.stores(value) { &F16 } else { &Bf16 };
            let (aval, bytes) = (value.aval()?, value.nbytes());
            let outcome = Outcome::Quantized { format: format.to_string(), bits: 16.0, error: 0.0 };
            report.note(path.clone(), Row { aval, before: bytes, after: bytes, outcome });
        }
        self.put_all(held)?;
        self.report = report;
        Ok(self)
    }
}

/// Whether the array of a path is to be held.
type Takes<'t> = dyn Fn(&str, &Array) -> bool + 't;

/// What holds the matrices of half floats, by path; nothing where MLX multiplies them itself.
fn as_halves(parameters: &Parameters, device: DeviceType, takes: &Takes<'_>) -> Result<Parameters> {
    let mut halves = Parameters::new();
    if matches!(device, DeviceType::Gpu) {
        return Ok(halves);
    }
    let matrices = parameters.iter().filter_map(|(path, value)| Some((path, value.as_dense()?)));
    for (path, matrix) in matrices.filter(|(path, matrix)| takes(path, matrix) && matrix.size() > 0) {
        let format: &dyn Quantizer = match matrix.dtype() {
            Dtype::Float16 => &F16,
            Dtype::Bfloat16 => &Bf16,
            _ => continue,
        };
        // Else each product would copy them: those that were transposed when they were read, say.
        matrix.eval()?;
        let below = |axis: usize| matrix.shape()[axis + 1..].iter().product::<i32>() as usize;
        let by_rows = matrix.strides().iter().enumerate().all(|(axis, &stride)| stride == below(axis));
        let held_as = if by_rows { matrix } else { &matrix.contiguous()? };
        halves.insert(path.clone(), format.quantize(held_as)?);
    }
    // Views, which keep no more than the memory of the dense arrays once they are evaluated.
    transforms::eval(halves.values().filter_map(codes))?;
    if !halves.is_empty() {
        let bytes: usize = halves.values().map(Value::nbytes).sum();
        let (count, mib) = (halves.len(), bytes as f64 / f64::from(1 << 20));
        tracing::info!(
            target: "tacit",
            "{count} matrices of half floats, {mib:.1} MiB, are multiplied as f16 and bf16 arrays: MLX has no fast product of them on this CPU"
        );
    }
    Ok(halves)
}

fn codes(value: &Value) -> Option<&Array> {
    let narrow = value.downcast::<F16Array>().map(F16Array::codes);
    narrow.or_else(|| value.downcast::<Bf16Array>().map(Bf16Array::codes))
}

#[cfg(test)]
mod tests {
    use mlx_rs::ops;

    use super::*;

    #[test]
    fn nothing_is_held_on_a_gpu() {
        let matrix = ops::zeros_dtype(&[4, 8], Dtype::Bfloat16).expect("zeros");
        let parameters = Parameters::from([("weight".to_owned(), matrix.into())]);
        assert_eq!(as_halves(&parameters, DeviceType::Cpu, &|_, _| true).expect("evaluates").len(), 1);
        assert!(as_halves(&parameters, DeviceType::Gpu, &|_, _| true).expect("evaluates").is_empty());
    }
}
