//! AMX: tiles of 16-bit floats and of bytes, and what they multiply.
//!
//! A float is the exact sum of three `bf16` numbers: eight bits of its significand each, rounded to nearest, so that a
//! piece is at most 2^-9 of the one before it. Products of two pieces are exact in `f32`, and tiles sum them in `f32`.
//! Of the nine products of pieces the three smallest, together at most 2^-26 of the whole, are left out: the result is as
//! exact as that of fused multiply-adds, at a multiple of their rate.
//!
//! Tiles know no subnormal numbers and no infinities less themselves. Rows of activations are therefore brought to a
//! largest magnitude of about one, by a power of two which the result is multiplied with in turn. `codes` and `gemm` say
//! what they do with matrices that are out of range; where activations are not finite, they do nothing.

pub(crate) mod bytes;
pub(crate) mod codes;
mod coding;
pub(crate) mod gemm;
mod packed_a;

#[allow(clippy::wildcard_imports)]
use std::arch::x86_64::*;
use std::{arch::asm, ops::Range, sync::OnceLock};

use crate::machine::cpuid;

/// Rows and columns of a tile of sums.
pub(crate) const TILE: usize = 16;

/// Steps of the sum that one instruction takes.
pub(crate) const STEP: usize = 32;

/// The numbers that a float is split into.
pub(crate) const PIECES: usize = 3;

/// Columns of a panel: two tiles.
pub(crate) const WIDTH: usize = 2 * TILE;

/// The binary exponents between which the largest magnitude of numbers that are summed together may lie.
const EXPONENTS: Range<i32> = -90..100;

/// The cycles of a product of two tiles, where none waits for another.
pub(crate) const PRODUCT: f64 = 16.0;

/// A tile of `bf16`.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Tile(#[expect(dead_code, reason = "read through a pointer")] [u32; TILE * STEP / 2]);

pub(crate) const ZEROS: Tile = Tile([0; TILE * STEP / 2]);

/// Whether this process may use AMX with `bf16` and 8-bit integers, which it asks the system for once.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        const TILE_STATE: u64 = 3 << 17;
        let said = cpuid(7, 0).zip(cpuid(0x1d, 0));
        let has = said.is_some_and(|(features, tiles)| has_tiles(features.edx, tiles.eax));
        // No machine has tiles of `bf16` without vectors of them.
        let has = has && is_x86_feature_detected!("xsave") && is_x86_feature_detected!("avx512bf16");
        // SAFETY: XSAVE was detected.
        has && unsafe { _xgetbv(0) } & TILE_STATE == TILE_STATE && permission()
    })
}

/// The layouts of tiles that [`Tiles`] are of.
const PALETTE: u8 = 1;

/// Whether a processor with these features, and palettes up to this one, has tiles of `bf16` and of 8-bit integers.
///
/// Some virtual machines say that theirs has tiles and no palette: a process that sets up tiles there is ended.
fn has_tiles(features: u32, palettes: u32) -> bool {
    const BF16_TILE_INT8: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    features & BF16_TILE_INT8 == BF16_TILE_INT8 && palettes >= u32::from(PALETTE)
}

/// Linux gives the state of the tiles only to processes that ask for it.
#[cfg(target_os = "linux")]
fn permission() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and changes nothing but what this process may use.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn permission() -> bool {
    false
}

/// Eight tiles of 16 rows of 64 bytes, for as long as this lives.
pub(crate) struct Tiles(());

impl Tiles {
    /// # Safety
    /// [`is_available`], and the thread has no other `Tiles`.
    pub(crate) unsafe fn new() -> Self {
        #[repr(C, align(64))]
        struct Layout {
            palette: u8,
            start_row: u8,
            reserved: [u8; 14],
            bytes: [u16; 16],
            rows: [u8; 16],
        }
        let (mut bytes, mut rows) = ([0; 16], [0; 16]);
        bytes[..8].fill(64);
        rows[..8].fill(TILE as u8);
        let layout = Layout { palette: PALETTE, start_row: 0, reserved: [0; 14], bytes, rows };
        // SAFETY: the caller's promise; the layout is one that the palette allows.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const layout, options(nostack, preserves_flags, readonly)) };
        Self(())
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: there are tiles, or this would not have been made.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) };
    }
}

/// The first `count` floats at `from`, and zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) unsafe fn load(from: *const f32, count: usize) -> __m512 {
    if count >= TILE {
        // SAFETY: the caller's promise.
        return unsafe { _mm512_loadu_ps(from) };
    }
    // SAFETY: only `count` floats are read.
    unsafe { _mm512_maskz_loadu_ps((1 << count) - 1, from) }
}

