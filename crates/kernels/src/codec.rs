//! How each format's codes become floats, on every instruction set.

mod byte;

use std::marker::PhantomData;

use crate::{
    matrix::{Codes, INTEGERS, Order, offset},
    simd::Simd,
    unit::{Decoded, Source, Units},
};

pub(crate) use byte::{Bf16, Byte, E4m3, F16, Offset, Signed, Unsigned};

/// The codes of a matrix of one format.
pub(crate) trait Codec: Copy + Sync {
    /// Codes in a 32-bit word, or 0 if they are not read by words.
    const WORD: usize = 0;
    /// Whether these are the codes of the portable reference, and of nothing else.
    const PORTABLE: bool = false;
    /// What decoding needs in registers.
    type Ready<S: Simd>: Copy;
    /// What [`stored`](Self::stored) gives.
    type Stored: Units;

    /// Bits of a code.
    #[inline(always)]
    fn bits(self) -> usize {
        <Self::Stored as Units>::BITS
    }
    fn bytes(&self) -> &[u8];
    fn ready<S: Simd>(self, simd: S) -> Self::Ready<S>;
    /// The place, from the lowest bits, of code `at` of a word.
    fn place(self, at: usize) -> usize {
        at
    }

    /// The values of `LANES` codes in their order.
    ///
    /// # Safety
    /// The codes' bytes and, behind them, [`SLACK`](crate::simd::SLACK) bytes are readable at `from`.
    unsafe fn decode<S: Simd>(ready: Self::Ready<S>, simd: S, from: *const u8) -> S::F;
    /// The values of the codes at one place of each word, if there are words.
    fn word_values<S: Simd>(_: Self::Ready<S>, simd: S, _: S::I, _: usize) -> S::F {
        simd.splat(0.0)
    }

    /// The values of all eight codes of each word, the lowest ones first, where that takes fewer instructions than one by one.
    #[inline(always)]
    fn whole_words<S: Simd>(_: Self::Ready<S>, _: S, _: S::I) -> Option<[S::F; 8]> {
        None
    }

    /// These codes as units, if there are such, and those that padding consists of stand for a finite number.
    fn stored(self) -> Option<Self::Stored> {
        None
    }
    /// These codes as units of integers, if they are such of 4 bits: computed where that takes less than looking them up.
    fn integers(&self) -> Option<Stream<'_, 4>> {
        None
    }
}

/// Codes of any format, looked at one by one: the portable reference.
impl Codec for Codes<'_> {
    const PORTABLE: bool = true;
    type Ready<S: Simd> = Self;
    type Stored = Decoded<'static>;

    fn bits(self) -> usize {
        Codes::bits(&self) as usize
    }
    fn bytes(&self) -> &[u8] {
        Codes::bytes(self)
    }
    fn ready<S: Simd>(self, _: S) -> Self {
        self
    }
    unsafe fn decode<S: Simd>(codes: Self, simd: S, from: *const u8) -> S::F {
        let mut values = [0.0; 16];
        // SAFETY: the caller promises LANES codes; there are 16 floats, the most that a vector holds.
        unsafe {
            let bytes = std::slice::from_raw_parts(from, S::LANES * Codec::bits(codes) / 8);
            for (at, value) in values.iter_mut().enumerate().take(S::LANES) {
                *value = codes.value_in(bytes, at);
            }
            simd.load(values.as_ptr())
        }
    }
}

/// Codes of 1, 2 or 4 bits that are looked up.
#[derive(Clone, Copy)]
pub(crate) struct Table<'a, const BITS: usize> {
    pub(crate) bytes: &'a [u8],
    pub(crate) values: &'a [f32; 16],
    pub(crate) order: Order,
}

/// The table repeated, so that the bits above a code do not matter.
#[inline(always)]
fn repeated(values: &[f32; 16], bits: usize) -> [f32; 16] {
    std::array::from_fn(|i| values[i % (1 << bits)])
}

