//! Floats to codes.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{
    codebook::{ZERO, code, reciprocal},
    weight::{absmax_len, check_block, check_length, packed_len},
};
use crate::{
    Isa, KernelError,
    simd::{Kernel, Simd, run},
    threads,
};

/// Elements that one task quantizes: whole blocks of every size, whole bytes.
const CHUNK: usize = 1 << 16;

/// Quantizes `x: f32[e]` into `packed: u8[packed_len(e)]` and `absmax: f32[absmax_len(e, block)]`.
///
/// Every value is the one that bitsandbytes computes, to the bit.
///
/// # Errors
/// A block size that is not a power of two from 32 to 4096, a wrong length, or a NaN or infinity in `x`: the format
/// has no code for those, and bitsandbytes stores a block of garbage. The outputs are then unspecified.
pub fn quantize(x: &[f32], block: usize, packed: &mut [u8], absmax: &mut [f32]) -> Result<(), KernelError> {
    quantize_with(Isa::detect(), x, block, packed, absmax)
}

/// [`quantize`] with the instruction set given.
pub fn quantize_with(
    isa: Isa,
    x: &[f32],
    block: usize,
    packed: &mut [u8],
    absmax: &mut [f32],
) -> Result<(), KernelError> {
    isa.check()?;
    check_block(block)?;
    check_length("packed", packed.len(), packed_len(x.len()), "two elements share a byte")?;
    check_length("absmax", absmax.len(), absmax_len(x.len(), block), "each block of elements has one")?;

    let first_bad = AtomicUsize::new(usize::MAX);
    let outputs = Outputs { packed: packed.as_mut_ptr(), absmax: absmax.as_mut_ptr() };
    threads::for_each(x.len().div_ceil(CHUNK), |task| {
        let start = task * CHUNK;
        let part = &x[start..x.len().min(start + CHUNK)];
        // SAFETY: chunks are whole bytes and whole blocks, so each task has its own part of both outputs, whose
        // lengths were checked above.
        let (packed, absmax) = unsafe { outputs.part(start, part.len(), block) };
        if let Some(index) = run(isa, Quantize { x: part, block, packed, absmax }) {
            first_bad.fetch_min(start + index, Ordering::Relaxed);
        }
    });
    match first_bad.into_inner() {
        usize::MAX => Ok(()),
        index => Err(KernelError::NonFinite { index, value: x[index] }),
    }
}

#[derive(Clone, Copy)]
struct Outputs {
    packed: *mut u8,
    absmax: *mut f32,
}

// SAFETY: tasks only take disjoint parts, through `part`.
unsafe impl Sync for Outputs {}

impl Outputs {
    /// # Safety
    /// The elements from `start`, whole blocks and bytes, lie in the outputs and belong to the caller alone.
    unsafe fn part<'a>(&self, start: usize, len: usize, block: usize) -> (&'a mut [u8], &'a mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe {
            (
                std::slice::from_raw_parts_mut(self.packed.add(start / 2), packed_len(len)),
                std::slice::from_raw_parts_mut(self.absmax.add(start / block), absmax_len(len, block)),
            )
        }
    }
}

struct Quantize<'a> {
    x: &'a [f32],
    block: usize,
    packed: &'a mut [u8],
    absmax: &'a mut [f32],
}

impl Kernel for Quantize<'_> {
    /// The first element that is not finite.
    type Output = Option<usize>;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Option<usize> {
        let mut first_bad = None;
        for (b, (x, absmax)) in self.x.chunks(self.block).zip(self.absmax).enumerate() {
            let packed = &mut self.packed[b * self.block / 2..][..packed_len(x.len())];
            let whole = x.len() / 16 * 16;
            // SAFETY: `whole` is a multiple of 16 within x.
            let mut bits = unsafe { simd.max_bits(x.as_ptr(), whole) };
            bits = x[whole..].iter().fold(bits, |most, value| most.max(value.abs().to_bits()));
            *absmax = f32::from_bits(bits);
            if !absmax.is_finite() {
                first_bad = first_bad.or_else(|| x.iter().position(|v| !v.is_finite()).map(|i| b * self.block + i));
                continue;
            }
            let scale = reciprocal(*absmax);
            // SAFETY: `whole` is a multiple of 16 within x, and `packed` holds x.len() codes.
            unsafe { simd.encode(x.as_ptr(), whole, scale, packed.as_mut_ptr()) };
            for (pair, byte) in x[whole..].chunks(2).zip(&mut packed[whole / 2..]) {
                *byte = code(pair[0] * scale) << 4 | pair.get(1).map_or(ZERO, |&v| code(v * scale));
            }
        }
        first_bad
    }
}
