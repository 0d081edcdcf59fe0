//! An array from the bytes of its elements.

use mlx_rs::{Array, Dtype, ops};

use tacit_core::{Aval, Error, Result};

/// The array of this aval whose elements are `bytes`, row-major and in this machine's byte order.
///
/// The bytes are copied once, into the array's own memory.
pub(crate) fn from_bytes(what: &str, aval: &Aval, bytes: &[u8]) -> Result<Array> {
    if bytes.len() != aval.nbytes() {
        return Err(Error::invalid(
            format!("{what} is {aval}, which has {} bytes, and {} are given", aval.nbytes(), bytes.len()),
            "give the elements in their own dtype, without a header",
        ));
    }
    if aval.dtype == Dtype::Bool && bytes.iter().any(|&byte| byte > 1) {
        return Err(Error::invalid(
            format!("{what} is {aval} and is given bytes other than 0 and 1"),
            "give 1 for true and 0 for false",
        ));
    }
    if bytes.is_empty() {
        return Ok(ops::zeros_dtype(&aval.shape, aval.dtype)?);
    }
    let length = i32::try_from(bytes.len()).ok();
    // One axis of bytes can be too long for MLX where the rows of a matrix are not.
    let shape = match (length, bytes.len() / aval.size()) {
        (Some(length), _) => vec![length],
        (None, item) => aval.shape.iter().copied().chain([item as i32]).collect(),
    };
    let array = Array::from_slice(bytes, &shape).view_dtype(aval.dtype)?.reshape(&aval.shape)?;
    array.eval()?;
    Ok(array)
}
