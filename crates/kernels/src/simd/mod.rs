//! One interface to the instruction sets, so that each kernel is written once.
//!
//! A [`Simd`] value is a token: it is only made where its instructions were detected, which is what makes its
//! arithmetic safe to call. A [`Kernel`] is the arguments of a loop; [`run`] compiles the loop for each instruction
//! set and calls the one that is asked for. Everything in between is `#[inline(always)]` and free of closures around
//! vector code, or the instructions would end up in functions that are compiled without them, and be called one by one.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use crate::Isa;

/// Vectors of `LANES` floats and of as many 32-bit words, and the NF4 steps that each instruction set has its own
/// way to do.
pub(crate) trait Simd: Copy {
    /// `LANES` floats.
    type F: Copy;
    /// `LANES` words of 8 codes each.
    type I: Copy;
    /// Floats in a vector; at most 16.
    const LANES: usize;
    /// Rows of the register tile, whose width is two vectors.
    const ROWS: usize;

    fn splat(self, value: f32) -> Self::F;
    fn zero_words(self) -> Self::I;
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The sum of the lanes, in an order that only depends on `LANES`.
    fn sum(self, a: Self::F) -> f32;
    /// Each word shifted right by `bits` < 32.
    fn shift(self, words: Self::I, bits: u32) -> Self::I;
    /// The codebook's value for the lowest four bits of each word.
    fn lookup(self, words: Self::I) -> Self::F;

    /// # Safety
    /// `LANES` floats are readable at `from`.
    unsafe fn load(self, from: *const f32) -> Self::F;
    /// # Safety
    /// `LANES` floats are writable at `to`.
    unsafe fn store(self, to: *mut f32, value: Self::F);
    /// # Safety
    /// `4 * LANES` bytes are readable at `from`.
    unsafe fn load_words(self, from: *const u8) -> Self::I;
    /// Asks for the cache line at `from`, which need not be readable.
    fn prefetch(self, from: *const u8);
    /// The values of the `LANES` codes at `from`, in the order of the elements.
    ///
    /// # Safety
    /// `LANES / 2` bytes are readable at `from`.
    unsafe fn decode(self, from: *const u8) -> Self::F;
    /// Lane `i` is `from[i / each]`; `each` is 4 or 8.
    ///
    /// # Safety
    /// `LANES.div_ceil(each)` floats are readable at `from`.
    unsafe fn spread(self, from: *const f32, each: usize) -> Self::F;
    /// Reads `LANES` words from each of `LANES` rows, `stride` bytes apart, and writes word `d` of row `r` to
    /// `to[d * LANES + r]`.
    ///
    /// # Safety
    /// The rows are readable and `LANES * LANES` words are writable.
    unsafe fn transpose(self, from: *const u8, stride: usize, to: *mut u32);
    /// The largest `|x|` as bits, which order as the floats do, with NaN and infinities above all finite ones.
    ///
    /// # Safety
    /// `len`, a multiple of 16, floats are readable at `from`.
    unsafe fn max_bits(self, from: *const f32, len: usize) -> u32;
    /// Writes the codes of `x * scale`, two to a byte.
    ///
    /// # Safety
    /// `len`, a multiple of 16, floats are readable at `from`, and `len / 2` bytes are writable at `to`.
    unsafe fn encode(self, from: *const f32, len: usize, scale: f32, to: *mut u8);
}

/// A loop with its arguments, to be compiled once for each instruction set.
pub(crate) trait Kernel {
    type Output;
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Runs the kernel on `isa`, which [`Isa::check`] accepted.
pub(crate) fn run<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    debug_assert!(isa.is_supported());
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every public function checks the instruction set that it is given.
        Isa::Avx512 => unsafe { avx512::run(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { avx2::run(kernel) },
        _ => kernel.run(portable::Portable),
    }
}

/// Floats of one output panel: two vectors wide.
pub(crate) const fn panel_width<S: Simd>() -> usize {
    2 * S::LANES
}

/// The same, where only the instruction set's name is at hand.
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
