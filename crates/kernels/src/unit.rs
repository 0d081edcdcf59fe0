//! What the products with few rows of activations read: codes as they are stored, or floats that they were decoded to.
//!
//! A *span* is the run of elements that one lane of a vector holds: the codes of a 32-bit word, four or eight of a stream of
//! bits, a byte or two, a half, or a float. A *unit* is a vector of spans. Reading a unit step by step, one element of each
//! span at a time, needs neither widening nor shuffling; in exchange, what the values are multiplied with is brought into the
//! same order beforehand.

use crate::{Isa, simd::Simd};

/// Elements in the form in which they are multiplied.
pub(crate) trait Units: Copy + Sync {
    /// Elements of a span.
    const SPAN: usize;
    /// Bits of an element. Rows begin with a byte.
    const BITS: usize;
    /// Whether scales and biases are in the values already.
    const DECODED: bool = false;
    /// What reading needs in registers.
    type Ready<S: Simd>: Copy;

    fn ready<S: Simd>(self, simd: S) -> Self::Ready<S>;
    /// Where the elements lie, or how they are decoded.
    fn source(&self) -> Source<'_>;
    /// The step at which element `at` of a span is read.
    #[inline(always)]
    fn step(self, at: usize) -> usize {
        at
    }
    /// The values of a unit at one step.
    ///
    /// # Safety
    /// The unit and, behind it, [`SLACK`](crate::simd::SLACK) bytes are readable at `from`.
    unsafe fn values<S: Simd>(ready: Self::Ready<S>, simd: S, from: *const u8, step: usize) -> S::F;
    /// Whether a unit has eight steps, whose values take fewer instructions together than one by one.
    #[inline(always)]
    fn is_read_whole<S: Simd>() -> bool {
        false
    }
    /// The values of a unit that is read whole, step by step; of no other.
    ///
    /// # Safety
    /// As for [`values`](Self::values).
    #[inline(always)]
    unsafe fn whole<S: Simd>(ready: Self::Ready<S>, simd: S, from: *const u8) -> [S::F; 8] {
        let _ = (ready, simd, from);
        unreachable!("it is read step by step")
    }
}

/// Where the elements of a matrix are to be found.
pub(crate) enum Source<'a> {
    /// In these bytes, row after row.
    Stored(&'a [u8]),
    /// They are to be decoded to floats first.
    Decode(&'a dyn Decode),
}

/// A matrix of any format, a part at a time.
pub(crate) trait Decode: Sync {
    /// Writes the values of the elements from `start`, and asks for those `ahead` of them.
    fn decode(&self, isa: Isa, start: usize, out: &mut [f32], ahead: usize);
}

/// Elements of a unit.
pub(crate) const fn unit<S: Simd, U: Units>() -> usize {
    S::LANES * U::SPAN
}

/// Bytes of a unit.
pub(crate) const fn unit_bytes<S: Simd, U: Units>() -> usize {
    unit::<S, U>() * U::BITS / 8
}

/// The most elements of a span.
const MAX_SPAN: usize = 32;

/// [`Units`] as numbers, for what need not be compiled for each of them.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) span: usize,
    pub(crate) decoded: bool,
    /// [`Units::step`] of each element of a span.
    pub(crate) steps: [usize; MAX_SPAN],
}

impl Layout {
    pub(crate) fn from_units<U: Units>(units: U) -> Self {
        let steps = std::array::from_fn(|at| if at < U::SPAN { units.step(at) } else { 0 });
        Self { span: U::SPAN, decoded: U::DECODED, steps }
    }
}

/// Elements that are decoded to floats before they are multiplied.
#[derive(Clone, Copy)]
pub(crate) struct Decoded<'a>(pub(crate) &'a dyn Decode);

impl Units for Decoded<'_> {
    const SPAN: usize = 1;
    const BITS: usize = 32;
    const DECODED: bool = true;
    type Ready<S: Simd> = ();

    #[inline(always)]
    fn ready<S: Simd>(self, _: S) {}
    fn source(&self) -> Source<'_> {
        Source::Decode(self.0)
    }
    #[inline(always)]
    unsafe fn values<S: Simd>((): (), simd: S, from: *const u8, _: usize) -> S::F {
        // SAFETY: the caller promises LANES floats.
        unsafe { simd.load(from.cast()) }
    }
}
