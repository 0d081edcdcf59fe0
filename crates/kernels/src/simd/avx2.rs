//! AVX2 with FMA and F16C.
//!
//! A table of sixteen floats sits in two registers, and a code's top bit chooses between them. For all codes of a word at once it
//! sits in four, one for each byte of the floats: bytes are looked up 32 at a time, and then put together.

#[allow(clippy::wildcard_imports)]
use std::arch::x86_64::*;

use super::{
    thresholds::Thresholds,
    vector::{Kernel, SMALLEST_NORMAL, Simd, span_bytes, span_shuffle, stream_shifts, stream_shuffle, unpack_pairs},
};

#[derive(Clone, Copy)]
pub(super) struct Avx2(());

type F = __m256;
type I = __m256i;

/// Sixteen floats.
#[derive(Clone, Copy)]
pub(super) struct Table {
    /// The first eight, and the others.
    halves: [F; 2],
    /// Their lowest bytes, and so on, twice.
    bytes: [I; 4],
}

impl Avx2 {
    /// # Safety
    /// [`is_available`].
    #[inline(always)]
    pub(super) unsafe fn assume() -> Self {
        Self(())
    }
}

pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

/// # Safety
/// [`is_available`].
#[target_feature(enable = "avx2,fma,f16c")]
// Apart from its caller: in one function with much else, what a loop sums would not stay in the registers.
#[inline(never)]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

/// A mask of the first `count` <= 8 lanes is what starts at entry `8 - count`.
const FIRST: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// 32 codes of `BITS` bits of a stream, 2, 3, 5, 6 or 7, as bytes.
///
/// # Safety
/// [`is_available`], and 16 bytes are readable behind those of the codes at `from`.
#[inline(always)]
pub(super) unsafe fn unpacked<const BITS: usize>(from: *const u8) -> I {
    // SAFETY: the caller promises 16 bytes from the middle of the codes on, and the instructions.
    unsafe {
        let (low, high) = (_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(2 * BITS).cast()));
        let codes = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high);
        // Each code at the top of two bytes, and then at the bottom.
        let pairs = |(shuffle, factors): &([u8; 16], [u16; 8])| {
            let factors = _mm256_broadcastsi128_si256(_mm_loadu_si128(factors.as_ptr().cast()));
            let at_top = _mm256_mullo_epi16(_mm256_shuffle_epi8(codes, twice(shuffle)), factors);
            _mm256_mulhi_epu16(at_top, _mm256_set1_epi16(1 << BITS))
        };
        _mm256_packus_epi16(pairs(const { &unpack_pairs(BITS, 0) }), pairs(const { &unpack_pairs(BITS, 8) }))
    }
}

/// [`Simd::unpack`].
///
/// # Safety
/// [`is_available`], and what is said there.
#[inline(always)]
pub(super) unsafe fn unpack<const BITS: usize>(from: *const u8, above: u8, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let integers = _mm256_sub_epi8(unpacked::<BITS>(from), _mm256_set1_epi8(above.cast_signed()));
        _mm256_storeu_si256(to.cast(), integers);
    }
}

/// # Safety
/// [`is_available`].
#[inline(always)]
unsafe fn twice(bytes: &[u8; 16]) -> I {
    // SAFETY: there are 16 bytes, and the caller promises the instructions.
    unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.as_ptr().cast())) }
}

/// The floats that codes of a byte each stand for: of each lane of 16 codes the first four, the next four, and so on.
///
/// # Safety
/// [`is_available`]; the codes are below 16.
#[inline(always)]
unsafe fn floats_of(table: [I; 4], codes: I) -> [F; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let (a, b) = (_mm256_shuffle_epi8(table[0], codes), _mm256_shuffle_epi8(table[1], codes));
        let (c, d) = (_mm256_shuffle_epi8(table[2], codes), _mm256_shuffle_epi8(table[3], codes));
        let (low, low_tops) = (_mm256_unpacklo_epi8(a, b), _mm256_unpacklo_epi8(c, d));
        let (high, high_tops) = (_mm256_unpackhi_epi8(a, b), _mm256_unpackhi_epi8(c, d));
        [
            _mm256_castsi256_ps(_mm256_unpacklo_epi16(low, low_tops)),
            _mm256_castsi256_ps(_mm256_unpackhi_epi16(low, low_tops)),
            _mm256_castsi256_ps(_mm256_unpacklo_epi16(high, high_tops)),
            _mm256_castsi256_ps(_mm256_unpackhi_epi16(high, high_tops)),
        ]
    }
}

