//! The reference: plain Rust on arrays of eight, which compilers turn into whatever the target's baseline has.

use super::Simd;
use crate::nf4::codebook::{CODEBOOK, code};

#[derive(Clone, Copy)]
pub(super) struct Portable;

const LANES: usize = 8;

impl Simd for Portable {
    type F = [f32; LANES];
    type I = [u32; LANES];
    const LANES: usize = LANES;
    const ROWS: usize = 4;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        [value; LANES]
    }
    #[inline(always)]
    fn zero_words(self) -> Self::I {
        [0; LANES]
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // Without the instruction a fused multiply-add is a call into libm.
        if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
            std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
        } else {
            std::array::from_fn(|i| a[i] * b[i] + c[i])
        }
    }
    #[inline(always)]
    fn sum(self, a: Self::F) -> f32 {
        ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
    }
    #[inline(always)]
    fn shift(self, words: Self::I, bits: u32) -> Self::I {
        words.map(|word| word >> bits)
    }
    #[inline(always)]
    fn lookup(self, words: Self::I) -> Self::F {
        words.map(|word| CODEBOOK[(word & 15) as usize])
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Self::F {
        // SAFETY: the caller's promise; the read is unaligned.
        unsafe { from.cast::<Self::F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: Self::F) {
        // SAFETY: the caller's promise; the write is unaligned.
        unsafe { to.cast::<Self::F>().write_unaligned(value) }
    }
    #[inline(always)]
    unsafe fn load_words(self, from: *const u8) -> Self::I {
        // SAFETY: the caller's promise; the read is unaligned.
        unsafe { from.cast::<Self::I>().read_unaligned() }.map(u32::from_le)
    }
    #[inline(always)]
    fn prefetch(self, _: *const u8) {}
    #[inline(always)]
    unsafe fn decode(self, from: *const u8) -> Self::F {
        // SAFETY: the caller promises LANES / 2 = 4 bytes.
        let bytes = unsafe { from.cast::<[u8; LANES / 2]>().read() };
        std::array::from_fn(|i| {
            let byte = bytes[i / 2];
            CODEBOOK[usize::from(if i % 2 == 0 { byte >> 4 } else { byte & 15 })]
        })
    }
    #[inline(always)]
    unsafe fn spread(self, from: *const f32, each: usize) -> Self::F {
        // SAFETY: i / each < LANES.div_ceil(each), the caller's promise.
        std::array::from_fn(|i| unsafe { *from.add(i / each) })
    }
    #[inline(always)]
    unsafe fn transpose(self, from: *const u8, stride: usize, to: *mut u32) {
        for row in 0..LANES {
            // SAFETY: the caller promises LANES rows of LANES words, `stride` bytes apart.
            let words = unsafe { self.load_words(from.add(row * stride)) };
            for (d, word) in words.into_iter().enumerate() {
                // SAFETY: d and row are below LANES, and the caller promises LANES * LANES words.
                unsafe { *to.add(d * LANES + row) = word };
            }
        }
    }
    #[inline(always)]
    unsafe fn max_bits(self, from: *const f32, len: usize) -> u32 {
        // SAFETY: the caller's promise.
        let values = unsafe { std::slice::from_raw_parts(from, len) };
        values.iter().map(|value| value.abs().to_bits()).max().unwrap_or(0)
    }
    #[inline(always)]
    unsafe fn encode(self, from: *const f32, len: usize, scale: f32, to: *mut u8) {
        // SAFETY: the caller's promise.
        let (values, packed) =
            unsafe { (std::slice::from_raw_parts(from, len), std::slice::from_raw_parts_mut(to, len / 2)) };
        for (pair, byte) in values.chunks_exact(2).zip(packed) {
            *byte = code(pair[0] * scale) << 4 | code(pair[1] * scale);
        }
    }
}
