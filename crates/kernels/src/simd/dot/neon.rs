//! Sums of products of bytes on NEON.

#[allow(clippy::wildcard_imports)]
use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

use super::{ByteSums, Dot, DotKernel};
use crate::simd::{Isa, neon::Neon};

pub(super) fn byte_sums(isa: Isa) -> ByteSums {
    if isa != Isa::Neon {
        ByteSums::Pairs
    } else if is_aarch64_feature_detected!("i8mm") && is_aarch64_feature_detected!("dotprod") {
        ByteSums::Squares
    } else if is_aarch64_feature_detected!("dotprod") {
        ByteSums::Fours
    } else {
        ByteSums::Pairs
    }
}

pub(super) fn run<K: DotKernel>(isa: Isa, kernel: K) {
    if byte_sums(isa) >= ByteSums::Fours {
        // SAFETY: the instructions were detected.
        unsafe { run_sdot(kernel) }
    } else {
        kernel.run(Neon::<false>);
    }
}

#[target_feature(enable = "dotprod")]
unsafe fn run_sdot<K: DotKernel>(kernel: K) {
    kernel.run(Neon::<true>);
}

/// With `sdot` where `SDOT` says so, else with products of halves and their sums.
impl<const SDOT: bool> Dot for Neon<SDOT> {
    const ABOVE: i32 = 0;
    type B = int8x16_t;

    methods! { by token;
        fn weights_table(self, values: [i8; 16]) -> int8x16_t = vld1q_s8(values.as_ptr());
        fn lookup_weights(self, table: int8x16_t, words: Self::I) -> Self::I = words.map(|words| {
            vreinterpretq_u32_s8(vqtbl1q_s8(table, vandq_u8(vreinterpretq_u8_u32(words), vdupq_n_u8(15))))
        });
        fn sign_flipped(self, bytes: Self::I) -> Self::I =
            bytes.map(|bytes| veorq_u32(bytes, vdupq_n_u32(0x8080_8080)));
        // Where there is `sdot`, `run` has detected it.
        fn dot(self, sum: Self::I, weights: Self::I, x: Self::I) -> Self::I = std::array::from_fn(|i| {
            let [sum, weights, x] = [sum[i], weights[i], x[i]].map(|words| vreinterpretq_s8_u32(words));
            let sum = vreinterpretq_s32_s8(sum);
            vreinterpretq_u32_s32(if SDOT { sdot(sum, weights, x) } else { without(sum, weights, x) })
        });
    }
}

/// `vdotq_s32`, which Rust does not have for a stable compiler.
///
/// # Safety
/// The machine has `sdot`, and what this is inlined into is compiled for it.
#[inline(always)]
unsafe fn sdot(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction works on registers alone, and the caller promises that it is there.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// The same on every machine. Sums of two products are in reach of 16 bits, as only one side has -128.
///
/// # Safety
/// None is asked for: every machine that this is compiled for has NEON.
#[inline(always)]
unsafe fn without(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: every AArch64 machine has NEON.
    unsafe {
        let pairs = vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b));
        vpadalq_s16(sum, pairs)
    }
}
