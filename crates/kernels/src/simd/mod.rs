//! The instruction sets, chosen at run time.
//!
//! One table says which machines have each, and what compiles a [`Kernel`], the arguments of a loop, for it. A new one is
//! its file here and its line there; a machine's engines that are more than vectors have theirs in `engines`.

use std::{cell::Cell, sync::OnceLock};

/// Methods of an instruction set that are one expression each, a row a method.
///
/// Intrinsics `by token` ask for nothing but the instructions, which the token proves, and for memory that the method has as
/// references or variables; those `by promise` of `unsafe` methods for what the trait makes their callers promise as well.
/// Others are `safe`.
macro_rules! methods {
    (safe; $(fn $name:ident($self:ident $(, $argument:tt: $type:ty)*) -> $result:ty = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name($self $(, $argument: $type)*) -> $result {
            $body
        }
    )*};
    (by token; $(fn $name:ident($self:ident $(, $argument:tt: $type:ty)*) -> $result:ty = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name($self $(, $argument: $type)*) -> $result {
            // SAFETY: the token proves the instructions, and the memory is at hand.
            unsafe { $body }
        }
    )*};
    (by promise; $(unsafe fn $name:ident $(<const $parameter:ident: $kind:ty>)? ($self:ident $(, $argument:tt: $type:ty)*)
        -> $result:ty = $body:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name $(<const $parameter: $kind>)? ($self $(, $argument: $type)*) -> $result {
            // SAFETY: the token proves the instructions, and the caller promises the memory.
            unsafe { $body }
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod dot;
mod exp;
mod integers;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod prefetch;
mod ranks;
mod thresholds;
mod vector;

pub use dot::ByteSums;
pub(crate) use dot::byte_sums;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use dot::{Dot, DotKernel, run_dot};
pub(crate) use exp::{EXP, LN_2, exp};
pub(crate) use integers::{TO_INTEGERS, nearest_integers, rounded_off};
pub(crate) use prefetch::{prefetch, prefetch_second};
pub(crate) use thresholds::Thresholds;
pub(crate) use vector::{Kernel, LINE, LINE_FLOATS, SLACK, SMALLEST_NORMAL, Simd, panel_width, unpacked};

#[cfg(target_arch = "x86_64")]
use crate::amx;

/// The enum of them, and the two functions that look at which one it is.
macro_rules! instruction_sets {
    ($(#[$reference_doc:meta])* $reference:ident, else $portable:expr;
     $($(#[$doc:meta])* $name:ident, on $arch:literal, needs $available:expr, runs $run:path;)*) => {
        /// An instruction set that the kernels are written for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Isa {
            $(#[$reference_doc])* $reference,
            $($(#[$doc])* $name,)*
        }

        impl Isa {
            /// Slowest first.
            const ALL: &[Self] = &[Self::$reference, $(Self::$name),*];

            /// Whether this machine can run it.
            fn is_supported(self) -> bool {
                match self {
                    $(#[cfg(target_arch = $arch)] Self::$name => $available,)*
                    _ => self == Self::$reference,
                }
            }
        }

        /// Runs the kernel on an instruction set that this machine has.
        pub(crate) fn run<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
            debug_assert!(isa.is_supported());
            match isa {
                // SAFETY: `Isa::detect` gives no other than those that are supported.
                $(#[cfg(target_arch = $arch)] Isa::$name if K::VECTORS => unsafe { $run(kernel) },)*
                _ if K::PORTABLE => kernel.run($portable),
                _ => unreachable!("a kernel for which `codec_of::dispatch` has no codes on {isa:?}"),
            }
        }
    };
}

instruction_sets! {
    /// Portable Rust; the reference that the others are tested against.
    Scalar, else portable::Portable;
    /// x86-64 with AVX2, FMA and F16C.
    Avx2, on "x86_64", needs avx2::is_available(), runs avx2::run;
    /// x86-64 with AVX-512 F, BW, VL and DQ.
    Avx512, on "x86_64", needs avx512::is_available(), runs avx512::run;
    /// x86-64 with [`Avx512`](Self::Avx512) and AMX for `bf16` and 8-bit integers, which Linux lets a process use.
    Amx, on "x86_64", needs avx512::is_available() && amx::is_available(), runs avx512::run;
    /// 64-bit Arm with NEON, which all of them have.
    Neon, on "aarch64", needs neon::is_available(), runs neon::run;
}

impl Isa {
    /// The fastest instruction set of this machine, looked up once a process.
    #[must_use]
    pub fn detect() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        CHOSEN.get().unwrap_or_else(|| *BEST.get_or_init(|| *Self::available().last().unwrap_or(&Self::Scalar)))
    }

    /// The instruction sets of this machine, slowest first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        Self::ALL.iter().copied().filter(|isa| isa.is_supported()).collect()
    }

    /// Runs `f`, whose kernels take this instruction set in place of the fastest.
    ///
    /// Kernels that other threads start meanwhile are not affected. For tests and measurements.
    ///
    /// # Panics
    /// If this machine does not have it.
    #[doc(hidden)]
    pub fn with<R>(self, f: impl FnOnce() -> R) -> R {
        struct Restore(Option<Isa>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CHOSEN.set(self.0);
            }
        }
        assert!(self.is_supported(), "this machine has no {self:?} instructions");
        let _restore = Restore(CHOSEN.replace(Some(self)));
        f()
    }
}

thread_local! {
    static CHOSEN: Cell<Option<Isa>> = const { Cell::new(None) };
}

/// [`panel_width`] where only the instruction set's name is at hand.
pub(crate) fn panel_width_of(isa: Isa) -> usize {
    struct Width;
    impl Kernel for Width {
        type Output = usize;
        #[inline(always)]
        fn run<S: Simd>(self, _: S) -> usize {
            panel_width::<S>()
        }
    }
    run(isa, Width)
}
