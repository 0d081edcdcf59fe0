//! How each format's codes become floats, on every instruction set.

use std::marker::PhantomData;

use crate::{
    matrix::{Codes, Order},
    simd::Simd,
    unit::{Decoded, Units},
};

/// The codes of a matrix of one format.
pub(crate) trait Codec: Copy + Sync {
    /// Bits of a code.
    const BITS: usize;
    /// Codes in a 32-bit word, or 0 if they are not read by words.
    const WORD: usize;
    /// What decoding needs in registers.
    type Ready<S: Simd>: Copy;
    /// What [`stored`](Self::stored) gives.
    type Stored: Units;

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
    /// The values of the codes at one place of each word.
    fn word_values<S: Simd>(ready: Self::Ready<S>, simd: S, words: S::I, place: usize) -> S::F;

    /// These codes as units, if they are of 1, 2, 4 or 8 bits and those that padding consists of stand for a finite
    /// number.
    fn stored(self) -> Option<Self::Stored>;
}

/// Something to do with the codes of a matrix, once their format is known.
pub(crate) trait Job {
    type Output;
    fn run<C: Codec>(self, codes: C) -> Self::Output;
}

/// Runs the job on codes that were checked.
pub(crate) fn dispatch<J: Job>(codes: Codes, job: J) -> J::Output {
    match codes {
        Codes::Table { bytes, bits: 4, order, values } => job.run(Table::<4> { bytes, values, order }),
        Codes::Table { bytes, bits: 2, order, values } => job.run(Table::<2> { bytes, values, order }),
        Codes::Table { bytes, order, values, .. } => job.run(Table::<1> { bytes, values, order }),
        Codes::Unsigned { bytes, bits } => match bits {
            1 => job.run(Table::<1> { bytes, values: &INTEGERS, order: Order::LowFirst }),
            2 => job.run(Table::<2> { bytes, values: &INTEGERS, order: Order::LowFirst }),
            3 => job.run(Stream::<3>(bytes)),
            4 => job.run(Table::<4> { bytes, values: &INTEGERS, order: Order::LowFirst }),
            5 => job.run(Stream::<5>(bytes)),
            6 => job.run(Stream::<6>(bytes)),
            7 => job.run(Stream::<7>(bytes)),
            _ => job.run(Bytes::<Unsigned> { bytes, of: PhantomData }),
        },
        Codes::Signed { codes } => job.run(Bytes::<Signed> { bytes: bytes(codes), of: PhantomData }),
        Codes::E4m3 { bytes } => job.run(Bytes::<E4m3> { bytes, of: PhantomData }),
    }
}

/// Signed codes as they are stored.
pub(crate) fn bytes(codes: &[i8]) -> &[u8] {
    // SAFETY: i8 and u8 have one layout, and every byte is either.
    unsafe { std::slice::from_raw_parts(codes.as_ptr().cast(), codes.len()) }
}

/// The values of unsigned codes of up to 4 bits.
pub(crate) const INTEGERS: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// Codes of 1, 2 or 4 bits that are looked up.
#[derive(Clone, Copy)]
pub(crate) struct Table<'a, const BITS: usize> {
    bytes: &'a [u8],
    values: &'a [f32; 16],
    order: Order,
}

impl<const BITS: usize> Codec for Table<'_, BITS> {
    const BITS: usize = BITS;
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
        // Repeated, so that the bits above a code do not matter.
        let table: [f32; 16] = std::array::from_fn(|i| self.values[i % (1 << BITS)]);
        let shifts: [u32; 16] = std::array::from_fn(|i| (self.place(i % (32 / BITS)) * BITS) as u32);
        // SAFETY: there are 16 words, the most that a vector holds.
        (simd.table(&table), unsafe { simd.load_words(shifts.as_ptr().cast()) })
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
    fn stored(self) -> Option<Self> {
        // Padding multiplies code 0 by 0, which must change no sum.
        self.values.iter().take(1 << BITS).all(|value| value.is_finite()).then_some(self)
    }
}

/// What a byte stands for.
pub(crate) trait Byte: Copy + Sync {
    /// The values of `LANES` bytes.
    ///
    /// # Safety
    /// They are readable at `from`.
    unsafe fn load<S: Simd>(simd: S, from: *const u8) -> S::F;
    /// The value of the lowest byte of each word.
    fn value<S: Simd>(simd: S, words: S::I) -> S::F;
}

/// Codes of a byte each.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a, B> {
    bytes: &'a [u8],
    of: PhantomData<B>,
}

#[derive(Clone, Copy)]
struct Unsigned;
#[derive(Clone, Copy)]
struct Signed;
#[derive(Clone, Copy)]
struct E4m3;

impl Byte for Unsigned {
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const u8) -> S::F {
        // SAFETY: the caller's promise.
        simd.to_float(unsafe { simd.load_bytes(from) })
    }
    #[inline(always)]
    fn value<S: Simd>(simd: S, words: S::I) -> S::F {
        simd.to_float(simd.and(words, simd.splat_words(255)))
    }
}

impl Byte for Signed {
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const u8) -> S::F {
        // SAFETY: the caller's promise.
        simd.to_float(unsafe { simd.load_signed(from) })
    }
    #[inline(always)]
    fn value<S: Simd>(simd: S, words: S::I) -> S::F {
        simd.signed(words)
    }
}

impl Byte for E4m3 {
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const u8) -> S::F {
        // SAFETY: the caller's promise.
        simd.e4m3(unsafe { simd.load_bytes(from) })
    }
    #[inline(always)]
    fn value<S: Simd>(simd: S, words: S::I) -> S::F {
        simd.e4m3(simd.and(words, simd.splat_words(255)))
    }
}

impl<B: Byte> Codec for Bytes<'_, B> {
    const BITS: usize = 8;
    const WORD: usize = 4;
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
        B::value(simd, simd.shift(words, 8 * place as u32))
    }
    fn stored(self) -> Option<Self> {
        Some(self)
    }
}

/// Integers of 3, 5, 6 or 7 bits.
#[derive(Clone, Copy)]
struct Stream<'a, const BITS: usize>(&'a [u8]);

impl<const BITS: usize> Codec for Stream<'_, BITS> {
    const BITS: usize = BITS;
    const WORD: usize = 0;
    type Ready<S: Simd> = ();
    type Stored = Decoded<'static>;

    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self.0
    }
    #[inline(always)]
    fn ready<S: Simd>(self, _: S) {}
    #[inline(always)]
    unsafe fn decode<S: Simd>((): (), simd: S, from: *const u8) -> S::F {
        // SAFETY: as above.
        simd.to_float(unsafe { simd.load_stream::<BITS>(from) })
    }
    #[inline(always)]
    fn word_values<S: Simd>((): (), simd: S, _: S::I, _: usize) -> S::F {
        simd.splat(0.0)
    }
    fn stored(self) -> Option<Self::Stored> {
        None
    }
}
