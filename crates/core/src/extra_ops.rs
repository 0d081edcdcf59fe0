//! Ops of MLX that mlx-rs does not bind, and a copy and a check of indices that MLX lacks.

use mlx_rs::{Array, ops};

use crate::Result;
pub use crate::indices::{checked_indices, checked_numbers};

/// The array in memory of its own, row by row and bit for bit: a slice of an evaluated array holds all of it.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use mlx_rs::ops::indexing::TryIndexOp;
/// use tacit_core::extra_ops::copied;
///
/// let whole = Array::from_slice(&[1i32, 2, 3], &[3]);
/// assert_eq!(copied(&whole.try_index(1..)?)?.as_slice::<i32>(), [2, 3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// MLX refuses the op.
pub fn copied(array: &Array) -> Result<Array> {
    // MLX's own copy shares the memory; a choice does not.
    Ok(ops::select(Array::from_bool(true), array, array)?)
}

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
/// let updated = dynamic_slice_update(&a, &update, &Array::from_slice(&[1i32], &[1]), &[0])?;
/// assert_eq!(updated.as_slice::<i32>(), [1, 0, 0, 4]);
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
