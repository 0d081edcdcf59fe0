//! AVX-512: a table of sixteen floats sits in one register.

#[allow(clippy::wildcard_imports)]
use std::arch::x86_64::*;

use super::{
    thresholds::Thresholds,
    vector::{Kernel, SMALLEST_NORMAL, Simd, span_bytes, span_shuffle, stream_byte, stream_shifts},
};

#[derive(Clone, Copy)]
pub(super) struct Avx512(());

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
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
}

/// A shuffle that brings the two bytes that hold code `i` of a stream to the bottom of word `i`.
const fn stream_bytes(bits: usize) -> [u8; 64] {
    // An index with the top bit set gives a zero.
    let mut shuffle = [0x80; 64];
    let mut i = 0;
    while i < 16 {
        shuffle[4 * i] = stream_byte(bits, i) as u8;
        shuffle[4 * i + 1] = stream_byte(bits, i) as u8 + 1;
        i += 1;
    }
    shuffle
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

/// The mask of the first `count` <= 16 lanes.
#[inline(always)]
const fn first(count: usize) -> __mmask16 {
    ((1_u32 << count) - 1) as __mmask16
}

/// What finds the rank of a float among thresholds.
#[derive(Clone, Copy)]
pub(super) enum Ranks {
    /// The threshold in each of 32 cells, and how many are below.
    Cells { factor: __m512, thresholds: [__m512; 2], ranks: [__m512i; 2] },
    /// The eighth threshold, and those of the later steps of a binary search.
    Steps([__m512; 4]),
}

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    type T = __m512;
    type Ranks = Ranks;
    const LANES: usize = 16;
    const ROWS: usize = 14;

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    fn splat_words(self, value: u32) -> __m512i {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_set1_epi32(value as i32) }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn keep(self, values: __m512, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(a, b), values) }
    }
    #[inline(always)]
    fn scale(self, value: __m512, exponents: __m512i) -> __m512 {
        // SAFETY: the token proves the instructions.
        unsafe {
            let bits = _mm512_castps_si512(value);
            _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_slli_epi32::<23>(exponents)))
        }
    }
    #[inline(always)]
    fn words(self, a: __m512) -> __m512i {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_castps_si512(a) }
    }
    #[inline(always)]
    fn greatest(self, a: __m512) -> f32 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_reduce_max_ps(a) }
    }
    #[inline(always)]
    fn sum(self, a: __m512) -> f32 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_reduce_add_ps(a) }
    }
    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_and_si512(a, b) }
    }
    #[inline(always)]
    fn add_words(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    fn max_words(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_max_epi32(a, b) }
    }
    #[inline(always)]
    fn most(self, words: __m512i) -> u32 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_reduce_max_epi32(words) as u32 }
    }
    #[inline(always)]
    fn raise(self, words: __m512i, by: __m512i, a: __m512, b: __m512) -> __m512i {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_mask_add_epi32(words, _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b), words, by) }
    }
    #[inline(always)]
    fn all_less(self, a: __m512, b: __m512) -> bool {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b) == 0xffff }
    }
    #[inline(always)]
    fn floats(self, words: __m512i) -> __m512 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_castsi512_ps(words) }
    }
    #[inline(always)]
    fn shift(self, words: __m512i, bits: u32) -> __m512i {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_srlv_epi32(words, _mm512_set1_epi32(bits as i32)) }
    }
    #[inline(always)]
    fn shift_each(self, words: __m512i, bits: __m512i) -> __m512i {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_srlv_epi32(words, bits) }
    }
    #[inline(always)]
    fn signed(self, words: __m512i) -> __m512 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(words))) }
    }
    #[inline(always)]
    fn to_float(self, words: __m512i) -> __m512 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_cvtepi32_ps(words) }
    }
    #[inline(always)]
    fn e4m3(self, words: __m512i) -> __m512 {
        // SAFETY: the token proves the instructions.
        unsafe {
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
        }
    }
    #[inline(always)]
    fn f16(self, words: __m512i) -> __m512 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)) }
    }
    #[inline(always)]
    fn bf16(self, words: __m512i) -> __m512 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)) }
    }
    #[inline(always)]
    fn table(self, values: &[f32; 16]) -> __m512 {
        // SAFETY: the token proves the instructions, and there are 16 floats.
        unsafe { _mm512_loadu_ps(values.as_ptr()) }
    }
    #[inline(always)]
    fn lookup(self, table: __m512, words: __m512i) -> __m512 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_permutexvar_ps(words, table) }
    }
    #[inline(always)]
    fn lookup_far(self, table: &[f32; 256], words: __m512i) -> __m512 {
        // SAFETY: the token proves the instructions, and a byte selects one of 256 floats.
        unsafe { _mm512_i32gather_ps::<4>(_mm512_and_si512(words, _mm512_set1_epi32(0xff)), table.as_ptr()) }
    }
    #[inline(always)]
    fn ranks(self, thresholds: &Thresholds) -> Ranks {
        if let Some(cells) = &thresholds.cells {
            // SAFETY: there are 32 floats and as many words.
            return unsafe {
                let [low, high] = [0, 16].map(|at| _mm512_loadu_ps(cells.thresholds.as_ptr().add(at)));
                let [first, second] = [0, 16].map(|at| _mm512_loadu_si512(cells.ranks.as_ptr().add(at).cast()));
                Ranks::Cells { factor: self.splat(cells.factor), thresholds: [low, high], ranks: [first, second] }
            };
        }
        let [second, third, fourth] = thresholds.steps().map(|step| self.table(&step));
        Ranks::Steps([self.splat(thresholds.values[7]), second, third, fourth])
    }
    #[inline(always)]
    fn rank(self, ranks: Ranks, x: __m512) -> __m512i {
        match ranks {
            Ranks::Cells { factor, thresholds, ranks } => {
                let scaled = self.mul(x, factor);
                let scaled = self.min(self.max(scaled, self.splat(-16.0)), self.splat(15.0));
                // SAFETY: the token proves the instructions.
                unsafe {
                    // Of the cell, 5 bits count.
                    let cell = _mm512_cvtps_epi32(scaled);
                    let threshold = _mm512_permutex2var_ps(thresholds[0], cell, thresholds[1]);
                    let rank = _mm512_permutex2var_epi32(ranks[0], cell, ranks[1]);
                    self.raise(rank, self.splat_words(1), x, threshold)
                }
            }
            Ranks::Steps([first, second, third, fourth]) => {
                let rank = self.raise(self.splat_words(0), self.splat_words(8), x, first);
                let rank = self.raise(rank, self.splat_words(4), x, self.lookup(second, rank));
                let rank = self.raise(rank, self.splat_words(2), x, self.lookup(third, rank));
                self.raise(rank, self.splat_words(1), x, self.lookup(fourth, rank))
            }
        }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        // SAFETY: the caller's promise, and the token.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_some(self, from: *const f32, count: usize) -> __m512 {
        // SAFETY: the caller's promise, and the token; masked lanes are not read.
        unsafe { _mm512_maskz_loadu_ps(first(count), from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: __m512) {
        // SAFETY: the caller's promise, and the token.
        unsafe { _mm512_storeu_ps(to, value) }
    }
    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut u8, words: __m512i) {
        // SAFETY: the caller promises 16 bytes; and the token.
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(words)) }
    }
    #[inline(always)]
    unsafe fn store_four(self, to: *mut u8, [a, b, c, d]: [__m512i; 4]) {
        // SAFETY: the caller promises 64 bytes; and the token.
        unsafe {
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
        }
    }
    #[inline(always)]
    unsafe fn load_words(self, from: *const u8) -> __m512i {
        // SAFETY: the caller's promise, and the token.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> __m512i {
        // SAFETY: the caller's promise, and the token.
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_signed(self, from: *const u8) -> __m512i {
        // SAFETY: the caller's promise, and the token.
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> __m512 {
        // SAFETY: the caller promises 32 bytes; and the token.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> __m512 {
        // SAFETY: the caller promises 32 bytes; and the token.
        self.bf16(unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())) })
    }
    #[inline(always)]
    unsafe fn spread_words(self, from: *const u8, bits: usize) -> __m512i {
        // SAFETY: the caller promises 2 * bits bytes; and the token.
        unsafe {
            match bits {
                1 => _mm512_set1_epi32(i32::from(from.cast::<u16>().read_unaligned())),
                2 => _mm512_set1_epi32(from.cast::<i32>().read_unaligned()),
                _ => {
                    let low = _mm512_broadcastd_epi32(_mm_loadu_si32(from));
                    _mm512_mask_broadcastd_epi32(low, 0xff00, _mm_loadu_si32(from.add(4)))
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn load_stream<const BITS: usize>(self, from: *const u8) -> __m512i {
        // SAFETY: the caller promises 16 bytes; and the token.
        unsafe {
            let bytes = const { stream_bytes(BITS) };
            let shifts = const { stream_shifts(BITS) };
            let codes = _mm512_broadcast_i32x4(_mm_loadu_si128(from.cast()));
            let pairs = _mm512_shuffle_epi8(codes, _mm512_loadu_si512(bytes.as_ptr().cast()));
            let words = _mm512_srlv_epi32(pairs, _mm512_loadu_si512(shifts.as_ptr().cast()));
            _mm512_and_si512(words, _mm512_set1_epi32((1 << BITS) - 1))
        }
    }
    #[inline(always)]
    unsafe fn load_spans<const BITS: usize>(self, from: *const u8) -> __m512i {
        // SAFETY: the caller promises as many bytes as the mask has words; and the token.
        unsafe {
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
        }
    }
    #[inline(always)]
    unsafe fn spread(self, from: *const f32, count: usize, index: __m512i) -> __m512 {
        // SAFETY: the caller's promise, and the token.
        unsafe { _mm512_permutexvar_ps(index, self.load_some(from, count)) }
    }
    #[inline(always)]
    unsafe fn gather(self, from: *const u8, map: &[f32; 256]) -> __m512 {
        // SAFETY: the caller promises 16 bytes, each selects one of 256 floats; and the token.
        unsafe { _mm512_i32gather_ps::<4>(self.load_bytes(from), map.as_ptr()) }
    }
    #[inline(always)]
    fn prefetch(self, from: *const u8) {
        // SAFETY: a prefetch of an address that is not readable does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }
    #[inline(always)]
    unsafe fn transpose_to(self, from: *const u8, stride: usize, to: *mut u32, to_stride: usize) {
        // SAFETY: the caller promises 16 rows of 64 bytes and 16 of 16 words; and the token.
        unsafe {
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
        }
    }
}
