//! The limits of this machine, measured, which benchmarks compare with.
//!
//! Each function works on as many threads as the kernels do and takes the best of several runs, a fraction of a second
//! in all.

use std::{hint::black_box, time::Instant};

use crate::{
    Isa,
    simd::{Kernel, Simd, run},
    threads,
};

/// Runs that the best is taken of.
const RUNS: usize = 30;

/// Bytes that a thread reads before it asks for more.
const READ: usize = 1 << 18;

/// Reads all bytes once, on all threads.
pub fn read(parts: &[&[u8]]) {
    struct Read<'a>(&'a [u8]);
    impl Kernel for Read<'_> {
        type Output = f32;
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> f32 {
            let mut sums = [simd.splat(0.0); 8];
            for part in self.0.chunks_exact(8 * 4 * S::LANES) {
                for (i, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: the part has 8 vectors.
                    *sum = simd.add(*sum, unsafe { simd.load(part.as_ptr().add(i * 4 * S::LANES).cast()) });
                }
            }
            sums.into_iter().fold(0.0, |total, sum| total + simd.sum(sum))
        }
    }

    let parts: Vec<&[u8]> = parts.iter().flat_map(|part| part.chunks(READ)).collect();
    threads::for_each_on(usize::MAX, parts.len(), &|i| {
        black_box(run(Isa::detect(), Read(parts[i])));
    });
}

/// Bytes per second at which all threads together read a buffer of `bytes`, in a loop.
///
/// A buffer that fits a cache is read from there after the first run.
#[must_use]
pub fn read_bandwidth(bytes: usize) -> f64 {
    let buffer = vec![1_u8; bytes.max(1)];
    let part = buffer.len().div_ceil(4 * threads::count());
    let parts: Vec<&[u8]> = buffer.chunks(part).collect();
    let runs = (1 << 32) / bytes.max(1 << 10);
    let seconds = best(runs.clamp(3, 300), || read(&parts));
    buffer.len() as f64 / seconds
}

/// Floating-point operations per second of fused multiply-adds in registers, on all threads together.
#[must_use]
pub fn fma_peak() -> f64 {
    /// Enough for the latency of two units.
    const CHAINS: usize = 12;
    struct Multiply(usize);
    impl Kernel for Multiply {
        /// The lanes of a vector, and a number that depends on all that was computed.
        type Output = (usize, f32);
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> (usize, f32) {
            let (factor, term) = (simd.splat(black_box(0.999)), simd.splat(black_box(1e-3)));
            let mut sums = [simd.splat(1.0); CHAINS];
            for _ in 0..self.0 {
                for sum in &mut sums {
                    *sum = simd.fma(*sum, factor, term);
                }
            }
            (S::LANES, sums.into_iter().fold(0.0, |total, sum| total + simd.sum(sum)))
        }
    }

    const STEPS: usize = 1 << 17;
    let (lanes, _) = run(Isa::detect(), Multiply(1));
    let seconds = best(RUNS, || {
        threads::for_each_on(usize::MAX, threads::count(), &|_| {
            black_box(run(Isa::detect(), Multiply(STEPS)));
        });
    });
    (2 * lanes * CHAINS * STEPS * threads::count()) as f64 / seconds
}

/// Operations per second of 8-bit dot products in registers, on all threads together: VNNI's where there is one, or
/// what the compiler makes of a loop.
#[must_use]
pub fn dot_peak() -> f64 {
    const STEPS: usize = 1 << 17;
    let (operations, dot) = vnni().unwrap_or((2 * PORTABLE, portable));
    let seconds = best(RUNS, || {
        threads::for_each_on(usize::MAX, threads::count(), &|_| {
            black_box(dot(STEPS));
        });
    });
    (operations * STEPS * threads::count()) as f64 / seconds
}

/// The shortest time of some runs, in seconds, after one that is not counted.
fn best(runs: usize, mut f: impl FnMut()) -> f64 {
    f();
    let times = (0..runs).map(|_| {
        let start = Instant::now();
        f();
        start.elapsed().as_secs_f64()
    });
    times.fold(f64::INFINITY, f64::min)
}

/// The operations of a step, and the loop of so many steps.
type Dot = (usize, fn(usize) -> i32);

/// Products of a step of [`portable`].
const PORTABLE: usize = 64;

fn portable(steps: usize) -> i32 {
    let (a, b) = (black_box([3_i8; PORTABLE]), black_box([5_i8; PORTABLE]));
    let mut sums = [0_i32; PORTABLE];
    for _ in 0..steps {
        for (sum, (a, b)) in sums.iter_mut().zip(black_box(&a).iter().zip(&b)) {
            *sum = sum.wrapping_add(i32::from(*a) * i32::from(*b));
        }
    }
    sums.into_iter().fold(0, i32::wrapping_add)
}

/// VNNI's, if this machine has it.
#[cfg(target_arch = "x86_64")]
fn vnni() -> Option<Dot> {
    #[allow(clippy::wildcard_imports)]
    use std::arch::x86_64::*;

    const CHAINS: usize = 12;
    #[target_feature(enable = "avx512f,avx512vnni")]
    fn dot(steps: usize) -> i32 {
        let (a, b) = (_mm512_set1_epi32(black_box(0x0102_0304)), _mm512_set1_epi32(black_box(0x0403_0201)));
        let mut sums = [_mm512_setzero_si512(); CHAINS];
        for _ in 0..steps {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, a, b);
            }
            // Nothing but the register, so that the loop is not turned into a multiplication.
            for sum in &mut sums {
                // SAFETY: an empty instruction.
                unsafe { std::arch::asm!("/* {0} */", inout(zmm_reg) * sum, options(pure, nomem, nostack)) };
            }
        }
        sums.into_iter().fold(0, |total, sum| total.wrapping_add(_mm512_reduce_add_epi32(sum)))
    }

    let has = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni");
    // SAFETY: the instructions were detected.
    has.then_some((2 * 64 * CHAINS, |steps| unsafe { dot(steps) }))
}

#[cfg(not(target_arch = "x86_64"))]
fn vnni() -> Option<Dot> {
    None
}
