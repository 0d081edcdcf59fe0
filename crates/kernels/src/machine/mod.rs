//! The description of a machine, as far as the time of a loop depends on it, and the limits of this one.
//!
//! A `Machine` is described, not measured: its instruction set and what it has beside, and for each class of them the
//! cycles that a few steps take. So nothing runs when a program starts, and a machine always chooses the same loops, whose
//! results differ in their rounding. The limits are measured, and what benchmarks compare with.

mod cache;
#[cfg(target_arch = "x86_64")]
mod cpuid;
mod limits;

use std::sync::OnceLock;

#[cfg(target_arch = "x86_64")]
pub(crate) use cpuid::cpuid;
pub use limits::{dot_peak, fma_peak, read, read_bandwidth};

pub use crate::simd::ByteSums;
use crate::{Codes, Isa, simd::byte_sums, threads};

/// A machine, as the choice of a loop sees it.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    pub(crate) isa: Isa,
    /// What there is for products of bytes beside the vectors of `isa`.
    pub(crate) byte_sums: ByteSums,
    pub(crate) cycles: &'static Cycles,
    /// Bytes of a core's second-level cache.
    pub(crate) cache: usize,
}

/// What steps take where they follow each other without waiting, in cycles for a vector of [`lanes`](Self::lanes) floats.
///
/// From the ports that each class of cores has for them, and where several are busy at once, from what was measured.
#[derive(Debug)]
pub(crate) struct Cycles {
    /// Floats of a vector.
    pub(crate) lanes: f64,
    /// A fused multiply-add.
    pub(crate) fma: f64,
    /// A load that the first-level cache has.
    pub(crate) load: f64,
    pub(crate) store: f64,
    /// Until a fused multiply-add's sum can be added to.
    pub(crate) latency: f64,
    /// Rows of the register tile.
    pub(crate) rows: usize,
    /// How long a step of the register tile takes, in units of its multiply-adds.
    pub(crate) tile: f64,
    /// How long a vector of a panel takes, in units of the steps that make it.
    pub(crate) panel: f64,
    /// Codes of 1, 2 or 4 bits to floats.
    table: f64,
    /// Bytes.
    byte: f64,
    /// Codes that are not aligned to bytes.
    stream: f64,
    e4m3: f64,
    half: f64,
    /// Adding the lanes up.
    pub(crate) sum: f64,
    /// Four products of bytes for each lane.
    pub(crate) dot: f64,
}

/// Two ports for 512 bits, of which one shuffles.
const AVX512: Cycles = Cycles {
    lanes: 16.0,
    fma: 0.5,
    load: 0.5,
    store: 1.0,
    latency: 4.0,
    rows: 14,
    tile: 1.35,
    panel: 1.7,
    table: 1.0,
    byte: 1.0,
    stream: 1.6,
    e4m3: 3.0,
    half: 1.8,
    sum: 12.0,
    dot: 0.5,
};

/// Three ports for 256 bits, of which two multiply and one shuffles.
const AVX2: Cycles = Cycles {
    lanes: 8.0,
    fma: 0.5,
    load: 0.5,
    store: 1.0,
    latency: 4.0,
    rows: 6,
    tile: 1.1,
    panel: 1.25,
    table: 1.5,
    byte: 1.0,
    stream: 1.5,
    e4m3: 3.0,
    half: 1.3,
    sum: 8.0,
    dot: 2.0,
};

/// Four ports for 128 bits, as cores from Apple and Arm's Neoverse V1 on have them. Never measured: from Arm's guide to that
/// core, and from what others measured of Apple's.
const NEON: Cycles = Cycles {
    lanes: 8.0,
    fma: 0.5,
    load: 0.67,
    store: 1.0,
    latency: 4.0,
    rows: 6,
    tile: 1.1,
    panel: 1.4,
    table: 2.0,
    byte: 1.0,
    stream: 4.0,
    e4m3: 3.0,
    half: 1.0,
    sum: 6.0,
    // Two products of halves, of which two ports have a multiplier for bytes, and two sums, for each register.
    dot: 3.0,
};

/// The same with `sdot`, which each of the ports has.
const NEON_DOT: Cycles = Cycles { dot: 0.5, ..NEON };

/// What a compiler makes of the loops for any machine: vectors of four without fused multiply-adds, and codes one by one.
const PORTABLE: Cycles = Cycles {
    lanes: 8.0,
    fma: 4.0,
    load: 1.0,
    store: 2.0,
    latency: 8.0,
    rows: 4,
    tile: 1.1,
    panel: 1.2,
    table: 24.0,
    byte: 24.0,
    stream: 32.0,
    e4m3: 32.0,
    half: 24.0,
    sum: 8.0,
    dot: 8.0,
};

/// Bytes that a core gets in a cycle from beyond its own caches.
pub(crate) const FROM_MEMORY: f64 = 9.0;

/// Cycles from a task's being there to a thread's beginning with it.
const WAKE: f64 = 6e3;

/// Cycles that waking one more thread takes the one that wakes it.
const WAKE_EACH: f64 = 2e3;

impl Machine {
    /// A machine with this instruction set, with what it has beside it, and with a second-level cache of so many bytes.
    #[must_use]
    pub const fn new(isa: Isa, byte_sums: ByteSums, cache: usize) -> Self {
        let cycles = match (isa, byte_sums) {
            (Isa::Scalar, _) => &PORTABLE,
            (Isa::Avx2, _) => &AVX2,
            (Isa::Avx512 | Isa::Amx, _) => &AVX512,
            (Isa::Neon, ByteSums::Pairs) => &NEON,
            (Isa::Neon, _) => &NEON_DOT,
        };
        Self { isa, byte_sums, cycles, cache }
    }

    /// The one that this program runs on.
    #[must_use]
    pub fn detect() -> Self {
        Self::from_isa(Isa::detect())
    }

    /// This machine, whose kernels take `isa`.
    pub(crate) fn from_isa(isa: Isa) -> Self {
        static CACHE: OnceLock<usize> = OnceLock::new();
        Self::new(isa, byte_sums(isa), *CACHE.get_or_init(cache::second_level))
    }

    /// Codes to floats.
    pub(crate) fn decode(&self, codes: &Codes) -> f64 {
        match codes {
            Codes::Bytes { .. } => 1.5 * self.cycles.lanes,
            Codes::E4m3 { .. } => self.cycles.e4m3,
            Codes::F16 { .. } | Codes::Bf16 { .. } => self.cycles.half,
            _ => match codes.bits() {
                // Spans of so many steps keep more in registers.
                1 | 2 => self.cycles.table + 0.3,
                4 => self.cycles.table,
                8 => self.cycles.byte,
                _ => self.cycles.stream,
            },
        }
    }
}

/// How many threads do so much work, in cycles of one of them, in the least time: one more is worth its waking, or is not woken.
pub(crate) fn threads_for(cycles: f64) -> usize {
    let available = threads::count();
    let time = |threads: usize| {
        let others = (threads - 1) as f64;
        cycles / threads as f64 + if threads > 1 { WAKE + WAKE_EACH * others } else { 0.0 }
    };
    let best = ((cycles / WAKE_EACH).sqrt() as usize).clamp(1, available);
    if time(best) < cycles { best } else { 1 }
}
