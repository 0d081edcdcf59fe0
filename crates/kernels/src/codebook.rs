//! bitsandbytes' blockwise formats: codes of the nearest entry of a table, in units of the block's absmax.

use crate::{
    Isa, KernelError, Order,
    encode::{self, Format},
    matrix::check_length,
    search::{self, Search},
    simd::Simd,
};

/// A table of 16 values, of which each block takes the nearest in units of its largest magnitude.
pub(crate) trait Codebook: Copy + Send + Sync {
    /// What finds the code of a scaled value.
    const SEARCH: Search;
    /// The code of 0.
    const ZERO: u8;
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

impl<C: Codebook> Nearest<C> {
    const IN_ORDER: bool = {
        let (mut rank, mut in_order) = (0, true);
        while rank < 16 {
            in_order &= C::SEARCH.codes[rank] as usize == rank;
            rank += 1;
        }
        in_order
    };
}

impl<C: Codebook> Format for Nearest<C> {
    type Stored = f32;
    /// The reciprocal of the absmax.
    type Scale = f32;
    type Ready<S: Simd> = search::Ready<S>;
    const ORDER: Order = Order::HighFirst;
    const PAD: u8 = C::ZERO;

    #[inline(always)]
    fn bits(self) -> u32 {
        4
    }
    #[inline(always)]
    fn scale<S: Simd>(self, _: S, _: &[f32], absmax: f32) -> f32 {
        absmax
    }
    #[inline(always)]
    fn unit(self, absmax: f32) -> f32 {
        reciprocal(absmax)
    }
    #[inline(always)]
    fn ready<S: Simd>(self, simd: S) -> search::Ready<S> {
        C::SEARCH.ready(simd)
    }
    #[inline(always)]
    fn codes<S: Simd>(ready: search::Ready<S>, simd: S, reciprocal: f32, x: S::F) -> S::I {
        let scaled = simd.mul(x, simd.splat(reciprocal));
        if Self::IN_ORDER { ready.rank(simd, scaled) } else { ready.code(simd, scaled) }
    }
}
