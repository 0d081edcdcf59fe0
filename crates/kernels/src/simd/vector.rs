//! One interface to vectors, so that each kernel is written once.
//!
//! A [`Simd`] value is a token: it is only made where its instructions were detected, which is what makes its arithmetic
//! safe to call. Everything between a [`Kernel`] and it is `#[inline(always)]` and free of closures around vector code, or
//! the instructions would end up in functions that are compiled without them, and be called one by one.

use super::thresholds::Thresholds;

/// Bytes behind the codes that a decoder of `LANES` codes may read, and ignore.
pub(crate) const SLACK: usize = 16;

/// Bytes of a cache line, for which one prefetch asks.
pub(crate) const LINE: usize = 64;

/// Floats of a cache line.
pub(crate) const LINE_FLOATS: usize = LINE / size_of::<f32>();

/// Vectors of `LANES` floats and of as many 32-bit words, with the steps of decoding that each instruction set has its
/// own way to do.
pub(crate) trait Simd: Copy {
    /// `LANES` floats.
    type F: Copy;
    /// `LANES` words.
    type I: Copy;
    /// Sixteen floats to look up.
    type T: Copy;
    /// 256 floats to look up, in registers where there is room for them.
    type Far<'t>: Copy;
    /// Thresholds to search.
    type Ranks: Copy;
    /// Floats in a vector; 8 or 16.
    const LANES: usize;
    /// Rows of the register tile, whose width is two vectors.
    const ROWS: usize;
    /// Whether there are instructions for fused multiply-adds; without them one is a call into libm.
    const FUSED: bool = true;

