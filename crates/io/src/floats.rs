//! The elements of small arrays, which a reader or a report looks at.

use mlx_rs::Array;
use tacit_bridge::with_bytes;
use tacit_core::Result;

/// The elements of an array of `f32`, row by row.
pub(crate) fn floats(array: &Array) -> Result<Vec<f32>> {
    let read = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    Ok(with_bytes(array, read)?)
}