/// The power of two that brings the largest magnitude of a row, or of zeros, to about one, and its reciprocal; `None` where
/// the row is not finite.
///
/// # Safety
/// `count` floats are readable at `from`.
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) unsafe fn powers(from: Option<*const f32>, count: usize) -> Option<(f32, f32)> {
    const BIAS: i32 = 127;
    let mut max = _mm512_setzero_si512();
    if let Some(from) = from {
        for at in (0..count).step_by(TILE) {
            // SAFETY: the caller's promise.
            max = _mm512_max_epu32(max, magnitude(unsafe { load(from.add(at), count - at) }));
        }
    }
    let exponent = (_mm512_reduce_max_epu32(max) >> 23) as i32;
    if exponent > 2 * BIAS {
        return None;
    }
    let shift = (BIAS - exponent).clamp(1 - BIAS, BIAS - 1);
    let power = |exponent: i32| f32::from_bits(((exponent + BIAS) as u32) << 23);
    Some((power(shift), power(-shift)))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) fn magnitude(x: __m512) -> __m512i {
    _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(i32::MAX))
}

/// The three pieces, in the upper halves of words.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) fn split(x: __m512) -> [__m512i; PIECES] {
    let first = nearest(x);
    let rest = _mm512_sub_ps(x, _mm512_castsi512_ps(first));
    let second = nearest(rest);
    let rest = _mm512_sub_ps(rest, _mm512_castsi512_ps(second));
    // Eight bits are left, or less than the least normal number.
    [first, second, _mm512_castps_si512(rest)]
}

/// Rounded to eight bits, ties away from zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn nearest(x: __m512) -> __m512i {
    let words = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
    _mm512_and_si512(words, _mm512_set1_epi32(!0xFFFF))
}

/// Rows of floats.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) at: *mut f32,
    /// Bytes from row to row.
    pub(crate) stride: usize,
}

/// Adds the products of 32 rows and a panel to the sums at `from`, and writes them to `to`.
///
/// # Safety
/// The thread has [`Tiles`]; there are `steps` tiles of each piece in each band, those of a step `each` tiles behind those of
/// the one before, twice as many in the panel, and 32 rows of 32 sums.
pub(crate) unsafe fn add_pair(
    upper: *const Tile,
    lower: *const Tile,
    each: usize,
    panel: *const Tile,
    steps: usize,
    from: Place,
    to: Place,
) {
    // Products of small pieces first; one operand stays where it is from each four products to the next.
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tileloadd tmm0, [{c} + {from}]",
            "tileloadd tmm1, [{c} + {from} + 64]",
            "tileloadd tmm2, [{d} + {from}]",
            "tileloadd tmm3, [{d} + {from} + 64]",
            "2:",
            "tileloadd tmm4, [{x} + {line}]",
            "tileloadd tmm6, [{w} + {line} + 2048]",
            "tileloadd tmm7, [{w} + {line} + 5120]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{y} + {line}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "tileloadd tmm6, [{w} + {line} + 1024]",
            "tileloadd tmm7, [{w} + {line} + 4096]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "tileloadd tmm4, [{x} + {line} + 1024]",
            "tileloadd tmm5, [{y} + {line} + 1024]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "tileloadd tmm6, [{w} + {line}]",
            "tileloadd tmm7, [{w} + {line} + 3072]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "tileloadd tmm4, [{x} + {line} + 2048]",
            "tileloadd tmm5, [{y} + {line} + 2048]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "tileloadd tmm4, [{x} + {line}]",
            "tileloadd tmm5, [{y} + {line}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {x}, {each}",
            "add {y}, {each}",
            "add {w}, 6144",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{e} + {to}], tmm0",
            "tilestored [{e} + {to} + 64], tmm1",
            "tilestored [{f} + {to}], tmm2",
            "tilestored [{f} + {to} + 64], tmm3",
            x = inout(reg) upper => _,
            y = inout(reg) lower => _,
            each = in(reg) each * size_of::<Tile>(),
            w = inout(reg) panel => _,
            steps = inout(reg) steps => _,
            c = in(reg) from.at,
            d = in(reg) from.at.byte_add(TILE * from.stride),
            from = in(reg) from.stride,
            e = in(reg) to.at,
            f = in(reg) to.at.byte_add(TILE * to.stride),
            to = in(reg) to.stride,
            line = in(reg) 64_usize,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::has_tiles;

    #[test]
    fn tiles_without_a_palette_are_none() {
        let all = 1 << 22 | 1 << 24 | 1 << 25;
        assert_eq!([has_tiles(all, 1), has_tiles(all, 0), has_tiles(all & !(1 << 24), 1)], [true, false, false]);
    }
}
