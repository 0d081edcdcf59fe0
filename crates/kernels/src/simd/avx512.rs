//! AVX-512: a table of sixteen floats sits in one register.

#[allow(clippy::wildcard_imports)]
use std::arch::x86_64::*;

use crate::minifloat::e4m3;

use super::{
    ranks::rank_by_steps,
    thresholds::Thresholds,
    vector::{Kernel, SMALLEST_NORMAL, Simd, span_bytes, span_shuffle, stream_shifts, stream_shuffle},
};

#[derive(Clone, Copy)]
pub(super) struct Avx512(());

type F = __m512;
type I = __m512i;

impl Avx512 {
    /// # Safety
    /// [`is_available`].
    #[inline(always)]
    pub(super) unsafe fn assume() -> Self {
        Self(())
    }
}

pub(super) fn is_available() -> bool {
    super::avx2::is_available()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
}

/// # Safety
/// [`is_available`].
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq")]
// Apart from its caller: in one function with much else, what a loop sums would not stay in the registers.
#[inline(never)]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
}

/// Words of four times 16 bytes, of which each has four words of `bits` bits of a stream.
const fn span_lanes(bits: usize) -> [u32; 16] {
    let mut lanes = [0; 16];
    let mut i = 0;
    while i < 16 {
        lanes[i] = (i / 4 * span_bytes(bits) / 4 + i % 4) as u32;
        i += 1;
    }
    lanes
}

/// Where in each 16 bytes of [`span_lanes`] they start.
const fn span_starts(bits: usize) -> [usize; 4] {
    let each = span_bytes(bits);
    [0, each % 4, 2 * each % 4, 3 * each % 4]
}

/// The upper halves of the E4M3 floats without a sign, whose lower halves are zeros.
static E4M3: [u16; 128] = {
    let mut halves = [0; 128];
    let mut byte = 0;
    while byte < 128 {
        halves[byte] = (e4m3(byte as u8).to_bits() >> 16) as u16;
        byte += 1;
    }
    halves
};

/// The mask of the first `count` <= 16 lanes.
#[inline(always)]
const fn first(count: usize) -> __mmask16 {
    ((1_u32 << count) - 1) as __mmask16
}

/// What finds the rank of a float among thresholds.
#[derive(Clone, Copy)]
pub(super) enum Ranks {
    /// The threshold in each of 32 cells, and how many are below.
    Cells { factor: F, thresholds: [F; 2], ranks: [I; 2] },
    /// The eighth threshold, and those of the later steps of a binary search.
    Steps(F, [F; 3]),
}

impl Simd for Avx512 {
    type F = F;
    type I = I;
    type T = F;
    type Far<'t> = [F; 16];
    type Ranks = Ranks;
    const LANES: usize = 16;
    const ROWS: usize = 14;

