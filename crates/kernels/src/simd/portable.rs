//! The reference: plain Rust on arrays of eight, which compilers turn into whatever the target's baseline has.

use half::{bf16, f16};

use super::{
    thresholds::Thresholds,
    vector::{Simd, stream_byte},
};
use crate::matrix::e4m3;

#[derive(Clone, Copy)]
pub(super) struct Portable;

const LANES: usize = 8;

impl Simd for Portable {
    type F = [f32; LANES];
    type I = [u32; LANES];
    type T = [f32; 16];
    type Ranks = [f32; 15];
    const LANES: usize = LANES;
    const ROWS: usize = 4;
    const FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        [value; LANES]
    }
    #[inline(always)]
    fn splat_words(self, value: u32) -> Self::I {
        [value; LANES]
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        if Self::FUSED {
            std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
        } else {
            std::array::from_fn(|i| a[i] * b[i] + c[i])
        }
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn keep(self, values: Self::F, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|i| if a[i] < b[i] { 0.0 } else { values[i] })
    }
    #[inline(always)]
    fn scale(self, value: Self::F, exponents: Self::I) -> Self::F {
        std::array::from_fn(|i| f32::from_bits(value[i].to_bits().wrapping_add(exponents[i] << 23)))
    }
    #[inline(always)]
    fn words(self, a: Self::F) -> Self::I {
        a.map(f32::to_bits)
    }
    #[inline(always)]
    fn greatest(self, a: Self::F) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
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
    fn and(self, a: Self::I, b: Self::I) -> Self::I {
        std::array::from_fn(|i| a[i] & b[i])
    }
    #[inline(always)]
    fn add_words(self, a: Self::I, b: Self::I) -> Self::I {
        std::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    fn max_words(self, a: Self::I, b: Self::I) -> Self::I {
        std::array::from_fn(|i| a[i].max(b[i]))
    }
    #[inline(always)]
    fn most(self, words: Self::I) -> u32 {
        words.into_iter().fold(0, u32::max)
    }
    #[inline(always)]
    fn raise(self, words: Self::I, by: Self::I, a: Self::F, b: Self::F) -> Self::I {
        std::array::from_fn(|i| if a[i] > b[i] { words[i].wrapping_add(by[i]) } else { words[i] })
    }
    #[inline(always)]
    fn all_less(self, a: Self::F, b: Self::F) -> bool {
        a.iter().zip(&b).all(|(a, b)| a < b)
    }
    #[inline(always)]
    fn floats(self, words: Self::I) -> Self::F {
        words.map(f32::from_bits)
    }
    #[inline(always)]
    fn shift_each(self, words: Self::I, bits: Self::I) -> Self::I {
        std::array::from_fn(|i| words[i] >> bits[i])
    }
    #[inline(always)]
    fn signed(self, words: Self::I) -> Self::F {
        words.map(|word| f32::from(word as i8))
    }
    #[inline(always)]
    fn to_float(self, words: Self::I) -> Self::F {
        words.map(|word| word as i32 as f32)
    }
    #[inline(always)]
    fn e4m3(self, words: Self::I) -> Self::F {
        words.map(|word| e4m3(word as u8))
    }
    #[inline(always)]
    fn f16(self, words: Self::I) -> Self::F {
        words.map(|word| f16::from_bits(word as u16).to_f32())
    }
    #[inline(always)]
    fn bf16(self, words: Self::I) -> Self::F {
        words.map(|word| bf16::from_bits(word as u16).to_f32())
    }
    #[inline(always)]
    fn table(self, values: &[f32; 16]) -> Self::T {
        *values
    }
    #[inline(always)]
    fn lookup(self, table: Self::T, words: Self::I) -> Self::F {
        words.map(|word| table[(word & 15) as usize])
    }
    #[inline(always)]
    fn lookup_far(self, table: &[f32; 256], words: Self::I) -> Self::F {
        words.map(|word| table[usize::from(word as u8)])
    }
    #[inline(always)]
    fn ranks(self, thresholds: &Thresholds) -> Self::Ranks {
        thresholds.values
    }
    #[inline(always)]
    fn rank(self, ranks: Self::Ranks, x: Self::F) -> Self::I {
        x.map(|x| ranks.iter().map(|threshold| u32::from(x > *threshold)).sum())
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Self::F {
        // SAFETY: the caller's promise; the read is unaligned.
        unsafe { from.cast::<Self::F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_some(self, from: *const f32, count: usize) -> Self::F {
        // SAFETY: the caller promises `count` floats.
        std::array::from_fn(|i| if i < count { unsafe { *from.add(i) } } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: Self::F) {
        // SAFETY: the caller's promise; the write is unaligned.
        unsafe { to.cast::<Self::F>().write_unaligned(value) }
    }
    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut u8, words: Self::I) {
        // SAFETY: the caller promises LANES bytes.
        unsafe { to.cast::<[u8; LANES]>().write(words.map(|word| word as u8)) }
    }
    #[inline(always)]
    unsafe fn store_four(self, to: *mut u8, words: [Self::I; 4]) {
        for (i, words) in words.into_iter().enumerate() {
            // SAFETY: the caller promises four times as many bytes.
            unsafe { self.store_bytes(to.add(i * Self::LANES), words) };
        }
    }
    #[inline(always)]
    unsafe fn load_words(self, from: *const u8) -> Self::I {
        // SAFETY: the caller's promise; the read is unaligned.
        unsafe { from.cast::<Self::I>().read_unaligned() }.map(u32::from_le)
    }
    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> Self::I {
        // SAFETY: the caller promises LANES bytes.
        unsafe { from.cast::<[u8; LANES]>().read() }.map(u32::from)
    }
    #[inline(always)]
    unsafe fn load_signed(self, from: *const u8) -> Self::I {
        // SAFETY: the caller promises LANES bytes.
        unsafe { from.cast::<[i8; LANES]>().read() }.map(|byte| i32::from(byte) as u32)
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> Self::F {
        // SAFETY: the caller promises LANES numbers; the read is unaligned.
        unsafe { from.cast::<[f16; LANES]>().read_unaligned() }.map(f16::to_f32)
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> Self::F {
        // SAFETY: the caller promises LANES numbers; the read is unaligned.
        unsafe { from.cast::<[bf16; LANES]>().read_unaligned() }.map(bf16::to_f32)
    }
    #[inline(always)]
    unsafe fn spread_words(self, from: *const u8, bits: usize) -> Self::I {
        let mut bytes = [0; 4];
        for (i, byte) in bytes.iter_mut().enumerate().take(bits) {
            // SAFETY: the caller promises LANES * bits / 8 = bits bytes.
            *byte = unsafe { *from.add(i) };
        }
        [u32::from_le_bytes(bytes); LANES]
    }
    #[inline(always)]
    unsafe fn load_stream<const BITS: usize>(self, from: *const u8) -> Self::I {
        std::array::from_fn(|i| {
            // SAFETY: the caller promises 16 bytes, and the last two of 8 codes are the seventh and the eighth.
            let both = unsafe { from.add(stream_byte(BITS, i)).cast::<[u8; 2]>().read() };
            u32::from(u16::from_le_bytes(both)) >> (i * BITS % 8) & ((1 << BITS) - 1)
        })
    }
    #[inline(always)]
    unsafe fn load_spans<const BITS: usize>(self, from: *const u8) -> Self::I {
        std::array::from_fn(|i| {
            // SAFETY: the caller promises 16 bytes behind the words.
            let bytes = unsafe { from.add(i * BITS / 8).cast::<[u8; 4]>().read() };
            u32::from_le_bytes(bytes) >> (i * BITS % 8)
        })
    }
    #[inline(always)]
    unsafe fn spread(self, from: *const f32, count: usize, index: Self::I) -> Self::F {
        // SAFETY: the caller promises `count` floats.
        index.map(|i| if (i as usize) < count { unsafe { *from.add(i as usize) } } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn gather(self, from: *const u8, map: &[f32; 256]) -> Self::F {
        // SAFETY: the caller promises LANES bytes.
        unsafe { from.cast::<[u8; LANES]>().read() }.map(|byte| map[usize::from(byte)])
    }
    #[inline(always)]
    fn prefetch(self, _: *const u8) {}
    #[inline(always)]
    unsafe fn transpose_to(self, from: *const u8, stride: usize, to: *mut u32, to_stride: usize) {
        for row in 0..LANES {
            // SAFETY: the caller promises LANES rows of LANES words, `stride` bytes apart.
            let words = unsafe { self.load_words(from.add(row * stride)) };
            for (d, word) in words.into_iter().enumerate() {
                // SAFETY: d and row are below LANES, and the caller promises LANES rows of LANES words.
                unsafe { *to.add(d * to_stride + row) = word };
            }
        }
    }
}
