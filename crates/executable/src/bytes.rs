//! Arrays from the bytes of their elements, and the bytes of arrays.

use mlx_rs::{Array, Dtype};
use tacit_bridge::{array_of_bytes, with_bytes};
use tacit_core::{Aval, Error, Result, Value};

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
    Ok(array_of_bytes(bytes, aval)?)
}

/// The bytes of the elements of a value, evaluated: row-major, in its dtype and this machine's byte order.
pub(crate) fn to_bytes(value: &Value) -> Result<Vec<u8>> {
    Ok(with_bytes(&value.dense()?, <[u8]>::to_vec)?)
}

/// Copies the elements of `arrays` into memory of the caller's, each into its own; nothing is copied if one does not fit.
pub(crate) fn copy_into(names: &[&str], arrays: &[Array], memory: &mut [&mut [u8]]) -> Result<()> {
    if arrays.len() != memory.len() {
        return Err(Error::invalid(
            format!("the run returns {} arrays and there is memory for {}", arrays.len(), memory.len()),
            format!("give memory for each of these, in order: {}", names.join(", ")),
        ));
    }
    for ((name, array), memory) in names.iter().zip(arrays).zip(&*memory) {
        if array.nbytes() != memory.len() {
            let aval = Aval::from(array);
            return Err(Error::invalid(
                format!(
                    "output {name} is {aval}, which has {} bytes, and there is memory for {}",
                    array.nbytes(),
                    memory.len()
                ),
                "`outputs` tells the aval of each output",
            ));
        }
    }
    for (array, memory) in arrays.iter().zip(memory) {
        with_bytes(array, |bytes| memory.copy_from_slice(bytes))?;
    }
    Ok(())
}
