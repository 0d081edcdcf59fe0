//! Stochastic rounding: an element takes one of the two values around it, by a random number of its own.
//!
//! With `low` and `high` these values, it takes `high` where the number, from 0 to below 1, is less than `(x - low) /
//! (high - low)`. Its mean over all keys is `x`, if `x` is within the range of its block's values, and an element that
//! is one of these values keeps it. Values are compared as they are decoded: all that is known of a format is the value
//! of each code. The numbers are those of [`uniform`], which depend on nothing but the key and the place of the
//! element.

use std::cmp::Ordering;

use crate::{
    Isa, KernelError, Order, code_bytes,
    encode::{absmax, finite},
    matrix::check_length,
    pack::pack,
    random::uniform,
    search::{Far, FarSearch},
    simd::{Kernel, Simd, run},
    threads,
};

/// The values that codes stand for, in ascending order.
#[derive(Clone, Debug)]
pub struct Levels {
    values: Vec<f32>,
    codes: Vec<u8>,
    thresholds: Vec<f32>,
    search: FarSearch,
    /// By rank: the value, the next one, and the code as the bits of a float.
    lower: [f32; 256],
    upper: [f32; 256],
    coded: [f32; 256],
}

impl Levels {
    /// The levels of codes with these values, at most 256. One that is not finite is never chosen; of equal ones the first is.
    ///
    /// # Errors
    /// There are not two finite values.
    pub fn new(values: &[f32]) -> Result<Self, KernelError> {
        let value = |code: u8| values[usize::from(code)];
        let finite = (0..=u8::MAX).zip(values).filter(|(_, value)| value.is_finite());
        let mut codes: Vec<u8> = finite.map(|(code, _)| code).collect();
        codes.sort_by(|&a, &b| value(a).partial_cmp(&value(b)).unwrap_or(Ordering::Equal));
        codes.dedup_by_key(|code| value(*code));
        if codes.len() < 2 {
            return Err(KernelError::Table { values: values.len() });
        }
        let ascending: Vec<f32> = codes.iter().map(|&code| value(code)).collect();
        // What is greater than the float below a value is not less than the value.
        let thresholds: Vec<f32> = ascending[1..ascending.len() - 1].iter().map(|value| value.next_down()).collect();
        let last = codes.len() - 1;
        Ok(Self {
            search: FarSearch::new(&thresholds, &[]),
            lower: std::array::from_fn(|rank| ascending[rank.min(last)]),
            upper: std::array::from_fn(|rank| ascending[(rank + 1).min(last)]),
            coded: std::array::from_fn(|rank| f32::from_bits(codes[rank.min(last)].into())),
            values: ascending,
            codes,
            thresholds,
        })
    }

    /// The values from the least to the greatest.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Their codes.
    #[must_use]
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// What tells the pairs of neighbors apart: an element that is greater than so many of these, in units of its scale, is rounded
    /// to the value of that rank or to the next one. They are the floats just below all values but the outermost two.
    #[must_use]
    pub fn thresholds(&self) -> &[f32] {
        &self.thresholds
    }
}

/// How floats are rounded to codes at random, by scales that are there already.
///
/// ```
/// use tacit_kernels::{Order, stochastic::{Levels, Stochastic}};
///
/// let levels = Levels::new(&[0.0, 1.0, 2.0, 3.0])?;
/// let rounding = Stochastic {
///     levels: &levels, bits: 2, order: Order::LowFirst, padding: 0, block: 8, scales: &[0.5], biases: None,
/// };
/// let mut codes = [0; 2];
/// rounding.encode(&[0.0, 0.5, 1.5, 9.0, 0.75, 0.75, 0.75, 0.75], [0, 7], &mut codes)?;
/// // What has a code keeps it, and what is beyond the range takes the outermost; 0.75 takes 1 or 2.
/// assert_eq!(codes[0], 0b11_11_01_00);
/// assert!((0..4).all(|at| [1, 2].contains(&(codes[1] >> (2 * at) & 3))));
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Stochastic<'a> {
    /// The values of the codes, in units of a scale.
    pub levels: &'a Levels,
    /// Bits of a code, 1 to 8.
    pub bits: u32,
    /// Which end of a byte is filled first.
    pub order: Order,
    /// The code that fills a last byte up.
    pub padding: u8,
    /// Elements in a block; the last one may be short.
    pub block: usize,
    /// What the values of each block are multiplied by.
    pub scales: &'a [f32],
    /// What is added to them then, if anything.
    pub biases: Option<&'a [f32]>,
}

