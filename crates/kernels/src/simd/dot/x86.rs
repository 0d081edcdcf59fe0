//! Sums of products of bytes on x86-64.

#[allow(clippy::wildcard_imports)]
use std::arch::x86_64::*;

use super::{ByteSums, Dot, DotKernel};
use crate::simd::{
    Isa,
    avx2::{Avx2, unpacked},
    avx512::Avx512,
};

pub(super) fn byte_sums(isa: Isa) -> ByteSums {
    let vnni = matches!(isa, Isa::Avx512 | Isa::Amx) && is_x86_feature_detected!("avx512vnni");
    if vnni { ByteSums::Fours } else { ByteSums::Pairs }
}

pub(super) fn run<K: DotKernel>(isa: Isa, kernel: K) {
    if byte_sums(isa) == ByteSums::Fours {
        // SAFETY: the instructions were detected.
        unsafe { run_vnni(kernel) }
    } else {
        // SAFETY: every vector machine but this one's portable reference has AVX2.
        unsafe { run_avx2(kernel) }
    }
}

#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn run_vnni<K: DotKernel>(kernel: K) {
    // SAFETY: the caller has the instructions.
    kernel.run(unsafe { Avx512::assume() });
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_avx2<K: DotKernel>(kernel: K) {
    // SAFETY: the caller has the instructions.
    kernel.run(unsafe { Avx2::assume() });
}

/// Four vectors as one: for each 16 bytes the sums of their words.
macro_rules! fours {
    ($name:ident: $vector:ty, $add:ident, $low:ident, $high:ident, $low_pair:ident, $high_pair:ident) => {
        /// # Safety
        /// The instructions are there.
        #[inline(always)]
        unsafe fn $name([a, b, c, d]: [$vector; 4]) -> $vector {
            // SAFETY: the caller's promise.
            unsafe {
                let (ab, cd) = ($add($low(a, b), $high(a, b)), $add($low(c, d), $high(c, d)));
                $add($low_pair(ab, cd), $high_pair(ab, cd))
            }
        }
    };
}

fours!(fours_of_256: __m256i, _mm256_add_epi32, _mm256_unpacklo_epi32, _mm256_unpackhi_epi32, _mm256_unpacklo_epi64, _mm256_unpackhi_epi64);
fours!(fours_of_512: __m512i, _mm512_add_epi32, _mm512_unpacklo_epi32, _mm512_unpackhi_epi32, _mm512_unpacklo_epi64, _mm512_unpackhi_epi64);

/// With VNNI, which has sums of four products of an unsigned and a signed byte.
impl Dot for Avx512 {
    const ABOVE: i32 = 128;
    type B = __m512i;

    methods! { by token;
        fn weights_table(self, values: [i8; 16]) -> __m512i = {
            let values = values.map(|value| value.cast_unsigned() ^ 0x80);
            _mm512_broadcast_i32x4(_mm_loadu_si128(values.as_ptr().cast()))
        };
        fn lookup_weights(self, table: __m512i, words: __m512i) -> __m512i =
            _mm512_shuffle_epi8(table, _mm512_and_si512(words, _mm512_set1_epi8(15)));
        fn sign_flipped(self, bytes: __m512i) -> __m512i = _mm512_xor_si512(bytes, _mm512_set1_epi8(-128));
        // `run` proves this one.
        fn dot(self, sum: __m512i, weights: __m512i, x: __m512i) -> __m512i = _mm512_dpbusd_epi32(sum, weights, x);
        fn add_across(self, words: &[__m512i; 16]) -> [__m512i; 4] = {
            let a = fours_of_512([words[0], words[1], words[2], words[3]]);
            let b = fours_of_512([words[4], words[5], words[6], words[7]]);
            let c = fours_of_512([words[8], words[9], words[10], words[11]]);
            let d = fours_of_512([words[12], words[13], words[14], words[15]]);
            let (first, second) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0x88>(c, d));
            let (third, fourth) = (_mm512_shuffle_i32x4::<0xdd>(a, b), _mm512_shuffle_i32x4::<0xdd>(c, d));
            [
                _mm512_shuffle_i32x4::<0x88>(first, second),
                _mm512_shuffle_i32x4::<0x88>(third, fourth),
                _mm512_shuffle_i32x4::<0xdd>(first, second),
                _mm512_shuffle_i32x4::<0xdd>(third, fourth),
            ]
        };
    }
    methods! { by promise;
        unsafe fn load_unpacked<const BITS: usize>(self, from: *const u8) -> __m512i = {
            let (low, high) = (unpacked::<BITS>(from), unpacked::<BITS>(from.add(4 * BITS)));
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
        };
    }
}

/// Sums of two products of an unsigned and a signed byte saturate; those of a magnitude and a byte that has taken the sign
/// are in reach.
impl Dot for Avx2 {
    const ABOVE: i32 = 0;
    type B = __m256i;

    methods! { by token;
        fn weights_table(self, values: [i8; 16]) -> __m256i =
            _mm256_broadcastsi128_si256(_mm_loadu_si128(values.as_ptr().cast()));
        fn lookup_weights(self, table: __m256i, words: __m256i) -> __m256i =
            _mm256_shuffle_epi8(table, _mm256_and_si256(words, _mm256_set1_epi8(15)));
        fn sign_flipped(self, bytes: __m256i) -> __m256i = _mm256_xor_si256(bytes, _mm256_set1_epi8(-128));
        fn dot(self, sum: __m256i, weights: __m256i, x: __m256i) -> __m256i = {
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights));
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        };
        // Such weights need no magnitude, and sums of four products are in reach of 16 bits: half the steps.
        fn dot_codes(self, sums: [__m256i; 2], codes: [__m256i; 2], x: [__m256i; 2]) -> [__m256i; 2] = {
            let fours = _mm256_add_epi16(_mm256_maddubs_epi16(codes[0], x[0]), _mm256_maddubs_epi16(codes[1], x[1]));
            [_mm256_add_epi32(sums[0], _mm256_madd_epi16(fours, _mm256_set1_epi16(1))), sums[1]]
        };
        // Two products of 127 are in reach of 16 bits.
        fn dot_small(self, sum: __m256i, weights: __m256i, x: __m256i) -> __m256i =
            _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(weights, x), _mm256_set1_epi16(1)));
        fn add_across(self, words: &[__m256i; 16]) -> [__m256i; 4] = {
            let [a, b, c, d, e, f, g, h, ..] = *words;
            let (first, last) = (fours_of_256([a, b, c, d]), fours_of_256([e, f, g, h]));
            let low = _mm256_permute2x128_si256::<0x20>(first, last);
            let high = _mm256_permute2x128_si256::<0x31>(first, last);
            [low, high, low, high]
        };
    }
    methods! { safe;
        fn dot_all_codes(self, sum: __m256i, codes: [__m256i; 2], x: [__m256i; 2]) -> __m256i =
            self.dot_codes([sum; 2], codes, x)[0];
    }
    methods! { by promise;
        unsafe fn load_unpacked<const BITS: usize>(self, from: *const u8) -> __m256i = unpacked::<BITS>(from);
    }
}
