//! MLX's product with a matrix that is quantized in one of its own modes.

use std::ffi::CStr;

use mlx_rs::Array;

use crate::arrays::{self, with_stream};
use crate::error::BridgeError;
use crate::ffi;

/// A matrix as one of MLX's modes stores it, with the default group and bits of the mode unless it is affine.
#[derive(Clone, Copy, Debug)]
pub struct Quantized<'a> {
    /// The codes: `u32[n, k * bits / 32]`.
    pub codes: &'a Array,
    /// One for each group of a row: `[n, k / group]`, float for affine and else `u8`.
    pub scales: &'a Array,
    /// As many, for affine.
    pub biases: Option<&'a Array>,
    /// Elements in a group.
    pub group: usize,
    /// Bits of a code.
    pub bits: usize,
    /// How codes and scales are read.
    pub mode: QuantizationMode,
}

/// How MLX's own quantized products read codes and scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantizationMode {
    /// Integers, times a scale and with a bias.
    Affine,
    /// OCP's MXFP4.
    Mxfp4,
    /// OCP's MXFP8.
    Mxfp8,
    /// NVIDIA's NVFP4, without the scale of the whole matrix.
    Nvfp4,
}

impl QuantizationMode {
    fn text(self) -> &'static CStr {
        match self {
            Self::Affine => c"affine",
            Self::Mxfp4 => c"mxfp4",
            Self::Mxfp8 => c"mxfp8",
            Self::Nvfp4 => c"nvfp4",
        }
    }
}

/// `x W^T` if `transpose`, and else `x W`. mlx-rs has it for affine alone.
///
/// The product is in the type of `x`; for affine in one that also holds the scales.
///
/// # Errors
///
/// MLX refuses the shapes or the dtypes.
pub fn quantized_matmul(x: &Array, matrix: Quantized<'_>, transpose: bool) -> Result<Array, BridgeError> {
    let Quantized { codes, scales, biases, group, bits, mode } = matrix;
    let [x, codes, scales] = [x, codes, scales].map(Array::as_ptr);
    let biases = biases.map_or(arrays::NONE, Array::as_ptr);
    let (group, bits, mode) = (group as i32, bits as i32, mode.text().as_ptr());
    with_stream(|stream| {
        // SAFETY: every handle, the text and the stream are live for the call, which stores a new array.
        arrays::filled(|out| unsafe {
            ffi::tacit_quantized_matmul(x, codes, scales, biases, transpose, group, bits, mode, stream, out)
        })
    })
}
