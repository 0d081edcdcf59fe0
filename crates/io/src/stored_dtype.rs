//! The names that safetensors has for dtypes.

use mlx_rs::Dtype;

/// Each name, and the dtype of MLX's that its elements are read as: the first of a dtype is what it is written as.
///
/// <https://github.com/huggingface/safetensors>, `Dtype`. MLX has no float of eight bits; its codes are bytes.
const STORED: [(&str, Dtype); 19] = [
    ("BOOL", Dtype::Bool),
    ("U8", Dtype::Uint8),
    ("F8_E5M2", Dtype::Uint8),
    ("F8_E4M3", Dtype::Uint8),
    ("F8_E8M0", Dtype::Uint8),
    ("F8_E4M3FNUZ", Dtype::Uint8),
    ("F8_E5M2FNUZ", Dtype::Uint8),
    ("U16", Dtype::Uint16),
    ("U32", Dtype::Uint32),
    ("U64", Dtype::Uint64),
    ("I8", Dtype::Int8),
    ("I16", Dtype::Int16),
    ("I32", Dtype::Int32),
    ("I64", Dtype::Int64),
    ("F16", Dtype::Float16),
    ("F32", Dtype::Float32),
    ("F64", Dtype::Float64),
    ("BF16", Dtype::Bfloat16),
    ("C64", Dtype::Complex64),
];

/// The name that a safetensors file has for a dtype of MLX's: `F32`, `BF16`, `U8`.
#[must_use]
pub fn stored_dtype(dtype: Dtype) -> &'static str {
    let entry = STORED.iter().find(|entry| entry.1 == dtype);
    entry.map_or("?", |entry| entry.0)
}

/// The dtype of MLX that elements of a safetensors file are read as, by the file's name for theirs; `None` for a name that is not known.
///
/// Floats of eight bits are read as their codes, `u8`.
#[must_use]
pub fn dtype_of_stored(name: &str) -> Option<Dtype> {
    STORED.iter().find(|entry| entry.0 == name).map(|entry| entry.1)
}

/// The names themselves, for a message.
pub(crate) fn known() -> String {
    STORED.map(|entry| entry.0).join(", ")
}

#[cfg(test)]
mod tests {
    use tacit_core::dtype_named;

    use super::*;

    #[test]
    fn every_dtype_is_stored_under_a_name_that_gives_it_back() {
        let names = ["bool", "u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f16", "f32", "f64", "bf16", "c64"];
        for name in names {
            let dtype = dtype_named(name).expect("a dtype");
            assert_eq!(dtype_of_stored(stored_dtype(dtype)), Some(dtype));
        }
        assert_eq!(dtype_of_stored("F4"), None);
    }
}
