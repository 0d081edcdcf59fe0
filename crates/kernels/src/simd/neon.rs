//! NEON: vectors are pairs of registers, and a table of sixteen floats is the 64 bytes that one instruction looks up.

#[allow(clippy::wildcard_imports)]
use std::arch::aarch64::*;

use super::{
    ranks::rank_by_steps,
    thresholds::Thresholds,
    vector::{Kernel, SMALLEST_NORMAL, Simd, span_bytes, span_shuffle, stream_shifts, stream_shuffle},
};

// Every method may use the instructions: all machines that this is compiled for have them. With `SDOT` there is `sdot` too.
#[derive(Clone, Copy)]
pub(super) struct Neon<const SDOT: bool>;

type F = [float32x4_t; 2];
type I = [uint32x4_t; 2];
type T = uint8x16x4_t;

pub(super) fn is_available() -> bool {
    true
}

/// # Safety
/// None is asked for: this has the form of the other instruction sets.
// Apart from its caller: in one function with much else, what a loop sums would not stay in the registers.
#[inline(never)]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Neon::<false>)
}

/// Applies an intrinsic to both registers of its arguments.
macro_rules! both {
    ($intrinsic:ident($($a:expr),+)) => {
        [$intrinsic($($a[0]),+), $intrinsic($($a[1]),+)]
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

impl<const SDOT: bool> Simd for Neon<SDOT> {
    type F = F;
    type I = I;
    type T = T;
    type Far<'t> = &'t [f32; 256];
    /// The eighth threshold, and those of the later steps.
    type Ranks = (F, [T; 3]);
    const LANES: usize = 8;
    const ROWS: usize = 6;

    methods! { by token;
        fn splat(self, value: f32) -> F = [vdupq_n_f32(value); 2];
        fn splat_words(self, value: u32) -> I = [vdupq_n_u32(value); 2];
        fn add(self, a: F, b: F) -> F = both!(vaddq_f32(a, b));
        fn sub(self, a: F, b: F) -> F = both!(vsubq_f32(a, b));
        fn mul(self, a: F, b: F) -> F = both!(vmulq_f32(a, b));
        fn div(self, a: F, b: F) -> F = both!(vdivq_f32(a, b));
        fn fma(self, a: F, b: F, c: F) -> F = both!(vfmaq_f32(c, a, b));
        // The instructions for the next two know more of NaN than these ask for.
        fn max(self, a: F, b: F) -> F = { let greater = both!(vcgtq_f32(a, b)); both!(vbslq_f32(greater, a, b)) };
        fn min(self, a: F, b: F) -> F = { let less = both!(vcltq_f32(a, b)); both!(vbslq_f32(less, a, b)) };
        fn keep(self, values: F, a: F, b: F) -> F = {
            let (bits, less) = (self.words(values), both!(vcltq_f32(a, b)));
            self.floats(both!(vbicq_u32(bits, less)))
        };
        fn scale(self, value: F, exponents: I) -> F =
            self.floats(self.add_words(self.words(value), exponents.map(|exponents| vshlq_n_u32::<23>(exponents))));
        fn words(self, a: F) -> I = both!(vreinterpretq_u32_f32(a));
        fn max_lane(self, a: F) -> f32 = vmaxvq_f32(vmaxq_f32(a[0], a[1]));
        fn sum(self, a: F) -> f32 = vaddvq_f32(vaddq_f32(a[0], a[1]));
        fn and(self, a: I, b: I) -> I = both!(vandq_u32(a, b));
        fn add_words(self, a: I, b: I) -> I = both!(vaddq_u32(a, b));
        fn max_words(self, a: I, b: I) -> I = both!(vmaxq_u32(a, b));
        fn max_word(self, words: I) -> u32 = vmaxvq_u32(vmaxq_u32(words[0], words[1]));
        fn raise(self, words: I, by: I, a: F, b: F) -> I = {
            let greater = both!(vcgtq_f32(a, b));
            self.add_words(words, self.and(greater, by))
        };
        fn all_less(self, a: F, b: F) -> bool = {
            let less = both!(vcltq_f32(a, b));
            vminvq_u32(vandq_u32(less[0], less[1])) != 0
        };
        fn floats(self, words: I) -> F = both!(vreinterpretq_f32_u32(words));
        // Shifts to the right are to the left by a negative number.
        fn shift_each(self, words: I, bits: I) -> I = {
            let left = bits.map(|bits| vnegq_s32(vreinterpretq_s32_u32(bits)));
            both!(vshlq_u32(words, left))
        };
        fn signed(self, words: I) -> F =
            words.map(|words| vcvtq_f32_s32(vshrq_n_s32::<24>(vshlq_n_s32::<24>(vreinterpretq_s32_u32(words)))));
        fn to_float(self, words: I) -> F = words.map(|words| vcvtq_f32_s32(vreinterpretq_s32_u32(words)));
        fn bf16(self, words: I) -> F = words.map(|words| vreinterpretq_f32_u32(vshlq_n_u32::<16>(words)));
        fn table(self, values: &[f32; 16]) -> T = vld1q_u8_x4(values.as_ptr().cast());
        fn e4m3(self, words: I) -> F = {
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
        };
        fn f16(self, words: I) -> F = {
            words.map(|words| {
                let magnitude = vandq_u32(words, vdupq_n_u32(0x7fff));
                // The exponent's bias goes from 15 to 127 by a product, which subnormal numbers take part in.
                let bits = vreinterpretq_f32_u32(vshlq_n_u32::<13>(magnitude));
                let value = vreinterpretq_u32_f32(vmulq_n_f32(bits, F16_UNIT));
                let beyond = vandq_u32(vcgtq_u32(magnitude, vdupq_n_u32(0x7bff)), vdupq_n_u32(0x7f80_0000));
                let sign = vshlq_n_u32::<16>(vandq_u32(words, vdupq_n_u32(0x8000)));
                vreinterpretq_f32_u32(vorrq_u32(vorrq_u32(value, beyond), sign))
            })
        };
        fn lookup(self, table: T, words: I) -> F = {
            words.map(|words| {
                // The four bytes of float i are bytes 4 i to 4 i + 3.
                let index = vandq_u32(words, vdupq_n_u32(15));
                let bytes = vmlaq_u32(vdupq_n_u32(0x0302_0100), index, vdupq_n_u32(0x0404_0404));
                vreinterpretq_f32_u8(vqtbl4q_u8(table, vreinterpretq_u8_u32(bytes)))
            })
        };
        fn lookup_far(self, table: Self::Far<'_>, words: I) -> F = {
            let mut lanes = [0_u32; 8];
            vst1q_u32(lanes.as_mut_ptr(), words[0]);
            vst1q_u32(lanes.as_mut_ptr().add(4), words[1]);
            let values = lanes.map(|lane| table[usize::from(lane as u8)]);
            self.load(values.as_ptr())
        };
    }
    methods! { safe;
        fn far(self, values: &[f32; 256]) -> &[f32; 256] = values;
        fn ranks(self, thresholds: &Thresholds) -> (F, [T; 3]) =
            (self.splat(thresholds.values[7]), thresholds.steps().map(|step| self.table(&step)));
        fn rank(self, (first, later): (F, [T; 3]), x: F) -> I = rank_by_steps(self, first, later, x);
    }
    methods! { by promise;
        unsafe fn load(self, from: *const f32) -> F = [vld1q_f32(from), vld1q_f32(from.add(4))];
        unsafe fn store(self, to: *mut f32, value: F) -> () = {
            vst1q_f32(to, value[0]);
            vst1q_f32(to.add(4), value[1]);
        };
        unsafe fn store_bytes(self, to: *mut u8, words: I) -> () =
            vst1_u8(to, vmovn_u16(vcombine_u16(vmovn_u32(words[0]), vmovn_u32(words[1]))));
        unsafe fn load_words(self, from: *const u8) -> I =
            [from, from.add(16)].map(|from| vreinterpretq_u32_u8(vld1q_u8(from)));
        unsafe fn load_f16(self, from: *const u8) -> F = self.f16(load_halves(from));
        unsafe fn load_bf16(self, from: *const u8) -> F = self.bf16(load_halves(from));
        unsafe fn load_bytes(self, from: *const u8) -> I = {
            let pairs = vmovl_u8(vld1_u8(from));
            [vmovl_u16(vget_low_u16(pairs)), vmovl_u16(vget_high_u16(pairs))]
        };
        unsafe fn load_signed(self, from: *const u8) -> I = {
            let pairs = vmovl_s8(vld1_s8(from.cast()));
            let words = [vmovl_s16(vget_low_s16(pairs)), vmovl_s16(vget_high_s16(pairs))];
            words.map(|words| vreinterpretq_u32_s32(words))
        };
        unsafe fn load_some(self, from: *const f32, count: usize) -> F = {
            let mut values = [0.0; 8];
            std::ptr::copy_nonoverlapping(from, values.as_mut_ptr(), count);
            self.load(values.as_ptr())
        };
        unsafe fn store_some(self, to: *mut f32, count: usize, value: F) -> () = {
            let mut values = [0.0; 8];
            self.store(values.as_mut_ptr(), value);
            std::ptr::copy_nonoverlapping(values.as_ptr(), to, count);
        };
        unsafe fn spread_words(self, from: *const u8, bits: usize) -> I = self.splat_words(match bits {
            1 => u32::from(*from),
            2 => u32::from(from.cast::<u16>().read_unaligned()),
            _ => from.cast::<u32>().read_unaligned(),
        });
        unsafe fn load_stream<const BITS: usize>(self, from: *const u8) -> I = {
            let bytes = const { stream_shuffle::<32>(BITS) };
            let shifts = const { stream_shifts(BITS) };
            let codes = vld1q_u8(from);
            let pairs = [vld1q_u8(bytes.as_ptr()), vld1q_u8(bytes.as_ptr().add(16))]
                .map(|bytes| vreinterpretq_u32_u8(vqtbl1q_u8(codes, bytes)));
            let words = self.shift_each(pairs, self.load_words(shifts.as_ptr().cast()));
            self.and(words, self.splat_words((1 << BITS) - 1))
        };
        unsafe fn load_spans<const BITS: usize>(self, from: *const u8) -> I = {
            let bytes: [u8; 16] = const { span_shuffle(BITS, &[0]) };
            let bytes = vld1q_u8(bytes.as_ptr());
            let words =
                [from, from.add(span_bytes(BITS))].map(|from| vreinterpretq_u32_u8(vqtbl1q_u8(vld1q_u8(from), bytes)));
            let shifts = const { stream_shifts(BITS) };
            self.shift_each(words, self.load_words(shifts.as_ptr().cast()))
        };
        unsafe fn spread(self, from: *const f32, count: usize, index: I) -> F = {
            let mut lanes = [0_u32; 8];
            vst1q_u32(lanes.as_mut_ptr(), index[0]);
            vst1q_u32(lanes.as_mut_ptr().add(4), index[1]);
            let values = lanes.map(|i| if (i as usize) < count { *from.add(i as usize) } else { 0.0 });
            self.load(values.as_ptr())
        };
        unsafe fn transpose_to(self, from: *const u8, stride: usize, to: *mut u32, to_stride: usize) -> () = {
            for (row, column) in [(0, 0), (0, 4), (4, 0), (4, 4)] {
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
        };
    }
}