    fn splat(self, value: f32) -> Self::F;
    fn splat_words(self, value: u32) -> Self::I;
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a` where it is greater than `b`, and else `b`, as where one of them is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a` where it is less than `b`, and else `b`, as where one of them is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// `values` where `a` is not less than `b`, and else zeros.
    fn keep(self, values: Self::F, a: Self::F, b: Self::F) -> Self::F;
    /// `value * 2^exponents`, where both that and `value` are normal numbers; of the exponents, which are signed words, only
    /// the lowest nine bits count.
    fn scale(self, value: Self::F, exponents: Self::I) -> Self::F;
    /// The floats' bits.
    fn words(self, a: Self::F) -> Self::I;
    /// The greatest of all floats, none of which is NaN.
    fn max_lane(self, a: Self::F) -> f32;
    /// The sum of the lanes, in an order that only depends on the instruction set.
    fn sum(self, a: Self::F) -> f32;
    /// The [`sum`](Self::sum) of each, to the bit.
    #[inline(always)]
    fn sum_four(self, [a, b, c, d]: [Self::F; 4]) -> [f32; 4] {
        [self.sum(a), self.sum(b), self.sum(c), self.sum(d)]
    }
    fn and(self, a: Self::I, b: Self::I) -> Self::I;
    /// The sum of words, modulo 2^32.
    fn add_words(self, a: Self::I, b: Self::I) -> Self::I;
    /// The greater one of two words below 2^31.
    fn max_words(self, a: Self::I, b: Self::I) -> Self::I;
    /// The greatest of all words, which are below 2^31.
    fn max_word(self, words: Self::I) -> u32;
    /// `words`, with `by` added where `a` is greater than `b`.
    fn raise(self, words: Self::I, by: Self::I, a: Self::F, b: Self::F) -> Self::I;
    /// Whether every `a` is less than its `b`.
    fn all_less(self, a: Self::F, b: Self::F) -> bool;
    /// The floats of these bits.
    fn floats(self, words: Self::I) -> Self::F;
    /// Each word shifted right by `bits` < 32.
    #[inline(always)]
    fn shift(self, words: Self::I, bits: u32) -> Self::I {
        self.shift_each(words, self.splat_words(bits))
    }
    /// Each word shifted right by its own number of bits < 32.
    fn shift_each(self, words: Self::I, bits: Self::I) -> Self::I;
    /// The floats of the words' lowest bytes, which are signed.
    fn signed(self, words: Self::I) -> Self::F;
    /// The floats of signed words.
    fn to_float(self, words: Self::I) -> Self::F;
    /// The values of words below 256 that are E4M3 floats.
    fn e4m3(self, words: Self::I) -> Self::F;
    /// The values of the words' lower halves, which are `f16`.
    fn f16(self, words: Self::I) -> Self::F;
    /// The values of the words' lower halves, which are `bf16`.
    fn bf16(self, words: Self::I) -> Self::F;
    fn table(self, values: &[f32; 16]) -> Self::T;
    /// The table's value for the lowest four bits of each word.
    fn lookup(self, table: Self::T, words: Self::I) -> Self::F;
    /// Whether all codes of a word are looked up in fewer steps together than one by one.
    const LOOKS_UP_WORDS: bool = false;
    /// The table's values for the eight codes of four bits of each word, those of the lowest bits first.
    #[inline(always)]
    fn lookup_words(self, table: Self::T, words: Self::I) -> [Self::F; 8] {
        let mut values = [self.lookup(table, words); 8];
        for (code, value) in values.iter_mut().enumerate().skip(1) {
            *value = self.lookup(table, self.shift(words, 4 * code as u32));
        }
        values
    }
    fn far(self, values: &[f32; 256]) -> Self::Far<'_>;
    /// The float at the lowest byte of each word.
    fn lookup_far(self, table: Self::Far<'_>, words: Self::I) -> Self::F;
    fn ranks(self, thresholds: &Thresholds) -> Self::Ranks;
    /// How many of the thresholds each float is greater than.
    fn rank(self, ranks: Self::Ranks, x: Self::F) -> Self::I;

    /// # Safety
    /// `LANES` floats are readable at `from`.
    unsafe fn load(self, from: *const f32) -> Self::F;
    /// The first `count` <= `LANES` floats, and zeros.
    ///
    /// # Safety
    /// `count` floats are readable at `from`.
    unsafe fn load_some(self, from: *const f32, count: usize) -> Self::F;
    /// # Safety
    /// `LANES` floats are writable at `to`.
    unsafe fn store(self, to: *mut f32, value: Self::F);
    /// Stores the first `count` <= `LANES` floats.
    ///
    /// # Safety
    /// `count` floats are writable at `to`.
    unsafe fn store_some(self, to: *mut f32, count: usize, value: Self::F);
    /// Stores the lowest byte of each word.
    ///
    /// # Safety
    /// `LANES` bytes are writable at `to`.
    unsafe fn store_bytes(self, to: *mut u8, words: Self::I);
    /// Stores the lowest byte of each word, one vector behind the other.
    ///
    /// # Safety
    /// `4 * LANES` bytes are writable at `to`.
    #[inline(always)]
    unsafe fn store_four(self, to: *mut u8, words: [Self::I; 4]) {
        for (i, words) in words.into_iter().enumerate() {
            // SAFETY: the caller promises four times as many bytes.
            unsafe { self.store_bytes(to.add(i * Self::LANES), words) };
        }
    }
    /// # Safety
    /// `4 * LANES` bytes are readable at `from`.
    unsafe fn load_words(self, from: *const u8) -> Self::I;
    /// The words of `LANES` bytes.
    ///
    /// # Safety
    /// `LANES` bytes are readable at `from`.
    unsafe fn load_bytes(self, from: *const u8) -> Self::I;
    /// The words of `LANES` signed bytes.
    ///
    /// # Safety
    /// `LANES` bytes are readable at `from`.
    unsafe fn load_signed(self, from: *const u8) -> Self::I;
    /// # Safety
    /// `LANES` numbers of `f16` are readable at `from`.
    unsafe fn load_f16(self, from: *const u8) -> Self::F;
    /// # Safety
    /// `LANES` numbers of `bf16` are readable at `from`.
    unsafe fn load_bf16(self, from: *const u8) -> Self::F;
    /// The values of every second one of `2 * LANES` bytes, from the first or the second on, that are E4M3 floats.
    ///
    /// # Safety
    /// `2 * LANES` bytes are readable at `from`.
    #[inline(always)]
    unsafe fn load_e4m3<const SECOND: bool>(self, from: *const u8) -> Self::F {
        // SAFETY: the caller's promise.
        let pairs = self.words(unsafe { self.load_bf16(from) });
        self.e4m3(self.and(self.shift(pairs, if SECOND { 24 } else { 16 }), self.splat_words(255)))
    }
    /// Words that hold, in their lowest bits and each shifted as `IN_ORDER` says, the `LANES` codes of `bits` bits.
    ///
    /// `bits` is 1, 2 or 4.
    ///
    /// # Safety
    /// `LANES * bits / 8` bytes are readable at `from`.
    unsafe fn spread_words(self, from: *const u8, bits: usize) -> Self::I;
    /// `LANES` integers of `BITS` bits each, 3, 5, 6 or 7, from a stream of bits, the least significant first.
    ///
    /// # Safety
    /// [`SLACK`] bytes are readable at `from`.
    unsafe fn load_stream<const BITS: usize>(self, from: *const u8) -> Self::I;
    /// Words whose lowest bits are `LANES` times `BITS` bits, 20, 24 or 28, of a stream; what lies above them is anything.
    ///
    /// # Safety
    /// [`SLACK`] bytes are readable behind the `LANES * BITS / 8` at `from`.
    unsafe fn load_spans<const BITS: usize>(self, from: *const u8) -> Self::I;
    /// Writes 32 integers of `BITS` bits each, 2, 3, 5, 6 or 7, as bytes, `above` less than they are in a stream.
    ///
    /// # Safety
    /// [`SLACK`] bytes are readable behind the `4 * BITS` at `from`, and 32 bytes are writable at `to`.
    #[inline(always)]
    unsafe fn unpack<const BITS: usize>(self, from: *const u8, above: u8, to: *mut u8) {
        for eight in 0..4 {
            // SAFETY: the caller's promise.
            unsafe {
                let word = u64::from_le(from.add(eight * BITS).cast::<u64>().read_unaligned());
                to.add(8 * eight).cast::<u64>().write_unaligned(unpacked::<BITS>(word, above).to_le());
            }
        }
    }
    /// Lane `i` is `from[index[i]]`, or 0 if that is not below `count`.
    ///
    /// # Safety
    /// `count` <= `LANES` floats are readable at `from`.
    unsafe fn spread(self, from: *const f32, count: usize, index: Self::I) -> Self::F;
    /// Reads `LANES` words from each of `LANES` rows, `stride` bytes apart, and writes word `d` of row `r` to
    /// `to[d * to_stride + r]`.
    ///
    /// # Safety
    /// The rows are readable, and `LANES` words each `to_stride` words are writable.
    unsafe fn transpose_to(self, from: *const u8, stride: usize, to: *mut u32, to_stride: usize);
    /// The same with one row of the result behind the other.
    ///
    /// # Safety
    /// The rows are readable and `LANES * LANES` words are writable.
    #[inline(always)]
    unsafe fn transpose(self, from: *const u8, stride: usize, to: *mut u32) {
        // SAFETY: the caller's promise.
        unsafe { self.transpose_to(from, stride, to, Self::LANES) }
    }
    /// The same of `count` words of `rows` rows, neither more than `LANES`.
    ///
    /// # Safety
    /// So many words of so many rows are readable.
    #[inline(always)]
    unsafe fn transpose_some(self, from: *const u8, stride: usize, rows: usize, count: usize, to: &mut [u32]) {
        let all = &mut to[..Self::LANES * Self::LANES];
        if rows == Self::LANES && count == Self::LANES {
            // SAFETY: the caller's promise, and there is room.
            return unsafe { self.transpose(from, stride, all.as_mut_ptr()) };
        }
        for row in 0..rows {
            for d in 0..count {
                let at = from.wrapping_add(row * stride + 4 * d);
                // SAFETY: the caller's promise.
                all[d * Self::LANES + row] = u32::from_le(unsafe { at.cast::<u32>().read_unaligned() });
            }
        }
    }
}

/// The smallest E4M3 float with a leading one.
pub(crate) const SMALLEST_NORMAL: f32 = 1.0 / 64.0;

/// For codes of 3, 5, 6 and 7 bits: where code `i` of a stream starts, in bytes.
pub(super) const fn stream_byte(bits: usize, i: usize) -> usize {
    i * bits / 8
}

/// For codes or words of `bits` bits in a stream: how many bits of the byte in which each of 16 starts come before it.
pub(super) const fn stream_shifts(bits: usize) -> [u32; 16] {
    let mut shifts = [0; 16];
    let mut i = 0;
    while i < 16 {
        shifts[i] = (i * bits % 8) as u32;
        i += 1;
    }
    shifts
}

/// A shuffle that brings the two bytes that hold code `i` of a stream to the bottom of word `i`.
pub(super) const fn stream_shuffle<const N: usize>(bits: usize) -> [u8; N] {
    // An index beyond the register, or with the top bit set, gives a zero.
    let mut shuffle = [0xff; N];
    let mut i = 0;
    while i < N / 4 {
        shuffle[4 * i] = stream_byte(bits, i) as u8;
        shuffle[4 * i + 1] = stream_byte(bits, i) as u8 + 1;
        i += 1;
    }
    shuffle
}

/// The eight codes in the lowest bits of a word as bytes, each less by `above`.
#[inline(always)]
pub(crate) fn unpacked<const BITS: usize>(word: u64, above: u8) -> u64 {
    let low = |bits: usize| (1_u64 << bits) - 1;
    // Four codes to each half, two to each quarter, and one to each byte.
    let fours = word & low(4 * BITS) | (word >> (4 * BITS) & low(4 * BITS)) << 32;
    let of_halves = 0x0000_0001_0000_0001 * low(2 * BITS);
    let twos = fours & of_halves | (fours >> (2 * BITS) & of_halves) << 16;
    let of_quarters = 0x0001_0001_0001_0001 * low(BITS);
    let codes = twos & of_quarters | (twos >> BITS & of_quarters) << 8;
    // No byte carries into the next one.
    (codes + 0x0101_0101_0101_0101 * u64::from(0x80 - above)) ^ 0x8080_8080_8080_8080
}

/// For codes of `bits` bits in a stream, in pairs of bytes: a shuffle that brings those that hold eight codes from code `first`
/// on, and what brings each code to the top of its pair as a factor.
#[cfg(target_arch = "x86_64")]
pub(super) const fn unpack_pairs(bits: usize, first: usize) -> ([u8; 16], [u16; 8]) {
    let (mut shuffle, mut factors) = ([0; 16], [0; 8]);
    let mut i = 0;
    while i < 8 {
        let bit = (first + i) * bits;
        shuffle[2 * i] = (bit / 8) as u8;
        shuffle[2 * i + 1] = (bit / 8) as u8 + 1;
        factors[i] = 1 << (16 - bits - bit % 8);
        i += 1;
    }
    (shuffle, factors)
}

/// Bytes of a stream that four words of `bits` bits take.
pub(super) const fn span_bytes(bits: usize) -> usize {
    4 * bits / 8
}

/// A shuffle that brings the bytes that hold the words of `bits` bits, four to a lane of 16 bytes, to their places; each lane
/// has its words from byte `starts[lane]` on.
pub(super) const fn span_shuffle<const N: usize>(bits: usize, starts: &[usize]) -> [u8; N] {
    let mut shuffle = [0; N];
    let mut i = 0;
    while i < N {
        shuffle[i] = (starts[i / 16] + i % 16 / 4 * bits / 8 + i % 4) as u8;
        i += 1;
    }
    shuffle
}

/// A loop with its arguments, to be compiled once for each instruction set.
pub(crate) trait Kernel {
    type Output;
    /// Whether it is compiled for the instruction sets that have vectors.
    const VECTORS: bool = true;
    /// Whether it is compiled for the portable reference.
    const PORTABLE: bool = true;
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Floats of one output panel: two vectors wide.
pub(crate) const fn panel_width<S: Simd>() -> usize {
    2 * S::LANES
}