impl<const BITS: usize> Codec for Table<'_, BITS> {
    const WORD: usize = if BITS == 4 { 8 } else { 0 };
    /// The table, and the shifts that bring the codes of [`Simd::spread_words`] to the bottom.
    type Ready<S: Simd> = (S::T, S::I);
    type Stored = Self;

    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self.bytes
    }
    #[inline(always)]
    fn ready<S: Simd>(self, simd: S) -> Self::Ready<S> {
        let shifts: [u32; 16] = std::array::from_fn(|i| (self.place(i % (32 / BITS)) * BITS) as u32);
        // SAFETY: there are 16 words, the most that a vector holds.
        (simd.table(&repeated(self.values, BITS)), unsafe { simd.load_words(shifts.as_ptr().cast()) })
    }
    #[inline(always)]
    fn place(self, at: usize) -> usize {
        match self.order {
            Order::LowFirst => at,
            Order::HighFirst => at ^ (8 / BITS - 1),
        }
    }
    #[inline(always)]
    unsafe fn decode<S: Simd>((table, shifts): Self::Ready<S>, simd: S, from: *const u8) -> S::F {
        // SAFETY: the caller promises the codes.
        simd.lookup(table, simd.shift_each(unsafe { simd.spread_words(from, BITS) }, shifts))
    }
    #[inline(always)]
    fn word_values<S: Simd>((table, _): Self::Ready<S>, simd: S, words: S::I, place: usize) -> S::F {
        simd.lookup(table, if place == 0 { words } else { simd.shift(words, (place * BITS) as u32) })
    }
    #[inline(always)]
    fn whole_words<S: Simd>((table, _): Self::Ready<S>, simd: S, words: S::I) -> Option<[S::F; 8]> {
        if BITS == 4 && S::LOOKS_UP_WORDS { Some(simd.lookup_words(table, words)) } else { None }
    }
    fn stored(self) -> Option<Self> {
        // Padding multiplies code 0 by 0, which must change no sum.
        self.values.iter().take(1 << BITS).all(|value| value.is_finite()).then_some(self)
    }
    fn integers(&self) -> Option<Stream<'_, 4>> {
        let are_integers = BITS == 4 && self.order == Order::LowFirst && *self.values == INTEGERS;
        are_integers.then_some(Stream { bytes: self.bytes, values: self.values })
    }
}

impl<const BITS: usize> Units for Table<'_, BITS> {
    const SPAN: usize = 32 / BITS;
    const BITS: usize = BITS;
    type Ready<S: Simd> = S::T;

    #[inline(always)]
    fn ready<S: Simd>(self, simd: S) -> S::T {
        simd.table(&repeated(self.values, BITS))
    }
    fn source(&self) -> Source<'_> {
        Source::Stored(self.bytes)
    }
    #[inline(always)]
    fn step(self, at: usize) -> usize {
        self.place(at)
    }
    #[inline(always)]
    unsafe fn values<S: Simd>(table: S::T, simd: S, from: *const u8, step: usize) -> S::F {
        let bit = step * BITS;
        // Loads from the bytes of a word in turn would need fewer shifts, but span two cache lines, which costs more.
        // SAFETY: the caller promises the unit.
        let words = unsafe { simd.load_words(from) };
        simd.lookup(table, if bit == 0 { words } else { simd.shift(words, bit as u32) })
    }
    #[inline(always)]
    fn is_read_whole<S: Simd>() -> bool {
        BITS == 4 && S::LOOKS_UP_WORDS
    }
    #[inline(always)]
    unsafe fn whole<S: Simd>(table: S::T, simd: S, from: *const u8) -> [S::F; 8] {
        // SAFETY: the caller promises the unit.
        simd.lookup_words(table, unsafe { simd.load_words(from) })
    }
}

/// Codes of whole bytes each.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a, B> {
    pub(crate) bytes: &'a [u8],
    pub(crate) of: PhantomData<B>,
}

impl<B: Byte> Codec for Bytes<'_, B> {
    const WORD: usize = 4 / B::BYTES;
    type Ready<S: Simd> = ();
    type Stored = Self;

    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self.bytes
    }
    #[inline(always)]
    fn ready<S: Simd>(self, _: S) {}
    #[inline(always)]
    unsafe fn decode<S: Simd>((): (), simd: S, from: *const u8) -> S::F {
        // SAFETY: as above.
        unsafe { B::load(simd, from) }
    }
    #[inline(always)]
    fn word_values<S: Simd>((): (), simd: S, words: S::I, place: usize) -> S::F {
        B::value(simd, if place == 0 { words } else { simd.shift(words, (8 * B::BYTES * place) as u32) })
    }
    fn stored(self) -> Option<Self> {
        Some(self)
    }
}

