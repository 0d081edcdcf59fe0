//! bitsandbytes' blockwise formats: codes of the nearest entry of a table, in units of the block's absmax.

use crate::{Isa, KernelError, Order, encode, encode::Format, matrix::check_length};

/// A table of 16 values, of which each block takes the nearest in units of its largest magnitude.
pub(crate) trait Codebook: Copy + Send + Sync {
    /// The scaled value above which the code of rank `i + 1` is chosen over that of rank `i`.
    const THRESHOLDS: [f32; 15];
    /// The codes by the rank of their values, four bits each, the lowest rank first.
    const BY_RANK: u64;
}

/// The factor that scales a block with this absmax into [-1, 1].
#[inline(always)]
pub(crate) fn reciprocal(absmax: f32) -> f32 {
    1.0 / absmax.max(1e-38)
}

/// Refuses the block sizes that bitsandbytes does not have.
pub(crate) fn check_block(block: usize) -> Result<(), KernelError> {
    if block.is_power_of_two() && (32..=4096).contains(&block) { Ok(()) } else { Err(KernelError::BlockSize { block }) }
}

/// `quantize` of the module of `C`.
pub(crate) fn quantize<C: Codebook>(
    isa: Isa,
    codebook: C,
    x: &[f32],
    block: usize,
    packed: &mut [u8],
    absmax: &mut [f32],
) -> Result<(), KernelError> {
    check_block(block)?;
    check_length("packed", packed.len(), x.len().div_ceil(2), "two elements share a byte")?;
    check_length("absmax", absmax.len(), x.len().div_ceil(block), "each block of elements has one")?;
    encode::quantize(isa, Nearest(codebook), x, block, packed, absmax)
}

/// `quantize_by` of the module of `C`.
pub(crate) fn quantize_by<C: Codebook>(
    codebook: C,
    x: &[f32],
    block: usize,
    absmax: &[f32],
    packed: &mut [u8],
) -> Result<(), KernelError> {
    check_block(block)?;
    encode::quantize_by(Isa::detect(), Nearest(codebook), x, block, absmax, packed)
}

#[derive(Clone, Copy)]
struct Nearest<C>(C);

impl<C: Codebook> Format for Nearest<C> {
    type Stored = f32;
    /// The reciprocal of the absmax.
    type Scale = f32;
    const ORDER: Order = Order::HighFirst;
    const PAD: u8 = code::<C>(0.0);

    fn bits(self) -> u32 {
        4
    }
    #[inline(always)]
    fn scale(self, _: &[f32], absmax: f32) -> f32 {
        absmax
    }
    #[inline(always)]
    fn unit(self, absmax: f32) -> f32 {
        reciprocal(absmax)
    }
    #[inline(always)]
    fn code(self, reciprocal: f32, x: f32) -> u8 {
        code::<C>(x * reciprocal)
    }
}

/// The code of a scaled value, by a binary search that compilers turn into selections of vectors.
#[inline(always)]
const fn code<C: Codebook>(scaled: f32) -> u8 {
    let t = C::THRESHOLDS;
    let eight = scaled > t[7];
    let four = scaled > if eight { t[11] } else { t[3] };
    let two = scaled
        > match (eight, four) {
            (true, true) => t[13],
            (true, false) => t[9],
            (false, true) => t[5],
            (false, false) => t[1],
        };
    let one = scaled
        > match (eight, four, two) {
            (true, true, true) => t[14],
            (true, true, false) => t[12],
            (true, false, true) => t[10],
            (true, false, false) => t[8],
            (false, true, true) => t[6],
            (false, true, false) => t[4],
            (false, false, true) => t[2],
            (false, false, false) => t[0],
        };
    by_rank::<C>(8 * eight as u32 + 4 * four as u32 + 2 * two as u32 + one as u32)
}

#[inline(always)]
const fn by_rank<C: Codebook>(rank: u32) -> u8 {
    if C::BY_RANK == SORTED { rank as u8 } else { (C::BY_RANK >> (4 * rank)) as u8 & 15 }
}

/// [`Codebook::BY_RANK`] of a codebook that ascends.
pub(crate) const SORTED: u64 = 0xfedc_ba98_7654_3210;
