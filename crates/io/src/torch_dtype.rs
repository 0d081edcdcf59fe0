//! The names that torch, and so every configuration in JSON, has for dtypes.

use mlx_rs::Dtype;

const NAMES: [(Dtype, &str); 13] = [
    (Dtype::Float32, "float32"),
    (Dtype::Float16, "float16"),
    (Dtype::Bfloat16, "bfloat16"),
    (Dtype::Float64, "float64"),
    (Dtype::Bool, "bool"),
    (Dtype::Uint8, "uint8"),
    (Dtype::Uint16, "uint16"),
    (Dtype::Uint32, "uint32"),
    (Dtype::Uint64, "uint64"),
    (Dtype::Int8, "int8"),
    (Dtype::Int16, "int16"),
    (Dtype::Int32, "int32"),
    (Dtype::Int64, "int64"),
];

/// The name of a dtype: `bfloat16`.
pub(crate) fn torch_dtype(dtype: Dtype) -> &'static str {
    NAMES.iter().find(|entry| entry.0 == dtype).map_or("complex64", |entry| entry.1)
}

/// The dtype of a name, which may be `torch.bfloat16` as well.
pub(crate) fn dtype_of_torch(name: &str) -> Option<Dtype> {
    let name = name.strip_prefix("torch.").unwrap_or(name);
    NAMES.iter().find(|entry| entry.1 == name).map(|entry| entry.0)
}
