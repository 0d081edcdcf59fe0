//! NF4, the 4-bit `NormalFloat` of bitsandbytes.
//!
//! A matrix is flattened row-major and cut into blocks of 32 to 4096 elements, which may straddle rows; the last one
//! may be short. A block stores `absmax`, the largest magnitude in it, and for each element the 4-bit code of
//! `x * (1 / max(absmax, 1e-38))` in [`CODEBOOK`]. Element `2j` is the high nibble of byte `j`; an odd length is
//! padded by the code of 0. The value of a code is `CODEBOOK[code] * absmax`.

pub(crate) mod codebook;
mod lengths;
mod quantize;

pub use codebook::{CODEBOOK, THRESHOLDS, code};
pub use lengths::{absmax_len, packed_len};
pub use quantize::{fake_quantize, quantize};
