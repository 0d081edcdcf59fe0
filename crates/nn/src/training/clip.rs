//! Gradients of a bounded norm.

use mlx_rs::module::FlattenedModuleParam;
use mlx_rs::{Array, Dtype, ops};
use tacit_core::{Error, Result};

/// Scales gradients down to the norm `max` where their norm is greater, and gives that norm as `f32[]`.
///
/// The norm is that of all gradients together, with sums in `f32`; each gradient keeps its dtype. Nothing is evaluated, so a
/// compiled step may clip, which it cannot by `clip_grad_norm` of mlx-rs. Where a gradient is NaN or infinite all of them become NaN.
/// On several ranks that hold parts of the gradients the norm is that of the parts here.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use mlx_rs::module::FlattenedModuleParam;
/// use tacit_nn::training::clip_by_norm;
///
/// let gradients = FlattenedModuleParam::from([("weight".into(), Array::from_slice(&[3f32, 4.0], &[2]))]);
/// let (clipped, norm) = clip_by_norm(gradients, 1.0)?;
/// assert_eq!(norm.item_exact::<f32>(), 5.0);
/// assert!((clipped["weight"].as_slice::<f32>()[0] - 0.6).abs() < 1e-5);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// `max` is not above 0, or MLX fails.
pub fn clip_by_norm(gradients: FlattenedModuleParam, max: f32) -> Result<(FlattenedModuleParam, Array)> {
    if max.is_nan() || max <= 0.0 {
        return Err(Error::invalid(
            format!("gradients are not clipped to the norm {max}"),
            "give one above 0, such as 1",
        ));
    }
    // The order of a map is another one in each process, and so would the rounding of the sum be.
    let mut paths: Vec<_> = gradients.keys().cloned().collect();
    paths.sort_unstable();
    // Relative to the greatest magnitude, whose square may be no `f32`.
    let (zero, one) = (Array::from_f32(0.0), Array::from_f32(1.0));
    let mut greatest = zero.clone();
    for path in paths.iter().filter(|path| gradients[*path].size() > 0) {
        greatest = ops::maximum(greatest, gradients[path].as_dtype(Dtype::Float32)?.abs()?.max(None)?)?;
    }
    let unit = ops::select(greatest.gt(&zero)?, &greatest, &one)?;
    let mut squares = zero;
    for path in &paths {
        squares = squares.add(gradients[path].as_dtype(Dtype::Float32)?.divide(&unit)?.square()?.sum(None)?)?;
    }
    let relative = squares.sqrt()?;
    let norm = relative.multiply(&unit)?;
    // Not by the norm, which of finite gradients may be no `f32`.
    let factor = ops::minimum(Array::from_f32(max).divide(&unit)?.divide(&relative)?, &one)?;
    let clipped = gradients.into_iter().map(|(path, gradient)| {
        // In `f32`: the factor of a large norm is no half float.
        let scaled = gradient.as_dtype(Dtype::Float32)?.multiply(&factor)?.as_dtype(gradient.dtype())?;
        Ok((path, scaled))
    });
    Ok((clipped.collect::<Result<_>>()?, norm))
}