impl Simd for Avx2 {
    type F = F;
    type I = I;
    type T = Table;
    type Far<'t> = &'t [f32; 256];
    /// The eighth threshold, and those of the later steps, each at the number of the step before among the steps it can be.
    type Ranks = [F; 4];
    const LANES: usize = 8;
    const ROWS: usize = 6;
    const LOOKS_UP_WORDS: bool = true;

    methods! { safe;
        fn far(self, values: &[f32; 256]) -> &[f32; 256] = values;
    }
    methods! { by token;
        fn splat(self, value: f32) -> F = _mm256_set1_ps(value);
        fn splat_words(self, value: u32) -> I = _mm256_set1_epi32(value as i32);
        fn add(self, a: F, b: F) -> F = _mm256_add_ps(a, b);
        fn sub(self, a: F, b: F) -> F = _mm256_sub_ps(a, b);
        fn mul(self, a: F, b: F) -> F = _mm256_mul_ps(a, b);
        fn div(self, a: F, b: F) -> F = _mm256_div_ps(a, b);
        fn fma(self, a: F, b: F, c: F) -> F = _mm256_fmadd_ps(a, b, c);
        fn max(self, a: F, b: F) -> F = _mm256_max_ps(a, b);
        fn min(self, a: F, b: F) -> F = _mm256_min_ps(a, b);
        fn keep(self, values: F, a: F, b: F) -> F = _mm256_and_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(a, b), values);
        fn words(self, a: F) -> I = _mm256_castps_si256(a);
        fn and(self, a: I, b: I) -> I = _mm256_and_si256(a, b);
        fn add_words(self, a: I, b: I) -> I = _mm256_add_epi32(a, b);
        fn max_words(self, a: I, b: I) -> I = _mm256_max_epi32(a, b);
        fn all_less(self, a: F, b: F) -> bool = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(a, b)) == 0xff;
        fn floats(self, words: I) -> F = _mm256_castsi256_ps(words);
        fn shift_each(self, words: I, bits: I) -> I = _mm256_srlv_epi32(words, bits);
        fn signed(self, words: I) -> F = _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(_mm256_slli_epi32::<24>(words)));
        fn to_float(self, words: I) -> F = _mm256_cvtepi32_ps(words);
        fn bf16(self, words: I) -> F = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words));
        fn lookup_far(self, table: Self::Far<'_>, words: I) -> F =
            _mm256_i32gather_ps::<4>(table.as_ptr(), _mm256_and_si256(words, _mm256_set1_epi32(0xff)));
        fn scale(self, value: F, exponents: I) -> F = {
            let bits = _mm256_castps_si256(value);
            _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_slli_epi32::<23>(exponents)))
        };
        fn max_lane(self, a: F) -> f32 = {
            let four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        };
        fn sum(self, a: F) -> f32 = {
            let four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        };
        fn max_word(self, words: I) -> u32 = {
            let four = _mm_max_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            let two = _mm_max_epi32(four, _mm_unpackhi_epi64(four, four));
            _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32::<1>(two))) as u32
        };
        fn raise(self, words: I, by: I, a: F, b: F) -> I = {
            let greater = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_GT_OQ>(a, b));
            _mm256_add_epi32(words, _mm256_and_si256(greater, by))
        };
        fn e4m3(self, words: I) -> F = {
            let magnitude = _mm256_and_si256(words, _mm256_set1_epi32(0x7f));
            let bits = _mm256_add_epi32(_mm256_slli_epi32::<20>(magnitude), _mm256_set1_epi32(120 << 23));
            // Below the normal numbers there is no leading one: the next exponent's, which has one, less that one.
            let small = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), magnitude);
            let bits = _mm256_add_epi32(bits, _mm256_and_si256(small, _mm256_set1_epi32(1 << 23)));
            let less = _mm256_and_ps(_mm256_castsi256_ps(small), self.splat(SMALLEST_NORMAL));
            let value = _mm256_sub_ps(_mm256_castsi256_ps(bits), less);
            let nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
            let value = _mm256_blendv_ps(value, self.splat(f32::NAN), _mm256_castsi256_ps(nan));
            let sign = _mm256_slli_epi32::<24>(_mm256_and_si256(words, _mm256_set1_epi32(0x80)));
            _mm256_or_ps(value, _mm256_castsi256_ps(sign))
        };
        fn f16(self, words: I) -> F = {
            // The halves of each lane's words to its lower half, then those of both lanes together.
            let halves = _mm256_set1_epi64x(0x0d0c_0908_0504_0100);
            let halves = _mm256_permute4x64_epi64::<0b1000>(_mm256_shuffle_epi8(words, halves));
            _mm256_cvtph_ps(_mm256_castsi256_si128(halves))
        };
        fn rank(self, [first, second, third, fourth]: [F; 4], x: F) -> I = {
            // All ones, which is -1, where greater.
            let above = _mm256_cmp_ps::<_CMP_GT_OQ>(x, first);
            let mut rank = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_castps_si256(above));
            for step in [second, third, fourth] {
                let above = _mm256_cmp_ps::<_CMP_GT_OQ>(x, _mm256_permutevar8x32_ps(step, rank));
                rank = _mm256_sub_epi32(_mm256_add_epi32(rank, rank), _mm256_castps_si256(above));
            }
            rank
        };
        fn table(self, values: &[f32; 16]) -> Table = {
            // Bytes of floats, each place in a row of its own.
            let mut bytes = [[0_u8; 16]; 4];
            for (at, value) in values.iter().enumerate() {
                for (row, byte) in bytes.iter_mut().zip(value.to_bits().to_le_bytes()) {
                    row[at] = byte;
                }
            }
            let [a, b, c, d] = bytes;
            Table {
                halves: [_mm256_loadu_ps(values.as_ptr()), _mm256_loadu_ps(values.as_ptr().add(8))],
                bytes: [twice(&a), twice(&b), twice(&c), twice(&d)],
            }
        };
        fn lookup_words(self, table: Table, words: I) -> [F; 8] = {
            // In each lane of 16 bytes: the lowest bytes of its words, then the next ones, and so on.
            let by_place =
                _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
            let (words, four_bits) = (_mm256_shuffle_epi8(words, by_place), _mm256_set1_epi8(15));
            let even = floats_of(table.bytes, _mm256_and_si256(words, four_bits));
            let odd = floats_of(table.bytes, _mm256_and_si256(_mm256_srli_epi16::<4>(words), four_bits));
            [even[0], odd[0], even[1], odd[1], even[2], odd[2], even[3], odd[3]]
        };
        fn lookup(self, table: Table, words: I) -> F = {
            let low = _mm256_permutevar8x32_ps(table.halves[0], words);
            let high = _mm256_permutevar8x32_ps(table.halves[1], words);
            // A blend looks at the sign: bit 3 moved to the top.
            _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(words)))
        };
        fn ranks(self, thresholds: &Thresholds) -> [F; 4] = {
            let t = thresholds.values;
            let steps: [[f32; 8]; 3] = [
                std::array::from_fn(|at| t[3 + 8 * (at % 2)]),
                std::array::from_fn(|at| t[1 + 4 * (at % 4)]),
                std::array::from_fn(|at| t[2 * at]),
            ];
            let [second, third, fourth] = steps.map(|step| _mm256_loadu_ps(step.as_ptr()));
            [self.splat(t[7]), second, third, fourth]
        };
    }
    methods! { by promise;
        unsafe fn load(self, from: *const f32) -> F = _mm256_loadu_ps(from);
        unsafe fn load_some(self, from: *const f32, count: usize) -> F =
            _mm256_maskload_ps(from, _mm256_loadu_si256(FIRST.as_ptr().add(8 - count).cast()));
        unsafe fn store(self, to: *mut f32, value: F) -> () = _mm256_storeu_ps(to, value);
        unsafe fn store_some(self, to: *mut f32, count: usize, value: F) -> () =
            _mm256_maskstore_ps(to, _mm256_loadu_si256(FIRST.as_ptr().add(8 - count).cast()), value);
        unsafe fn load_words(self, from: *const u8) -> I = _mm256_loadu_si256(from.cast());
        unsafe fn load_bytes(self, from: *const u8) -> I = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()));
        unsafe fn load_signed(self, from: *const u8) -> I = _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()));
        unsafe fn load_f16(self, from: *const u8) -> F = _mm256_cvtph_ps(_mm_loadu_si128(from.cast()));
        unsafe fn load_bf16(self, from: *const u8) -> F = self.bf16(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())));
        unsafe fn spread(self, from: *const f32, count: usize, index: I) -> F =
            _mm256_permutevar8x32_ps(self.load_some(from, count), index);
        unsafe fn store_bytes(self, to: *mut u8, words: I) -> () = {
            // Those of each lane's words to its lowest word.
            let lanes = _mm256_shuffle_epi8(words, _mm256_set1_epi32(0x0c08_0400));
            let both = _mm_unpacklo_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes));
            _mm_storel_epi64(to.cast(), both);
        };
        unsafe fn store_four(self, to: *mut u8, [a, b, c, d]: [I; 4]) -> () = {
            let byte = _mm256_set1_epi32(0xff);
            let ab = _mm256_packus_epi32(_mm256_and_si256(a, byte), _mm256_and_si256(b, byte));
            let cd = _mm256_packus_epi32(_mm256_and_si256(c, byte), _mm256_and_si256(d, byte));
            // Each lane holds four bytes of each vector.
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(ab, cd), order);
            _mm256_storeu_si256(to.cast(), bytes);
        };
        unsafe fn spread_words(self, from: *const u8, bits: usize) -> I = _mm256_set1_epi32(match bits {
            1 => i32::from(*from),
            2 => i32::from(from.cast::<u16>().read_unaligned()),
            _ => from.cast::<i32>().read_unaligned(),
        });
        unsafe fn unpack<const BITS: usize>(self, from: *const u8, above: u8, to: *mut u8) -> () =
            unpack::<BITS>(from, above, to);
        unsafe fn load_stream<const BITS: usize>(self, from: *const u8) -> I = {
            let bytes = const { stream_shuffle::<32>(BITS) };
            let shifts = const { stream_shifts(BITS) };
            let codes = _mm256_broadcastsi128_si256(_mm_loadu_si128(from.cast()));
            let pairs = _mm256_shuffle_epi8(codes, _mm256_loadu_si256(bytes.as_ptr().cast()));
            let words = _mm256_srlv_epi32(pairs, _mm256_loadu_si256(shifts.as_ptr().cast()));
            _mm256_and_si256(words, _mm256_set1_epi32((1 << BITS) - 1))
        };
        unsafe fn load_spans<const BITS: usize>(self, from: *const u8) -> I = {
            let bytes: [u8; 32] = const { span_shuffle(BITS, &[0; 2]) };
            let high = _mm_loadu_si128(from.add(span_bytes(BITS)).cast());
            let both = _mm256_set_m128i(high, _mm_loadu_si128(from.cast()));
            let words = _mm256_shuffle_epi8(both, _mm256_loadu_si256(bytes.as_ptr().cast()));
            if BITS.is_multiple_of(8) {
                return words;
            }
            let shifts = const { stream_shifts(BITS) };
            _mm256_srlv_epi32(words, _mm256_loadu_si256(shifts.as_ptr().cast()))
        };
        unsafe fn transpose_to(self, from: *const u8, stride: usize, to: *mut u32, to_stride: usize) -> () = {
            // Four rows at a time into 128-bit lanes of four words, then the lanes themselves.
            let zero = _mm256_setzero_si256();
            let mut quads = [[zero; 2]; 4];
            for q in 0..2 {
                let row = from.add(4 * q * stride);
                let a = _mm256_loadu_si256(row.cast());
                let b = _mm256_loadu_si256(row.add(stride).cast());
                let c = _mm256_loadu_si256(row.add(2 * stride).cast());
                let d = _mm256_loadu_si256(row.add(3 * stride).cast());
                let (ab_low, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
                let (cd_low, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
                let words = [
                    _mm256_unpacklo_epi64(ab_low, cd_low),
                    _mm256_unpackhi_epi64(ab_low, cd_low),
                    _mm256_unpacklo_epi64(ab_high, cd_high),
                    _mm256_unpackhi_epi64(ab_high, cd_high),
                ];
                for (quad, word) in quads.iter_mut().zip(words) {
                    quad[q] = word;
                }
            }
            for (word, quad) in quads.into_iter().enumerate() {
                let [a, b] = quad;
                _mm256_storeu_si256(to.add(word * to_stride).cast(), _mm256_permute2x128_si256::<0x20>(a, b));
                _mm256_storeu_si256(to.add((4 + word) * to_stride).cast(), _mm256_permute2x128_si256::<0x31>(a, b));
            }
        };
    }
}
