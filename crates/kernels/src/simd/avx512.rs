//! AVX-512: the whole codebook sits in one register.

#[allow(clippy::wildcard_imports)]
use std::arch::x86_64::*;

use super::{Kernel, Simd};
use crate::nf4::codebook::{CODEBOOK, THRESHOLDS};

#[derive(Clone, Copy)]
pub(super) struct Avx512 {
    codebook: __m512,
}

/// # Safety
/// The machine has the instructions that `Isa::Avx512` names.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the codebook has 16 floats.
    let codebook = unsafe { _mm512_loadu_ps(CODEBOOK.as_ptr()) };
    kernel.run(Avx512 { codebook })
}

/// Shifts that bring the eight codes of a word to the bottom, in the order of the elements.
const IN_ORDER: [i32; 16] = [4, 0, 12, 8, 20, 16, 28, 24, 4, 0, 12, 8, 20, 16, 28, 24];

/// For a binary search: entry `i` is the threshold that decides bit `step` when the bits above it are those of `i`.
const fn probes(step: usize) -> [f32; 16] {
    let mut table = [0.0; 16];
    let mut i = 0;
    while i < 16 {
        let at = i + step - 1;
        table[i] = THRESHOLDS[if at < 15 { at } else { 14 }];
        i += 1;
    }
    table
}
const PROBE_4: [f32; 16] = probes(4);
const PROBE_2: [f32; 16] = probes(2);
const PROBE_1: [f32; 16] = probes(1);

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    const LANES: usize = 16;
    const ROWS: usize = 14;

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    fn zero_words(self) -> __m512i {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn sum(self, a: __m512) -> f32 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_reduce_add_ps(a) }
    }
    #[inline(always)]
    fn shift(self, words: __m512i, bits: u32) -> __m512i {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_srlv_epi32(words, _mm512_set1_epi32(bits as i32)) }
    }
    #[inline(always)]
    fn lookup(self, words: __m512i) -> __m512 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_permutexvar_ps(words, self.codebook) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        // SAFETY: the caller's promise, and the token.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: __m512) {
        // SAFETY: the caller's promise, and the token.
        unsafe { _mm512_storeu_ps(to, value) }
    }
    #[inline(always)]
    unsafe fn load_words(self, from: *const u8) -> __m512i {
        // SAFETY: the caller's promise, and the token.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    fn prefetch(self, from: *const u8) {
        // SAFETY: a prefetch of an address that is not readable does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }
    #[inline(always)]
    unsafe fn decode(self, from: *const u8) -> __m512 {
        // SAFETY: the caller promises 8 bytes, two words; and the token.
        unsafe {
            let low = _mm512_broadcastd_epi32(_mm_loadu_si32(from));
            let words = _mm512_mask_broadcastd_epi32(low, 0xff00, _mm_loadu_si32(from.add(4)));
            self.lookup(_mm512_srlv_epi32(words, _mm512_loadu_si512(IN_ORDER.as_ptr().cast())))
        }
    }
    #[inline(always)]
    unsafe fn spread(self, from: *const f32, each: usize) -> __m512 {
        // SAFETY: the caller promises 16 / each floats, and the token.
        unsafe {
            if each == 8 {
                _mm512_mask_broadcastss_ps(self.splat(*from), 0xff00, _mm_set1_ps(*from.add(1)))
            } else {
                let four = _mm512_castps128_ps512(_mm_loadu_ps(from));
                _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3), four)
            }
        }
    }
    #[inline(always)]
    unsafe fn transpose(self, from: *const u8, stride: usize, to: *mut u32) {
        // SAFETY: the caller promises 16 rows of 64 bytes and 256 words; and the token.
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
                    _mm512_storeu_si512(to.add((4 * lane + word) * 16).cast(), value);
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn max_bits(self, from: *const f32, len: usize) -> u32 {
        // SAFETY: the caller promises `len` floats, a multiple of 16; and the token.
        unsafe {
            let magnitude = _mm512_set1_epi32(0x7fff_ffff);
            let mut most = [_mm512_setzero_si512(); 2];
            for i in 0..len / 16 {
                let bits = _mm512_loadu_si512(from.add(16 * i).cast());
                most[i % 2] = _mm512_max_epu32(most[i % 2], _mm512_and_si512(bits, magnitude));
            }
            _mm512_reduce_max_epu32(_mm512_max_epu32(most[0], most[1]))
        }
    }
    #[inline(always)]
    unsafe fn encode(self, from: *const f32, len: usize, scale: f32, to: *mut u8) {
        // SAFETY: the caller promises `len` floats, a multiple of 16, and len / 2 bytes; and the token.
        unsafe {
            let scale = self.splat(scale);
            let middle = self.splat(THRESHOLDS[7]);
            let (probe_4, probe_2, probe_1) =
                (self.load(PROBE_4.as_ptr()), self.load(PROBE_2.as_ptr()), self.load(PROBE_1.as_ptr()));
            for i in 0..len / 16 {
                let x = self.mul(self.load(from.add(16 * i)), scale);
                let mut code = _mm512_maskz_set1_epi32(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, middle), 8);
                for (probe, step) in [(probe_4, 4), (probe_2, 2), (probe_1, 1)] {
                    let above = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, _mm512_permutexvar_ps(code, probe));
                    code = _mm512_mask_add_epi32(code, above, code, _mm512_set1_epi32(step));
                }
                // Each 64-bit lane holds an even element's code below and the next one's above.
                let pairs = _mm512_or_si512(_mm512_slli_epi64::<4>(code), _mm512_srli_epi64::<32>(code));
                _mm_storeu_si64(to.add(8 * i), _mm512_cvtepi64_epi8(pairs));
            }
        }
    }
}
