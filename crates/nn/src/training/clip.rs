//! Clipping gradients by their norm.

use std::rc::Rc;

use mlx_rs::module::FlattenedModuleParam;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::accumulator_dtype;
use tacit_core::{Error, Result};

/// Scales gradients down to the norm `max` where their norm is greater, and returns the norm that they had as `f32[]`.
///
/// The norm is that of all gradients together, with sums in `f32`; each gradient keeps its dtype. Nothing is evaluated, so a
/// compiled step may clip, which it cannot by `clip_grad_norm` of mlx-rs. Where a gradient is NaN or infinite all of them become NaN.
/// Where ranks hold parts of the gradients, the norm would be that of the parts here, another one on each rank: take
/// `Group::clip_by_norm` there, or [`clip_by_norm_over`].
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
    clip_by_norm_over(gradients, max, &OneProcess)
}

/// Processes that hold gradients together, as [`clip_by_norm_over`] asks them.
pub trait HeldTogether {
    /// Whether the gradient of a path is a part of one whose other parts are on other processes. All processes have the same
    /// gradients of the other paths.
    fn is_part(&self, path: &str) -> bool;

    /// The sum of the numbers of all parts, each part once however many processes have it. This process gives those of its own parts,
    /// with their paths.
    ///
    /// # Errors
    ///
    /// MLX fails.
    fn sum(&self, own: &[(Rc<str>, Array)]) -> Result<Array>;

    /// The greatest of the numbers of the processes.
    ///
    /// # Errors
    ///
    /// MLX fails.
    fn greatest(&self, own: &Array) -> Result<Array>;
}

struct OneProcess;

impl HeldTogether for OneProcess {
    fn is_part(&self, _path: &str) -> bool {
        false
    }

    fn sum(&self, squares: &[(Rc<str>, Array)]) -> Result<Array> {
        squares.iter().try_fold(Array::from_f32(0.0), |sum, (_, square)| Ok(sum.add(square)?))
    }

    fn greatest(&self, own: &Array) -> Result<Array> {
        Ok(own.clone())
    }
}

/// Scales gradients as [`clip_by_norm`] does, by the norm of all that the processes hold together, so that each of them scales alike.
///
/// Every part counts, and what all of them have counts once.
///
/// # Errors
///
/// As for [`clip_by_norm`].
pub fn clip_by_norm_over(
    gradients: FlattenedModuleParam,
    max: f32,
    processes: &impl HeldTogether,
) -> Result<(FlattenedModuleParam, Array)> {
    if max.is_nan() || max <= 0.0 {
        return Err(Error::invalid(
            format!("gradients are not clipped to the norm {max}"),
            "give one above 0, such as 1",
        ));
    }
    // The order of a map is another one in each process, and so would the rounding of the sum be.
    let mut paths: Vec<_> = gradients.keys().cloned().collect();
    paths.sort_unstable();
    let (parts, alike): (Vec<_>, Vec<_>) = paths.into_iter().partition(|path| processes.is_part(path));
    // Relative to the greatest magnitude, whose square may be no `f32`.
    let (zero, one) = (Array::from_f32(0.0), Array::from_f32(1.0));
    let mut greatest = zero.clone();
    for path in alike.iter().chain(&parts).filter(|path| gradients[*path].size() > 0) {
        greatest = ops::maximum(greatest, real(&gradients[path])?.abs()?.max(None)?)?;
    }
    if !parts.is_empty() {
        greatest = processes.greatest(&greatest)?;
    }
    let unit = ops::select(greatest.gt(&zero)?, &greatest, &one)?;
    let squared = |path: &Rc<str>| -> Result<Array> { Ok(real(&gradients[path])?.divide(&unit)?.square()?.sum(None)?) };
    let mut squares = alike.iter().try_fold(zero, |sum, path| Ok::<_, Error>(sum.add(squared(path)?)?))?;
    if !parts.is_empty() {
        let parts_squared =
            parts.iter().map(|path| Ok((Rc::clone(path), squared(path)?))).collect::<Result<Vec<_>>>()?;
        squares = squares.add(processes.sum(&parts_squared)?)?;
    }
    let relative = squares.sqrt()?;
    let norm = relative.multiply(&unit)?;
    // Not by the norm, which of finite gradients may be no `f32`.
    let factor = ops::minimum(Array::from_f32(max).divide(&unit)?.divide(&relative)?, &one)?;
    let clipped = gradients.into_iter().map(|(path, gradient)| {
        // The factor of a large norm is no half float.
        let scaled =
            gradient.as_dtype(accumulator_dtype(gradient.dtype()))?.multiply(&factor)?.as_dtype(gradient.dtype())?;
        Ok((path, scaled))
    });
    Ok((clipped.collect::<Result<_>>()?, norm))
}

/// The elements, of complex ones their magnitudes: those of others are not needed for squares.
fn real(gradient: &Array) -> Result<Array> {
    let real = if gradient.dtype() == Dtype::Complex64 { gradient.abs()? } else { gradient.clone() };
    Ok(real.as_dtype(Dtype::Float32)?)
}
