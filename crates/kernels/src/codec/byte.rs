//! What codes of a byte, or of two, stand for.

use crate::{matrix::offset, simd::Simd};

/// What a byte, or two, stand for.
pub(crate) trait Byte: Copy + Sync {
    /// Bytes of a code.
    const BYTES: usize = 1;
    /// Elements of a [span](crate::unit::Units::SPAN).
    const SPAN: usize = 1;

    /// The values of `LANES` codes.
    ///
    /// # Safety
    /// They are readable at `from`.
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const u8) -> S::F {
        // SAFETY: the caller's promise.
        Self::value(simd, unsafe { simd.load_bytes(from) })
    }
    /// The value of the lowest code of each word.
    fn value<S: Simd>(simd: S, words: S::I) -> S::F;
    /// The values of a unit at one step.
    ///
    /// # Safety
    /// It is readable at `from`.
    #[inline(always)]
    unsafe fn step<S: Simd>(simd: S, from: *const u8, _: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { Self::load(simd, from) }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Unsigned;
#[derive(Clone, Copy)]
pub(crate) struct Offset;
#[derive(Clone, Copy)]
pub(crate) struct Signed;
#[derive(Clone, Copy)]
pub(crate) struct E4m3;
#[derive(Clone, Copy)]
pub(crate) struct F16;
#[derive(Clone, Copy)]
pub(crate) struct Bf16;

impl Byte for Unsigned {
    #[inline(always)]
    fn value<S: Simd>(simd: S, words: S::I) -> S::F {
        simd.to_float(simd.and(words, simd.splat_words(255)))
    }
}

impl Byte for Offset {
    #[inline(always)]
    fn value<S: Simd>(simd: S, words: S::I) -> S::F {
        simd.sub(Unsigned::value(simd, words), simd.splat(offset(8)))
    }
}

impl Byte for Signed {
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const u8) -> S::F {
        // SAFETY: the caller's promise.
        simd.to_float(unsafe { simd.load_signed(from) })
    }
    #[inline(always)]
    fn value<S: Simd>(simd: S, words: S::I) -> S::F {
        simd.signed(words)
    }
}

impl Byte for E4m3 {
    const SPAN: usize = 2;

    #[inline(always)]
    fn value<S: Simd>(simd: S, words: S::I) -> S::F {
        simd.e4m3(simd.and(words, simd.splat_words(255)))
    }
    #[inline(always)]
    unsafe fn step<S: Simd>(simd: S, from: *const u8, step: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { if step == 0 { simd.load_e4m3::<false>(from) } else { simd.load_e4m3::<true>(from) } }
    }
}

impl Byte for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const u8) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { simd.load_f16(from) }
    }
    #[inline(always)]
    fn value<S: Simd>(simd: S, words: S::I) -> S::F {
        simd.f16(words)
    }
}

impl Byte for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const u8) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { simd.load_bf16(from) }
    }
    #[inline(always)]
    fn value<S: Simd>(simd: S, words: S::I) -> S::F {
        simd.bf16(words)
    }
}