impl Stochastic<'_> {
    /// Rounds `x: f32[e]` into a stream of codes, in whole bytes, by the numbers of `key`.
    ///
    /// # Errors
    /// A block of no elements, a width that the codes do not fit, a wrong length, or a NaN or infinity in `x`. The codes are then
    /// unspecified.
    pub fn encode(&self, x: &[f32], key: [u32; 2], codes: &mut [u8]) -> Result<(), KernelError> {
        self.encode_part(x, key, (0, x.len()), codes)
    }

    /// Rounds a part `x` of an array by the part's scales: the elements behind the `before` first ones of `count`, of which those of
    /// the part take the numbers. They are whole blocks in whole bytes, but for the last ones of the array.
    ///
    /// # Errors
    /// As for [`encode`](Self::encode).
    pub fn encode_part(
        &self,
        x: &[f32],
        key: [u32; 2],
        (before, count): (usize, usize),
        codes: &mut [u8],
    ) -> Result<(), KernelError> {
        self.check(x.len(), codes.len())?;
        let isa = Isa::detect();
        let parts = x.chunks(CHUNK).zip(codes.chunks_mut(code_bytes(CHUNK, self.bits))).enumerate();
        threads::try_each_part(parts, &|(at, (part, codes))| {
            finite(x, run(isa, Part { rounding: *self, key, count, before, first: at * CHUNK, x: part, codes }))
        })
    }

    fn check(&self, elements: usize, codes: usize) -> Result<(), KernelError> {
        let Self { levels, bits, block, scales, biases, .. } = *self;
        let fits = |code: &u8| u32::from(*code) < 1 << bits;
        if !(1..=8).contains(&bits) || !levels.codes.iter().all(fits) {
            return Err(KernelError::Bits { bits });
        }
        if block == 0 {
            return Err(KernelError::EmptyBlock);
        }
        check_length("codes", codes, code_bytes(elements, bits), "as many as `x` has elements, in whole bytes")?;
        let blocks = elements.div_ceil(block);
        check_length("scales", scales.len(), blocks, "each block of elements has one")?;
        check_length("biases", biases.map_or(blocks, <[f32]>::len), blocks, "each block of elements has one")
    }
}

/// Elements that one task rounds.
const CHUNK: usize = 1 << 14;

/// Elements that are rounded before their codes are packed: whole bytes of every width.
const RUN: usize = 1024;

/// What a block's values are multiplied by, what is added, and what elements are divided by to be found among the levels.
#[derive(Clone, Copy)]
struct Line {
    scale: f32,
    bias: f32,
    divisor: f32,
}

struct Part<'a> {
    rounding: Stochastic<'a>,
    key: [u32; 2],
    /// Elements of the whole array.
    count: usize,
    /// Elements before the first one that has a scale here.
    before: usize,
    /// Elements between that one and this part.
    first: usize,
    x: &'a [f32],
    codes: &'a mut [u8],
}

impl Kernel for Part<'_> {
    /// The first element that is not finite.
    type Output = Option<usize>;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Option<usize> {
        let Stochastic { levels, bits, order, padding, block, scales, biases } = self.rounding;
        let ready = levels.search.ready(simd);
        let (mut numbers, mut coded) = ([0.0; RUN], [0; RUN]);
        let runs = self.x.chunks(RUN).zip(self.codes.chunks_mut(RUN / 8 * bits as usize));
        for (at, (x, bytes)) in runs.enumerate() {
            let first = self.first + at * RUN;
            if !absmax(simd, x).is_finite() {
                return x.iter().position(|value| !value.is_finite()).map(|index| first + index);
            }
            uniform(self.key, self.count, self.before + first, &mut numbers[..x.len()]);
            let mut begin = 0;
            while begin < x.len() {
                let b = (first + begin) / block;
                let end = x.len().min((b + 1).saturating_mul(block) - first);
                let (scale, bias) = (scales[b], if let Some(biases) = biases { biases[b] } else { 0.0 });
                let line = Line { scale, bias, divisor: if scale == 0.0 { 1.0 } else { scale } };
                let (from, to) = (&numbers[begin..end], &mut coded[begin..end]);
                put(levels, ready, simd, line, &x[begin..end], from, to);
                begin = end;
            }
            let padded = x.len().next_multiple_of(8);
            coded[x.len()..padded].fill(padding);
            pack(&coded[..padded], bits, order, bytes);
        }
        None
    }
}

/// Writes the codes of elements of one block, a byte each.
#[inline(always)]
fn put<S: Simd>(levels: &Levels, ready: Far<S>, simd: S, line: Line, x: &[f32], numbers: &[f32], codes: &mut [u8]) {
    let len = x.len().min(numbers.len()).min(codes.len());
    for at in (0..len).step_by(S::LANES) {
        let count = (len - at).min(S::LANES);
        let mut last = [0; 16];
        // SAFETY: so many floats are left in both, and as many codes; a vector has at most 16.
        unsafe {
            let (x, numbers) = (x.as_ptr().add(at), numbers.as_ptr().add(at));
            if count == S::LANES {
                let words = rounded(levels, ready, simd, line, simd.load(x), simd.load(numbers));
                simd.store_bytes(codes.as_mut_ptr().add(at), words);
                continue;
            }
            let (x, numbers) = (simd.load_some(x, count), simd.load_some(numbers, count));
            simd.store_bytes(last.as_mut_ptr(), rounded(levels, ready, simd, line, x, numbers));
        }
        codes[at..len].copy_from_slice(&last[..count]);
    }
}

/// The codes of elements, in the lowest bytes.
#[inline(always)]
fn rounded<S: Simd>(
    levels: &Levels,
    ready: Far<S>,
    simd: S,
    Line { scale, bias, divisor }: Line,
    x: S::F,
    numbers: S::F,
) -> S::I {
    let (scale, bias) = (simd.splat(scale), simd.splat(bias));
    let units = simd.div(simd.sub(x, bias), simd.splat(divisor));
    let rank = levels.search.rank(simd, ready, units);
    let low = simd.add(simd.mul(simd.lookup_far(simd.far(&levels.lower), rank), scale), bias);
    let high = simd.add(simd.mul(simd.lookup_far(simd.far(&levels.upper), rank), scale), bias);
    // Beyond the outermost values it is below 0 or above 1; where all values are one it is no number, or infinite.
    let part = simd.div(simd.sub(x, low), simd.sub(high, low));
    let rank = simd.raise(rank, simd.splat_words(1), part, numbers);
    simd.words(simd.lookup_far(simd.far(&levels.coded), rank))
}
