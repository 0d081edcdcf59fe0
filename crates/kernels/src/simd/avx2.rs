//! AVX2 with FMA: the codebook sits in two registers, and a code's top bit chooses between them.

#[allow(clippy::wildcard_imports)]
use std::arch::x86_64::*;

use super::{Kernel, Simd};
use crate::nf4::codebook::{CODEBOOK, THRESHOLDS};

#[derive(Clone, Copy)]
pub(super) struct Avx2 {
    low: __m256,
    high: __m256,
}

/// # Safety
/// The machine has the instructions that `Isa::Avx2` names.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the codebook has 16 floats.
    let (low, high) = unsafe { (_mm256_loadu_ps(CODEBOOK.as_ptr()), _mm256_loadu_ps(CODEBOOK.as_ptr().add(8))) };
    kernel.run(Avx2 { low, high })
}

impl Simd for Avx2 {
    type F = __m256;
    type I = __m256i;
    const LANES: usize = 8;
    const ROWS: usize = 6;

    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm256_set1_ps(value) }
    }
    #[inline(always)]
    fn zero_words(self) -> __m256i {
        // SAFETY: the token proves the instructions.
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn sum(self, a: __m256) -> f32 {
        // SAFETY: the token proves the instructions.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    fn shift(self, words: __m256i, bits: u32) -> __m256i {
        // SAFETY: the token proves the instructions.
        unsafe { _mm256_srlv_epi32(words, _mm256_set1_epi32(bits as i32)) }
    }
    #[inline(always)]
    fn lookup(self, words: __m256i) -> __m256 {
        // SAFETY: the token proves the instructions.
        unsafe {
            let low = _mm256_permutevar8x32_ps(self.low, words);
            let high = _mm256_permutevar8x32_ps(self.high, words);
            // A blend looks at the sign: bit 3 moved to the top.
            _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(words)))
        }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m256 {
        // SAFETY: the caller's promise, and the token.
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: __m256) {
        // SAFETY: the caller's promise, and the token.
        unsafe { _mm256_storeu_ps(to, value) }
    }
    #[inline(always)]
    unsafe fn load_words(self, from: *const u8) -> __m256i {
        // SAFETY: the caller's promise, and the token.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    fn prefetch(self, from: *const u8) {
        // SAFETY: a prefetch of an address that is not readable does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }
    #[inline(always)]
    unsafe fn decode(self, from: *const u8) -> __m256 {
        // SAFETY: the caller promises 4 bytes, and the token.
        unsafe {
            let word = _mm256_set1_epi32(from.cast::<i32>().read_unaligned());
            self.lookup(_mm256_srlv_epi32(word, _mm256_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24)))
        }
    }
    #[inline(always)]
    unsafe fn spread(self, from: *const f32, each: usize) -> __m256 {
        // SAFETY: the caller promises 8 / each floats, and the token.
        unsafe {
            if each == 8 { self.splat(*from) } else { _mm256_set_m128(_mm_set1_ps(*from.add(1)), _mm_set1_ps(*from)) }
        }
    }
    #[inline(always)]
    unsafe fn transpose(self, from: *const u8, stride: usize, to: *mut u32) {
        // SAFETY: the caller promises 8 rows of 32 bytes and 64 words; and the token.
        unsafe {
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
                _mm256_storeu_si256(to.add(word * 8).cast(), _mm256_permute2x128_si256::<0x20>(a, b));
                _mm256_storeu_si256(to.add((4 + word) * 8).cast(), _mm256_permute2x128_si256::<0x31>(a, b));
            }
        }
    }
    #[inline(always)]
    unsafe fn max_bits(self, from: *const f32, len: usize) -> u32 {
        // SAFETY: the caller promises `len` floats, a multiple of 16; and the token.
        unsafe {
            let magnitude = _mm256_set1_epi32(0x7fff_ffff);
            let mut most = [_mm256_setzero_si256(); 2];
            for i in 0..len / 8 {
                let bits = _mm256_loadu_si256(from.add(8 * i).cast());
                most[i % 2] = _mm256_max_epu32(most[i % 2], _mm256_and_si256(bits, magnitude));
            }
            let eight = _mm256_max_epu32(most[0], most[1]);
            let mut lanes = [0_u32; 8];
            _mm256_storeu_si256(lanes.as_mut_ptr().cast(), eight);
            lanes.into_iter().fold(0, u32::max)
        }
    }
    #[inline(always)]
    unsafe fn encode(self, from: *const f32, len: usize, scale: f32, to: *mut u8) {
        // SAFETY: the caller promises `len` floats, a multiple of 16, and len / 2 bytes; and the token.
        unsafe {
            let scale = self.splat(scale);
            // Bytes 0 and 8 of each 128-bit lane, side by side at the bottom.
            let gather = _mm256_setr_epi8(
                0, 8, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 8, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                -1, -1, -1, -1, -1,
            );
            for i in 0..len / 8 {
                let x = self.mul(self.load(from.add(8 * i)), scale);
                // A true comparison is -1, so the code is the count of thresholds below x.
                let mut code = _mm256_setzero_si256();
                for threshold in THRESHOLDS {
                    let above = _mm256_cmp_ps::<_CMP_GT_OQ>(x, self.splat(threshold));
                    code = _mm256_sub_epi32(code, _mm256_castps_si256(above));
                }
                let pairs = _mm256_or_si256(_mm256_slli_epi64::<4>(code), _mm256_srli_epi64::<32>(code));
                let bytes = _mm256_shuffle_epi8(pairs, gather);
                let low = _mm_extract_epi16::<0>(_mm256_castsi256_si128(bytes));
                let high = _mm_extract_epi16::<0>(_mm256_extracti128_si256::<1>(bytes));
                to.add(4 * i).cast::<i32>().write_unaligned(low | high << 16);
            }
        }
    }
}