impl<B: Byte> Units for Bytes<'_, B> {
    const SPAN: usize = B::SPAN;
    const BITS: usize = 8 * B::BYTES;
    type Ready<S: Simd> = ();

    #[inline(always)]
    fn ready<S: Simd>(self, _: S) {}
    fn source(&self) -> Source<'_> {
        Source::Stored(self.bytes)
    }
    #[inline(always)]
    unsafe fn values<S: Simd>((): (), simd: S, from: *const u8, step: usize) -> S::F {
        // SAFETY: the caller promises the unit.
        unsafe { B::step(simd, from, step) }
    }
}

/// Codes of a byte each that are looked up.
#[derive(Clone, Copy)]
pub(crate) struct Looked<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) values: &'a [f32; 256],
}

impl<'a> Codec for Looked<'a> {
    type Ready<S: Simd> = S::Far<'a>;
    type Stored = Decoded<'static>;

    #[inline(always)]
    fn bits(self) -> usize {
        8
    }
    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self.bytes
    }
    #[inline(always)]
    fn ready<S: Simd>(self, simd: S) -> S::Far<'a> {
        simd.far(self.values)
    }
    #[inline(always)]
    unsafe fn decode<S: Simd>(table: S::Far<'a>, simd: S, from: *const u8) -> S::F {
        // SAFETY: the caller promises LANES bytes.
        simd.lookup_far(table, unsafe { simd.load_bytes(from) })
    }
}

/// Codes of 3 to 7 bits: those of 3 are looked up, the others integers, in offset binary if `OFFSET`.
#[derive(Clone, Copy)]
pub(crate) struct Stream<'a, const BITS: usize, const OFFSET: bool = false> {
    pub(crate) bytes: &'a [u8],
    pub(crate) values: &'a [f32; 16],
}

impl<const BITS: usize, const OFFSET: bool> Stream<'_, BITS, OFFSET> {
    /// The values of codes that are integers.
    #[inline(always)]
    fn integers<S: Simd>(simd: S, words: S::I) -> S::F {
        let codes = simd.to_float(words);
        if OFFSET { simd.sub(codes, simd.splat(offset(BITS as u32))) } else { codes }
    }
}

impl<const BITS: usize, const OFFSET: bool> Codec for Stream<'_, BITS, OFFSET> {
    type Ready<S: Simd> = S::T;
    type Stored = Self;

    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self.bytes
    }
    #[inline(always)]
    fn ready<S: Simd>(self, simd: S) -> S::T {
        simd.table(self.values)
    }
    #[inline(always)]
    unsafe fn decode<S: Simd>(table: S::T, simd: S, from: *const u8) -> S::F {
        // SAFETY: as above.
        let words = unsafe { simd.load_stream::<BITS>(from) };
        if BITS == 3 { simd.lookup(table, words) } else { Self::integers(simd, words) }
    }
    fn stored(self) -> Option<Self> {
        // As for tables.
        (BITS != 3 || self.values.iter().take(8).all(|value| value.is_finite())).then_some(self)
    }
}

impl<const BITS: usize, const OFFSET: bool> Units for Stream<'_, BITS, OFFSET> {
    const SPAN: usize = if BITS <= 4 { 8 } else { 4 };
    const BITS: usize = BITS;
    /// The table, or a mask of a code's bits.
    type Ready<S: Simd> = (S::T, S::I);

    #[inline(always)]
    fn ready<S: Simd>(self, simd: S) -> Self::Ready<S> {
        (simd.table(&repeated(self.values, BITS.min(4))), simd.splat_words((1 << BITS) - 1))
    }
    fn source(&self) -> Source<'_> {
        Source::Stored(self.bytes)
    }
    #[inline(always)]
    unsafe fn values<S: Simd>((table, mask): Self::Ready<S>, simd: S, from: *const u8, step: usize) -> S::F {
        // SAFETY: the caller promises the unit.
        let words = unsafe {
            match BITS {
                4 => simd.load_words(from),
                5 => simd.load_spans::<20>(from),
                7 => simd.load_spans::<28>(from),
                _ => simd.load_spans::<24>(from),
            }
        };
        let words = if step == 0 { words } else { simd.shift(words, (step * BITS) as u32) };
        if BITS == 3 { simd.lookup(table, words) } else { Self::integers(simd, simd.and(words, mask)) }
    }
}
