//! NF4, the 4-bit `NormalFloat` of bitsandbytes.
//!
//! A matrix is flattened row-major and cut into blocks of 32 to 4096 elements, which may straddle rows; the last one
//! may be short. A block stores `absmax`, the largest magnitude in it, and for each element the 4-bit code of
//! `x * (1 / max(absmax, 1e-38))` in [`CODEBOOK`]. Element `2j` is the high nibble of byte `j`; an odd length is
//! padded by the code of 0. The value of a code is `CODEBOOK[code] * absmax`.

pub(crate) mod codebook;
mod gather;
mod gemv;
mod matmul;
mod panel;
mod quantize;
mod weight;

pub use codebook::{CODEBOOK, THRESHOLDS, code};
pub use gather::{dequantize, dequantize_with, gather_rows, gather_rows_with};
pub use matmul::{Orientation, matmul, matmul_with};
pub use quantize::{quantize, quantize_with};
pub use weight::{Weight, absmax_len, packed_len};
