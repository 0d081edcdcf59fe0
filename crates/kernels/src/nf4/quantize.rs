//! Floats to codes.

use super::codebook::{CODEBOOK, THRESHOLDS};
use crate::{
    Isa, KernelError,
    codebook::{self, Codebook, SORTED},
};

/// Quantizes `x: f32[e]` into `packed: u8[ceil(e/2)]` and `absmax: f32[ceil(e/block)]`.
///
/// Every value is the one that bitsandbytes computes, to the bit.
///
/// # Errors
/// A block size that is not a power of two from 32 to 4096, a wrong length, or a NaN or infinity in `x`: the format
/// has no code for those, and bitsandbytes stores a block of garbage. The outputs are then unspecified.
pub fn quantize(x: &[f32], block: usize, packed: &mut [u8], absmax: &mut [f32]) -> Result<(), KernelError> {
    codebook::quantize(Isa::detect(), Nf4, x, block, packed, absmax)
}

/// Writes the values that `x` has once it is quantized into `out`, without storing codes.
///
/// # Errors
/// As [`quantize`].
pub fn fake_quantize(x: &[f32], block: usize, out: &mut [f32]) -> Result<(), KernelError> {
    codebook::fake_quantize(Nf4, x, block, out)
}

#[derive(Clone, Copy)]
struct Nf4;

impl Codebook for Nf4 {
    const VALUES: [f32; 16] = CODEBOOK;
    const THRESHOLDS: [f32; 15] = THRESHOLDS;
    const BY_RANK: u64 = SORTED;
}