    methods! { by token;
        fn splat(self, value: f32) -> F = _mm512_set1_ps(value);
        fn splat_words(self, value: u32) -> I = _mm512_set1_epi32(value as i32);
        fn add(self, a: F, b: F) -> F = _mm512_add_ps(a, b);
        fn sub(self, a: F, b: F) -> F = _mm512_sub_ps(a, b);
        fn mul(self, a: F, b: F) -> F = _mm512_mul_ps(a, b);
        fn div(self, a: F, b: F) -> F = _mm512_div_ps(a, b);
        fn fma(self, a: F, b: F, c: F) -> F = _mm512_fmadd_ps(a, b, c);
        fn max(self, a: F, b: F) -> F = _mm512_max_ps(a, b);
        fn min(self, a: F, b: F) -> F = _mm512_min_ps(a, b);
        fn keep(self, values: F, a: F, b: F) -> F = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(a, b), values);
        fn words(self, a: F) -> I = _mm512_castps_si512(a);
        fn max_lane(self, a: F) -> f32 = _mm512_reduce_max_ps(a);
        fn sum(self, a: F) -> f32 = _mm512_reduce_add_ps(a);
        fn and(self, a: I, b: I) -> I = _mm512_and_si512(a, b);
        fn add_words(self, a: I, b: I) -> I = _mm512_add_epi32(a, b);
        fn max_words(self, a: I, b: I) -> I = _mm512_max_epi32(a, b);
        fn max_word(self, words: I) -> u32 = _mm512_reduce_max_epi32(words) as u32;
        fn raise(self, words: I, by: I, a: F, b: F) -> I =
            _mm512_mask_add_epi32(words, _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b), words, by);
        fn all_less(self, a: F, b: F) -> bool = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b) == 0xffff;
        fn floats(self, words: I) -> F = _mm512_castsi512_ps(words);
        fn shift_each(self, words: I, bits: I) -> I = _mm512_srlv_epi32(words, bits);
        fn signed(self, words: I) -> F = _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(words)));
        fn to_float(self, words: I) -> F = _mm512_cvtepi32_ps(words);
        fn f16(self, words: I) -> F = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words));
        fn bf16(self, words: I) -> F = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words));
        fn table(self, values: &[f32; 16]) -> F = _mm512_loadu_ps(values.as_ptr());
        fn lookup(self, table: F, words: I) -> F = _mm512_permutexvar_ps(words, table);
        fn scale(self, value: F, exponents: I) -> F = {
            let bits = _mm512_castps_si512(value);
            _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_slli_epi32::<23>(exponents)))
        };
        fn e4m3(self, words: I) -> F = {
            let magnitude = _mm512_and_si512(words, _mm512_set1_epi32(0x7f));
            let bits = _mm512_add_epi32(_mm512_slli_epi32::<20>(magnitude), _mm512_set1_epi32(120 << 23));
            // Below the normal numbers there is no leading one: the next exponent's, which has one, less that one.
            let small = _mm512_testn_epi32_mask(words, _mm512_set1_epi32(0x78));
            let bits = _mm512_mask_add_epi32(bits, small, bits, _mm512_set1_epi32(1 << 23));
            let value = _mm512_castsi512_ps(bits);
            let value = _mm512_mask_sub_ps(value, small, value, self.splat(SMALLEST_NORMAL));
            let nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f));
            let value = _mm512_mask_mov_ps(value, nan, self.splat(f32::NAN));
            let sign = _mm512_slli_epi32::<24>(_mm512_and_si512(words, _mm512_set1_epi32(0x80)));
            _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(value), sign))
        };
        fn sum_four(self, all: [F; 4]) -> [f32; 4] = {
            // As one by one: upper halves are added to lower ones, down to four lanes, and then lanes two apart.
            let mut quarters = [_mm_setzero_ps(); 4];
            for (quarter, all) in quarters.iter_mut().zip(all) {
                let half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps::<1>(all));
                *quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
            }
            let [a, b, c, d] = quarters;
            let ab = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
            let cd = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
            let sums = _mm_add_ps(_mm_shuffle_ps::<0x88>(ab, cd), _mm_shuffle_ps::<0xdd>(ab, cd));
            let mut four = [0.0; 4];
            _mm_storeu_ps(four.as_mut_ptr(), sums);
            four
        };
        fn ranks(self, thresholds: &Thresholds) -> Ranks = if let Some(cells) = &thresholds.cells {
            let [low, high] = [0, 16].map(|at| _mm512_loadu_ps(cells.thresholds.as_ptr().add(at)));
            let [first, second] = [0, 16].map(|at| _mm512_loadu_si512(cells.ranks.as_ptr().add(at).cast()));
            Ranks::Cells { factor: self.splat(cells.factor), thresholds: [low, high], ranks: [first, second] }
        } else {
            Ranks::Steps(self.splat(thresholds.values[7]), thresholds.steps().map(|step| self.table(&step)))
        };
        fn rank(self, ranks: Ranks, x: F) -> I = match ranks {
            Ranks::Cells { factor, thresholds, ranks } => {
                let scaled = self.mul(x, factor);
                let scaled = self.min(self.max(scaled, self.splat(-16.0)), self.splat(15.0));
                // Of the cell, 5 bits count.
                let cell = _mm512_cvtps_epi32(scaled);
                let threshold = _mm512_permutex2var_ps(thresholds[0], cell, thresholds[1]);
                let rank = _mm512_permutex2var_epi32(ranks[0], cell, ranks[1]);
                self.raise(rank, self.splat_words(1), x, threshold)
            }
            Ranks::Steps(first, later) => rank_by_steps(self, first, later, x),
        };
        fn far(self, values: &[f32; 256]) -> [F; 16] = {
            let mut table = [_mm512_setzero_ps(); 16];
            for (sixteen, values) in table.iter_mut().zip(values.as_chunks::<16>().0) {
                *sixteen = _mm512_loadu_ps(values.as_ptr());
            }
            table
        };
        fn lookup_far(self, table: Self::Far<'_>, words: I) -> F = {
            let mut eighths = [table[0]; 8];
            // Of a word, 5 bits count here, and then one more in each step.
            for (eighth, [low, high]) in eighths.iter_mut().zip(table.as_chunks::<2>().0) {
                *eighth = _mm512_permutex2var_ps(*low, words, *high);
            }
            let mut quarters = [table[0]; 4];
            let upper = _mm512_test_epi32_mask(words, _mm512_set1_epi32(0x20));
            for (quarter, [low, high]) in quarters.iter_mut().zip(eighths.as_chunks::<2>().0) {
                *quarter = _mm512_mask_mov_ps(*low, upper, *high);
            }
            let upper = _mm512_test_epi32_mask(words, _mm512_set1_epi32(0x40));
            let low = _mm512_mask_mov_ps(quarters[0], upper, quarters[1]);
            let high = _mm512_mask_mov_ps(quarters[2], upper, quarters[3]);
            _mm512_mask_mov_ps(low, _mm512_test_epi32_mask(words, _mm512_set1_epi32(0x80)), high)
        };
    }
    methods! { by promise;
        unsafe fn load(self, from: *const f32) -> F = _mm512_loadu_ps(from);
        unsafe fn load_some(self, from: *const f32, count: usize) -> F = _mm512_maskz_loadu_ps(first(count), from);
        unsafe fn store(self, to: *mut f32, value: F) -> () = _mm512_storeu_ps(to, value);
        unsafe fn store_some(self, to: *mut f32, count: usize, value: F) -> () =
            _mm512_mask_storeu_ps(to, first(count), value);
        unsafe fn store_bytes(self, to: *mut u8, words: I) -> () = _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(words));
        unsafe fn load_words(self, from: *const u8) -> I = _mm512_loadu_si512(from.cast());
        unsafe fn load_bytes(self, from: *const u8) -> I = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
        unsafe fn load_signed(self, from: *const u8) -> I = _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()));
        unsafe fn load_f16(self, from: *const u8) -> F = _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()));
        unsafe fn load_bf16(self, from: *const u8) -> F = self.bf16(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())));
        unsafe fn spread(self, from: *const f32, count: usize, index: I) -> F =
            _mm512_permutexvar_ps(index, self.load_some(from, count));
        unsafe fn store_four(self, to: *mut u8, [a, b, c, d]: [I; 4]) -> () = {
            const ODD_BYTES: u64 = 0xaaaa_aaaa_aaaa_aaaa;
            const ODD_PAIRS: u32 = 0xaaaa_aaaa;
            // Word i of the four, in its four bytes; then the first bytes of a lane's four words together, and so on.
            let ab = _mm512_mask_mov_epi8(a, ODD_BYTES, _mm512_slli_epi32::<8>(b));
            let cd = _mm512_mask_mov_epi8(c, ODD_BYTES, _mm512_slli_epi32::<8>(d));
            let all = _mm512_mask_mov_epi16(ab, ODD_PAIRS, _mm512_slli_epi32::<16>(cd));
            let turn = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            let lanes = _mm512_shuffle_epi8(all, _mm512_broadcast_i32x4(turn));
            let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            _mm512_storeu_si512(to.cast(), _mm512_permutexvar_epi32(order, lanes));
        };
        unsafe fn spread_words(self, from: *const u8, bits: usize) -> I = match bits {
            1 => _mm512_set1_epi32(i32::from(from.cast::<u16>().read_unaligned())),
            2 => _mm512_set1_epi32(from.cast::<i32>().read_unaligned()),
            _ => {
                let low = _mm512_broadcastd_epi32(_mm_loadu_si32(from));
                _mm512_mask_broadcastd_epi32(low, 0xff00, _mm_loadu_si32(from.add(4)))
            }
        };
        unsafe fn load_e4m3<const SECOND: bool>(self, from: *const u8) -> F = {
            let bytes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(from.cast()));
            let mut quarters = [_mm512_setzero_si512(); 4];
            for (quarter, from) in quarters.iter_mut().zip(E4M3.as_chunks::<32>().0) {
                *quarter = _mm512_loadu_si512(from.as_ptr().cast());
            }
            let low = _mm512_permutex2var_epi16(quarters[0], bytes, quarters[1]);
            let high = _mm512_permutex2var_epi16(quarters[2], bytes, quarters[3]);
            let is_high = _mm512_test_epi16_mask(bytes, _mm512_set1_epi16(0x40));
            let magnitudes = _mm512_mask_mov_epi16(low, is_high, high);
            let signs = _mm512_slli_epi16::<8>(bytes);
            // The sign of one, and the magnitude of the other.
            let halves = _mm512_ternarylogic_epi32::<0xe4>(magnitudes, signs, _mm512_set1_epi16(0x7fff));
            self.floats(if SECOND {
                _mm512_and_si512(halves, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()))
            } else {
                _mm512_slli_epi32::<16>(halves)
            })
        };
        unsafe fn unpack<const BITS: usize>(self, from: *const u8, above: u8, to: *mut u8) -> () =
            super::avx2::unpack::<BITS>(from, above, to);
        unsafe fn load_stream<const BITS: usize>(self, from: *const u8) -> I = {
            let bytes = const { stream_shuffle::<64>(BITS) };
            let shifts = const { stream_shifts(BITS) };
            let codes = _mm512_broadcast_i32x4(_mm_loadu_si128(from.cast()));
            let pairs = _mm512_shuffle_epi8(codes, _mm512_loadu_si512(bytes.as_ptr().cast()));
            let words = _mm512_srlv_epi32(pairs, _mm512_loadu_si512(shifts.as_ptr().cast()));
            _mm512_and_si512(words, _mm512_set1_epi32((1 << BITS) - 1))
        };
        unsafe fn load_spans<const BITS: usize>(self, from: *const u8) -> I = {
            let lanes = const { span_lanes(BITS) };
            let bytes: [u8; 64] = const { span_shuffle(BITS, &span_starts(BITS)) };
            let all = _mm512_maskz_loadu_epi32(first(span_bytes(BITS)), from.cast());
            let lanes = _mm512_permutexvar_epi32(_mm512_loadu_si512(lanes.as_ptr().cast()), all);
            let words = _mm512_shuffle_epi8(lanes, _mm512_loadu_si512(bytes.as_ptr().cast()));
            if BITS.is_multiple_of(8) {
                return words;
            }
            let shifts = const { stream_shifts(BITS) };
            _mm512_srlv_epi32(words, _mm512_loadu_si512(shifts.as_ptr().cast()))
        };
        unsafe fn transpose_to(self, from: *const u8, stride: usize, to: *mut u32, to_stride: usize) -> () = {
            // Four rows at a time into 128-bit lanes of four words, then the lanes themselves.
            let zero = _mm512_setzero_si512();
            let mut quads = [[zero; 4]; 4];
            for q in 0..4 {
                let row = from.add(4 * q * stride);
                let a = _mm512_loadu_si512(row.cast());
                let b = _mm512_loadu_si512(row.add(stride).cast());
                let c = _mm512_loadu_si512(row.add(2 * stride).cast());
                let d = _mm512_loadu_si512(row.add(3 * stride).cast());
                let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
                let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
                let words = [
                    _mm512_unpacklo_epi64(ab_low, cd_low),
                    _mm512_unpackhi_epi64(ab_low, cd_low),
                    _mm512_unpacklo_epi64(ab_high, cd_high),
                    _mm512_unpackhi_epi64(ab_high, cd_high),
                ];
                for (quad, word) in quads.iter_mut().zip(words) {
                    quad[q] = word;
                }
            }
            for (word, quad) in quads.into_iter().enumerate() {
                let [a, b, c, d] = quad;
                let (ab_even, ab_odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
                let (cd_even, cd_odd) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
                let lanes = [
                    _mm512_shuffle_i32x4::<0x88>(ab_even, cd_even),
                    _mm512_shuffle_i32x4::<0x88>(ab_odd, cd_odd),
                    _mm512_shuffle_i32x4::<0xdd>(ab_even, cd_even),
                    _mm512_shuffle_i32x4::<0xdd>(ab_odd, cd_odd),
                ];
                for (lane, value) in lanes.into_iter().enumerate() {
                    _mm512_storeu_si512(to.add((4 * lane + word) * to_stride).cast(), value);
                }
            }
        };
    }
}
