//! The types of GGUF's tensors.

use std::fmt;

use mlx_rs::Dtype;

/// A type of tensor, with the number and the name that ggml has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GgufType {
    pub(super) number: u32,
    name: &'static str,
    /// Elements of a block.
    pub(super) elements: usize,
    /// Bytes of a block.
    pub(super) bytes: usize,
    /// What it is in MLX, if it is not quantized.
    pub(super) dtype: Option<Dtype>,
}

impl GgufType {
    /// The name, `Q4_K`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Bits of an element in the file.
    #[must_use]
    pub fn bits(self) -> f64 {
        (8 * self.bytes) as f64 / self.elements as f64
    }

    /// The type of this name, as llama.cpp's programs take it: `q8_0` or `Q8_0`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        TYPES.into_iter().find(|kind| kind.name.eq_ignore_ascii_case(name))
    }

    /// The type of elements of a dtype, if there is one.
    pub(super) fn dense(dtype: Dtype) -> Option<Self> {
        TYPES.into_iter().find(|kind| kind.dtype == Some(dtype))
    }

    pub(super) fn from_number(number: u32) -> Option<Self> {
        TYPES.into_iter().find(|kind| kind.number == number)
    }
}

impl fmt::Display for GgufType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

const fn dense(number: u32, name: &'static str, bytes: usize, dtype: Dtype) -> GgufType {
    GgufType { number, name, elements: 1, bytes, dtype: Some(dtype) }
}

const fn blocks(number: u32, name: &'static str, elements: usize, bytes: usize) -> GgufType {
    GgufType { number, name, elements, bytes, dtype: None }
}

/// Every type of `ggml.h` and the sizes of its blocks, as `GGML_QUANT_SIZES` of gguf-py 0.19 has them.
const TYPES: [GgufType; 34] = [
    dense(0, "F32", 4, Dtype::Float32),
    dense(1, "F16", 2, Dtype::Float16),
    blocks(2, "Q4_0", 32, 18),
    blocks(3, "Q4_1", 32, 20),
    blocks(6, "Q5_0", 32, 22),
    blocks(7, "Q5_1", 32, 24),
    blocks(8, "Q8_0", 32, 34),
    blocks(9, "Q8_1", 32, 40),
    blocks(10, "Q2_K", 256, 84),
    blocks(11, "Q3_K", 256, 110),
    blocks(12, "Q4_K", 256, 144),
    blocks(13, "Q5_K", 256, 176),
    blocks(14, "Q6_K", 256, 210),
    blocks(15, "Q8_K", 256, 292),
    blocks(16, "IQ2_XXS", 256, 66),
    blocks(17, "IQ2_XS", 256, 74),
    blocks(18, "IQ3_XXS", 256, 98),
    blocks(19, "IQ1_S", 256, 50),
    blocks(20, "IQ4_NL", 32, 18),
    blocks(21, "IQ3_S", 256, 110),
    blocks(22, "IQ2_S", 256, 82),
    blocks(23, "IQ4_XS", 256, 136),
    dense(24, "I8", 1, Dtype::Int8),
    dense(25, "I16", 2, Dtype::Int16),
    dense(26, "I32", 4, Dtype::Int32),
    dense(27, "I64", 8, Dtype::Int64),
    dense(28, "F64", 8, Dtype::Float64),
    blocks(29, "IQ1_M", 256, 56),
    dense(30, "BF16", 2, Dtype::Bfloat16),
    blocks(34, "TQ1_0", 256, 54),
    blocks(35, "TQ2_0", 256, 66),
    blocks(39, "MXFP4", 32, 17),
    blocks(40, "NVFP4", 64, 36),
    blocks(41, "Q1_0", 128, 18),
];
