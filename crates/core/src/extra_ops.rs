//! Ops of MLX that mlx-rs does not bind, and a check of indices that MLX lacks.

use mlx_rs::Array;

use crate::Result;
pub use crate::indices::{checked_indices, checked_numbers};

/// The part of `a` of this `size` that begins at `start: i32[axes]` along `axes`.
///
/// A part that would reach beyond the end begins earlier, so that it ends there.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::extra_ops::dynamic_slice;
///
/// let a = Array::from_slice(&[1i32, 2, 3, 4], &[4]);
/// let part = dynamic_slice(&a, &Array::from_slice(&[1i32], &[1]), &[0], &[2])?;
/// assert_eq!(part.as_slice::<i32>(), [2, 3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The axes are not those of `a`, or the size does not lie within `a`.
pub fn dynamic_slice(a: &Array, start: &Array, axes: &[i32], size: &[i32]) -> Result<Array> {
    Ok(tacit_bridge::dynamic_slice(a, start, axes, size)?)
}

/// `a` with `update` written from `start: i32[axes]` on along `axes`; `update` is as large as `a` along the other axes.
///
/// An update that would reach beyond the end begins earlier, so that it ends there.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::extra_ops::dynamic_slice_update;
///
/// let a = Array::from_slice(&[1i32, 2, 3, 4], &[4]);
/// let update = Array::from_slice(&[0i32, 0], &[2]);
/// let made = dynamic_slice_update(&a, &update, &Array::from_slice(&[1i32], &[1]), &[0])?;
/// assert_eq!(made.as_slice::<i32>(), [1, 0, 0, 4]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The axes are not those of `a`, or the update does not lie within `a`.
pub fn dynamic_slice_update(a: &Array, update: &Array, start: &Array, axes: &[i32]) -> Result<Array> {
    Ok(tacit_bridge::dynamic_slice_update(a, update, start, axes)?)
}
