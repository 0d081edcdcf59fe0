//! Sums of products of bytes on x86-64.

#[allow(clippy::wildcard_imports)]
use std::arch::x86_64::*;

use super::{ByteSums, Dot, DotKernel};
use crate::simd::{Isa, avx2::Avx2, avx512::Avx512};

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

/// With VNNI, which has sums of four products of an unsigned and a signed byte.
impl Dot for Avx512 {
    const ABOVE: i32 = 128;
    type B = __m512i;

    #[inline(always)]
    fn weights_table(self, values: [i8; 16]) -> __m512i {
        let values = values.map(|value| value.cast_unsigned() ^ 0x80);
        // SAFETY: the token proves the instructions, and there are 16 bytes.
        unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(values.as_ptr().cast())) }
    }
    #[inline(always)]
    fn lookup_weights(self, table: __m512i, words: __m512i) -> __m512i {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_shuffle_epi8(table, _mm512_and_si512(words, _mm512_set1_epi8(15))) }
    }
    #[inline(always)]
    fn turned(self, bytes: __m512i) -> __m512i {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_xor_si512(bytes, _mm512_set1_epi8(-128)) }
    }
    #[inline(always)]
    fn dot(self, sum: __m512i, weights: __m512i, x: __m512i) -> __m512i {
        // SAFETY: the token, and `run`, prove the instructions.
        unsafe { _mm512_dpbusd_epi32(sum, weights, x) }
    }
}

/// Sums of two products of an unsigned and a signed byte saturate; those of a magnitude and a byte that has taken the sign
/// are in reach.
impl Dot for Avx2 {
    const ABOVE: i32 = 0;
    type B = __m256i;

    #[inline(always)]
    fn weights_table(self, values: [i8; 16]) -> __m256i {
        // SAFETY: the token proves the instructions, and there are 16 bytes.
        unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(values.as_ptr().cast())) }
    }
    #[inline(always)]
    fn lookup_weights(self, table: __m256i, words: __m256i) -> __m256i {
        // SAFETY: the token proves the instructions.
        unsafe { _mm256_shuffle_epi8(table, _mm256_and_si256(words, _mm256_set1_epi8(15))) }
    }
    #[inline(always)]
    fn turned(self, bytes: __m256i) -> __m256i {
        // SAFETY: the token proves the instructions.
        unsafe { _mm256_xor_si256(bytes, _mm256_set1_epi8(-128)) }
    }
    #[inline(always)]
    fn dot(self, sum: __m256i, weights: __m256i, x: __m256i) -> __m256i {
        // SAFETY: the token proves the instructions.
        unsafe {
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights));
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
    /// Such weights need no magnitude, and sums of four products are in reach of 16 bits: half the steps.
    #[inline(always)]
    fn dot_codes(self, sums: [__m256i; 2], codes: [__m256i; 2], x: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the token proves the instructions.
        unsafe {
            let fours = _mm256_add_epi16(_mm256_maddubs_epi16(codes[0], x[0]), _mm256_maddubs_epi16(codes[1], x[1]));
            [_mm256_add_epi32(sums[0], _mm256_madd_epi16(fours, _mm256_set1_epi16(1))), sums[1]]
        }
    }
}
