//! NEON: vectors are pairs of registers, and a table of sixteen floats is the 64 bytes that one instruction looks up.

#[allow(clippy::wildcard_imports)]
use std::arch::aarch64::*;

use super::{
    thresholds::Thresholds,
    vector::{Kernel, SMALLEST_NORMAL, Simd, span_bytes, span_shuffle, stream_byte, stream_shifts},
};

// Every method may use the instructions: all machines that this is compiled for have them.
#[derive(Clone, Copy)]
pub(super) struct Neon;

pub(super) fn is_available() -> bool {
    true
}

/// # Safety
/// None is asked for: this has the form of the other instruction sets.
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Neon)
}

/// Applies an intrinsic to both registers of its arguments.
macro_rules! both {
    ($intrinsic:ident($($a:expr),+)) => {
        // SAFETY: every AArch64 machine has NEON.
        unsafe { [$intrinsic($($a[0]),+), $intrinsic($($a[1]),+)] }
    };
}

/// What an `f16`, whose bits lie where those of an `f32` of the same fraction do, is multiplied by.
const F16_UNIT: f32 = f32::from_bits((127 + 127 - 15) << 23);

/// The words of eight halves.
///
/// # Safety
/// 16 bytes are readable at `from`.
#[inline(always)]
unsafe fn load_halves(from: *const u8) -> [uint32x4_t; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let halves = vreinterpretq_u16_u8(vld1q_u8(from));
        [vmovl_u16(vget_low_u16(halves)), vmovl_u16(vget_high_u16(halves))]
    }
}

/// A shuffle that brings the two bytes that hold code `i` of a stream to the bottom of word `i`.
const fn stream_bytes(bits: usize) -> [u8; 32] {
    // An index beyond the register gives a zero.
    let mut shuffle = [0xff; 32];
    let mut i = 0;
    while i < 8 {
        shuffle[4 * i] = stream_byte(bits, i) as u8;
        shuffle[4 * i + 1] = stream_byte(bits, i) as u8 + 1;
        i += 1;
    }
    shuffle
}

impl Simd for Neon {
    type F = [float32x4_t; 2];
    type I = [uint32x4_t; 2];
    type T = uint8x16x4_t;
    /// The eighth threshold, and those of the later steps.
    type Ranks = (Self::F, [uint8x16x4_t; 3]);
    const LANES: usize = 8;
    const ROWS: usize = 6;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        // SAFETY: every AArch64 machine has NEON.
        unsafe { [vdupq_n_f32(value); 2] }
    }
    #[inline(always)]
    fn splat_words(self, value: u32) -> Self::I {
        // SAFETY: every AArch64 machine has NEON.
        unsafe { [vdupq_n_u32(value); 2] }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        both!(vaddq_f32(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        both!(vsubq_f32(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        both!(vmulq_f32(a, b))
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        both!(vdivq_f32(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        both!(vfmaq_f32(c, a, b))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // The instruction for it knows more of NaN than this asks for.
        let greater = both!(vcgtq_f32(a, b));
        both!(vbslq_f32(greater, a, b))
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        // As for `max`.
        let less = both!(vcltq_f32(a, b));
        both!(vbslq_f32(less, a, b))
    }
    #[inline(always)]
    fn keep(self, values: Self::F, a: Self::F, b: Self::F) -> Self::F {
        let less = both!(vcltq_f32(a, b));
        let bits = both!(vreinterpretq_u32_f32(values));
        let kept = both!(vbicq_u32(bits, less));
        both!(vreinterpretq_f32_u32(kept))
    }
    #[inline(always)]
    fn scale(self, value: Self::F, exponents: Self::I) -> Self::F {
        // SAFETY: every AArch64 machine has NEON.
        let exponents = unsafe { exponents.map(|exponents| vshlq_n_u32::<23>(exponents)) };
        let bits = both!(vreinterpretq_u32_f32(value));
        let scaled = both!(vaddq_u32(bits, exponents));
        both!(vreinterpretq_f32_u32(scaled))
    }
    #[inline(always)]
    fn words(self, a: Self::F) -> Self::I {
        both!(vreinterpretq_u32_f32(a))
    }
    #[inline(always)]
    fn greatest(self, a: Self::F) -> f32 {
        // SAFETY: every AArch64 machine has NEON.
        unsafe { vmaxvq_f32(vmaxq_f32(a[0], a[1])) }
    }
    #[inline(always)]
    fn sum(self, a: Self::F) -> f32 {
        // SAFETY: every AArch64 machine has NEON.
        unsafe { vaddvq_f32(vaddq_f32(a[0], a[1])) }
    }
    #[inline(always)]
    fn and(self, a: Self::I, b: Self::I) -> Self::I {
        both!(vandq_u32(a, b))
    }
    #[inline(always)]
    fn add_words(self, a: Self::I, b: Self::I) -> Self::I {
        both!(vaddq_u32(a, b))
    }
    #[inline(always)]
    fn max_words(self, a: Self::I, b: Self::I) -> Self::I {
        both!(vmaxq_u32(a, b))
    }
    #[inline(always)]
    fn most(self, words: Self::I) -> u32 {
        // SAFETY: every AArch64 machine has NEON.
        unsafe { vmaxvq_u32(vmaxq_u32(words[0], words[1])) }
    }
    #[inline(always)]
    fn raise(self, words: Self::I, by: Self::I, a: Self::F, b: Self::F) -> Self::I {
        let greater = both!(vcgtq_f32(a, b));
        let by = both!(vandq_u32(greater, by));
        both!(vaddq_u32(words, by))
    }
    #[inline(always)]
    fn all_less(self, a: Self::F, b: Self::F) -> bool {
        let less = both!(vcltq_f32(a, b));
        // SAFETY: every AArch64 machine has NEON.
        unsafe { vminvq_u32(vandq_u32(less[0], less[1])) != 0 }
    }
    #[inline(always)]
    fn floats(self, words: Self::I) -> Self::F {
        both!(vreinterpretq_f32_u32(words))
    }
    #[inline(always)]
    fn shift(self, words: Self::I, bits: u32) -> Self::I {
        self.shift_each(words, self.splat_words(bits))
    }
    #[inline(always)]
    fn shift_each(self, words: Self::I, bits: Self::I) -> Self::I {
        // Shifts to the right are to the left by a negative number.
        let left: [int32x4_t; 2] = {
            let bits = both!(vreinterpretq_s32_u32(bits));
            both!(vnegq_s32(bits))
        };
        both!(vshlq_u32(words, left))
    }
    #[inline(always)]
    fn signed(self, words: Self::I) -> Self::F {
        let words = both!(vreinterpretq_s32_u32(words));
        // SAFETY: every AArch64 machine has NEON.
        unsafe { words.map(|words| vcvtq_f32_s32(vshrq_n_s32::<24>(vshlq_n_s32::<24>(words)))) }
    }
    #[inline(always)]
    fn to_float(self, words: Self::I) -> Self::F {
        let words = both!(vreinterpretq_s32_u32(words));
        both!(vcvtq_f32_s32(words))
    }
    #[inline(always)]
    fn e4m3(self, words: Self::I) -> Self::F {
        // SAFETY: every AArch64 machine has NEON.
        unsafe {
            words.map(|words| {
                let magnitude = vandq_u32(words, vdupq_n_u32(0x7f));
                let bits = vaddq_u32(vshlq_n_u32::<20>(magnitude), vdupq_n_u32(120 << 23));
                // Below the normal numbers there is no leading one: the next exponent's, which has one, less that one.
                let small = vcltq_u32(magnitude, vdupq_n_u32(8));
                let bits = vaddq_u32(bits, vandq_u32(small, vdupq_n_u32(1 << 23)));
                let less = vandq_u32(small, vdupq_n_u32(SMALLEST_NORMAL.to_bits()));
                let value = vsubq_f32(vreinterpretq_f32_u32(bits), vreinterpretq_f32_u32(less));
                let nan = vceqq_u32(magnitude, vdupq_n_u32(0x7f));
                let value = vbslq_u32(nan, vdupq_n_u32(f32::NAN.to_bits()), vreinterpretq_u32_f32(value));
                let sign = vshlq_n_u32::<24>(vandq_u32(words, vdupq_n_u32(0x80)));
                vreinterpretq_f32_u32(vorrq_u32(value, sign))
            })
        }
    }
    #[inline(always)]
    fn f16(self, words: Self::I) -> Self::F {
        // SAFETY: every AArch64 machine has NEON.
        unsafe {
            words.map(|words| {
                let magnitude = vandq_u32(words, vdupq_n_u32(0x7fff));
                // The exponent's bias goes from 15 to 127 by a product, which subnormal numbers take part in.
                let bits = vreinterpretq_f32_u32(vshlq_n_u32::<13>(magnitude));
                let value = vreinterpretq_u32_f32(vmulq_n_f32(bits, F16_UNIT));
                let beyond = vandq_u32(vcgtq_u32(magnitude, vdupq_n_u32(0x7bff)), vdupq_n_u32(0x7f80_0000));
                let sign = vshlq_n_u32::<16>(vandq_u32(words, vdupq_n_u32(0x8000)));
                vreinterpretq_f32_u32(vorrq_u32(vorrq_u32(value, beyond), sign))
            })
        }
    }
    #[inline(always)]
    fn bf16(self, words: Self::I) -> Self::F {
        // SAFETY: every AArch64 machine has NEON.
        unsafe { words.map(|words| vreinterpretq_f32_u32(vshlq_n_u32::<16>(words))) }
    }
    #[inline(always)]
    fn table(self, values: &[f32; 16]) -> uint8x16x4_t {
        // SAFETY: there are 64 bytes.
        unsafe { vld1q_u8_x4(values.as_ptr().cast()) }
    }
    #[inline(always)]
    fn lookup(self, table: uint8x16x4_t, words: Self::I) -> Self::F {
        // SAFETY: every AArch64 machine has NEON.
        unsafe {
            words.map(|words| {
                // The four bytes of float i are bytes 4 i to 4 i + 3.
                let index = vandq_u32(words, vdupq_n_u32(15));
                let bytes = vmlaq_u32(vdupq_n_u32(0x0302_0100), index, vdupq_n_u32(0x0404_0404));
                vreinterpretq_f32_u8(vqtbl4q_u8(table, vreinterpretq_u8_u32(bytes)))
            })
        }
    }
    #[inline(always)]
    fn lookup_far(self, table: &[f32; 256], words: Self::I) -> Self::F {
        let mut lanes = [0_u32; 8];
        // SAFETY: there is room for 8 words, and there are 8 floats.
        unsafe {
            vst1q_u32(lanes.as_mut_ptr(), words[0]);
            vst1q_u32(lanes.as_mut_ptr().add(4), words[1]);
            let values = lanes.map(|lane| table[usize::from(lane as u8)]);
            self.load(values.as_ptr())
        }
    }
    #[inline(always)]
    fn ranks(self, thresholds: &Thresholds) -> Self::Ranks {
        (self.splat(thresholds.values[7]), thresholds.steps().map(|step| self.table(&step)))
    }
    #[inline(always)]
    fn rank(self, (first, [second, third, fourth]): Self::Ranks, x: Self::F) -> Self::I {
        let rank = self.raise(self.splat_words(0), self.splat_words(8), x, first);
        let rank = self.raise(rank, self.splat_words(4), x, self.lookup(second, rank));
        let rank = self.raise(rank, self.splat_words(2), x, self.lookup(third, rank));
        self.raise(rank, self.splat_words(1), x, self.lookup(fourth, rank))
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Self::F {
        // SAFETY: the caller's promise.
        unsafe { [vld1q_f32(from), vld1q_f32(from.add(4))] }
    }
    #[inline(always)]
    unsafe fn load_some(self, from: *const f32, count: usize) -> Self::F {
        let mut values = [0.0; 8];
        // SAFETY: the caller promises `count` floats, and there is room for 8.
        unsafe {
            std::ptr::copy_nonoverlapping(from, values.as_mut_ptr(), count);
            self.load(values.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: Self::F) {
        // SAFETY: the caller's promise.
        unsafe {
            vst1q_f32(to, value[0]);
            vst1q_f32(to.add(4), value[1]);
        }
    }
    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut u8, words: Self::I) {
        // SAFETY: the caller promises 8 bytes.
        unsafe { vst1_u8(to, vmovn_u16(vcombine_u16(vmovn_u32(words[0]), vmovn_u32(words[1])))) }
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
        // SAFETY: the caller's promise.
        unsafe { [vreinterpretq_u32_u8(vld1q_u8(from)), vreinterpretq_u32_u8(vld1q_u8(from.add(16)))] }
    }
    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> Self::I {
        // SAFETY: the caller promises 8 bytes.
        unsafe {
            let pairs = vmovl_u8(vld1_u8(from));
            [vmovl_u16(vget_low_u16(pairs)), vmovl_u16(vget_high_u16(pairs))]
        }
    }
    #[inline(always)]
    unsafe fn load_signed(self, from: *const u8) -> Self::I {
        // SAFETY: the caller promises 8 bytes.
        unsafe {
            let pairs = vmovl_s8(vld1_s8(from.cast()));
            let words = [vmovl_s16(vget_low_s16(pairs)), vmovl_s16(vget_high_s16(pairs))];
            words.map(|words| vreinterpretq_u32_s32(words))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> Self::F {
        // SAFETY: the caller's promise.
        self.f16(unsafe { load_halves(from) })
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> Self::F {
        // SAFETY: the caller's promise.
        self.bf16(unsafe { load_halves(from) })
    }
    #[inline(always)]
    unsafe fn spread_words(self, from: *const u8, bits: usize) -> Self::I {
        // SAFETY: the caller promises `bits` bytes.
        self.splat_words(unsafe {
            match bits {
                1 => u32::from(*from),
                2 => u32::from(from.cast::<u16>().read_unaligned()),
                _ => from.cast::<u32>().read_unaligned(),
            }
        })
    }
    #[inline(always)]
    unsafe fn load_stream<const BITS: usize>(self, from: *const u8) -> Self::I {
        // SAFETY: the caller promises 16 bytes.
        unsafe {
            let bytes = const { stream_bytes(BITS) };
            let shifts = const { stream_shifts(BITS) };
            let codes = vld1q_u8(from);
            let pairs = [vld1q_u8(bytes.as_ptr()), vld1q_u8(bytes.as_ptr().add(16))]
                .map(|bytes| vreinterpretq_u32_u8(vqtbl1q_u8(codes, bytes)));
            let words = self.shift_each(pairs, self.load_words(shifts.as_ptr().cast()));
            self.and(words, self.splat_words((1 << BITS) - 1))
        }
    }
    #[inline(always)]
    unsafe fn load_spans<const BITS: usize>(self, from: *const u8) -> Self::I {
        // SAFETY: the caller promises 16 bytes behind the words.
        unsafe {
            let bytes: [u8; 16] = const { span_shuffle(BITS, &[0]) };
            let bytes = vld1q_u8(bytes.as_ptr());
            let words =
                [from, from.add(span_bytes(BITS))].map(|from| vreinterpretq_u32_u8(vqtbl1q_u8(vld1q_u8(from), bytes)));
            let shifts = const { stream_shifts(BITS) };
            self.shift_each(words, self.load_words(shifts.as_ptr().cast()))
        }
    }
    #[inline(always)]
    unsafe fn spread(self, from: *const f32, count: usize, index: Self::I) -> Self::F {
        let mut lanes = [0_u32; 8];
        // SAFETY: there is room for 8 words; the caller promises `count` floats.
        unsafe {
            vst1q_u32(lanes.as_mut_ptr(), index[0]);
            vst1q_u32(lanes.as_mut_ptr().add(4), index[1]);
            let values = lanes.map(|i| if (i as usize) < count { *from.add(i as usize) } else { 0.0 });
            self.load(values.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn gather(self, from: *const u8, map: &[f32; 256]) -> Self::F {
        // SAFETY: the caller promises 8 bytes, and there are 8 floats.
        unsafe {
            let values = from.cast::<[u8; 8]>().read().map(|byte| map[usize::from(byte)]);
            self.load(values.as_ptr())
        }
    }
    #[inline(always)]
    fn prefetch(self, from: *const u8) {
        // SAFETY: a prefetch of an address that is not readable does nothing.
        unsafe { std::arch::asm!("prfm pldl1keep, [{}]", in(reg) from, options(nostack, readonly, preserves_flags)) };
    }
    #[inline(always)]
    unsafe fn transpose_to(self, from: *const u8, stride: usize, to: *mut u32, to_stride: usize) {
        for (row, column) in [(0, 0), (0, 4), (4, 0), (4, 4)] {
            // SAFETY: the caller promises 8 rows of 32 bytes and 8 of 8 words; this is a quarter of each.
            unsafe {
                let from = from.add(row * stride + 4 * column);
                let a = vreinterpretq_u32_u8(vld1q_u8(from));
                let b = vreinterpretq_u32_u8(vld1q_u8(from.add(stride)));
                let c = vreinterpretq_u32_u8(vld1q_u8(from.add(2 * stride)));
                let d = vreinterpretq_u32_u8(vld1q_u8(from.add(3 * stride)));
                let (ab_even, ab_odd) = (vtrn1q_u32(a, b), vtrn2q_u32(a, b));
                let (cd_even, cd_odd) = (vtrn1q_u32(c, d), vtrn2q_u32(c, d));
                let [p, q] = [ab_even, ab_odd].map(|pair| vreinterpretq_u64_u32(pair));
                let [r, s] = [cd_even, cd_odd].map(|pair| vreinterpretq_u64_u32(pair));
                for (i, lane) in
                    [vtrn1q_u64(p, r), vtrn1q_u64(q, s), vtrn2q_u64(p, r), vtrn2q_u64(q, s)].into_iter().enumerate()
                {
                    vst1q_u32(to.add((column + i) * to_stride + row), vreinterpretq_u32_u64(lane));
                }
            }
        }
    }
}
