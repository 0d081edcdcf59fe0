//! Codes of the nearest value of any table, in units of a scale for each block.
//!
//! The scale is the block's largest magnitude over that of the table, so that it takes the table's outermost value; on the side on
//! which a table ends nearer to zero it cuts elements off, unless [its scales reach](Table::reaching) both ends. A value that is not
//! finite is never chosen, nor is -0 beside 0. The formats of bitsandbytes have tables of their own and the same rule, with
//! thresholds to the bit: [`nf4`](crate::nf4) and [`fp4`](crate::fp4).

use std::sync::Arc;

use crate::{
    Encoder, KernelError, Order,
    encode::{Format, range},
    encoder::{BlockRule, Rule, Top},
    search::{self, Far, FarSearch, Search},
    simd::Simd,
};

/// A table of 2, 4, 8, 16 or 256 values, whose codes are their places, of 1, 2, 3, 4 or 8 bits.
#[derive(Clone, Debug)]
pub struct Table<'a> {
    values: &'a [f32],
    thresholds: Vec<f32>,
    by_rank: Vec<u8>,
    top: f32,
    reaches: bool,
}

impl<'a> Table<'a> {
    /// The table of these values, in any order.
    ///
    /// # Errors
    /// There are not 2, 4, 8, 16 or 256 values, or none that is finite and not zero.
    pub fn new(values: &'a [f32]) -> Result<Self, KernelError> {
        // No threshold tells two zeros apart: a table with both, as one of small floats, would make zeros negative.
        let is_doubled = |x: f32| x == 0.0 && x.is_sign_negative() && values.iter().any(|x| x.to_bits() == 0);
        let is_chosen = |x: f32| x.is_finite() && !is_doubled(x);
        let mut by_rank: Vec<u8> =
            (0..=u8::MAX).zip(values).filter(|(_, x)| is_chosen(**x)).map(|(at, _)| at).collect();
        let value = |code: u8| values[usize::from(code)];
        by_rank.sort_by(|&a, &b| value(a).total_cmp(&value(b)));
        let thresholds = by_rank.windows(2).map(|pair| f32::midpoint(value(pair[0]), value(pair[1]))).collect();
        let top = by_rank.iter().fold(0.0, |top: f32, &code| top.max(value(code).abs()));
        if !matches!(values.len(), 2 | 4 | 8 | 16 | 256) || top == 0.0 {
            return Err(KernelError::Table { values: values.len() });
        }
        Ok(Self { values, thresholds, by_rank, top, reaches: false })
    }

    /// The same with scales that reach both ends of a block, the least such: the greater of its greatest element over the greatest
    /// value and its least element over the least value.
    ///
    /// The end that decides is coded as itself, and nothing is cut off. A table without values on both sides of zero is coded as it is
    /// otherwise; so is each block of which otherwise nothing is cut off.
    ///
    /// ```
    /// use tacit_kernels::{BlockScales, nearest::Table};
    ///
    /// let (mut codes, mut scales) = ([0; 1], [0.0]);
    /// let encoder = Table::new(&[-0.5, -0.25, 0.25, 1.0])?.reaching().encoder(4);
    /// encoder.quantize(&[-4.0, 1.5, -1.5, 7.0], &mut codes, BlockScales::Floats(&mut scales))?;
    /// assert_eq!((codes, scales), ([0b11_01_10_00], [8.0]));
    /// # Ok::<(), tacit_kernels::KernelError>(())
    /// ```
    #[must_use]
    pub fn reaching(self) -> Self {
        Self { reaches: true, ..self }
    }

    /// The scaled value above which the code of rank `i + 1` is chosen over that of rank `i`.
    #[must_use]
    pub fn thresholds(&self) -> &[f32] {
        &self.thresholds
    }

    /// The codes from the least value to the greatest.
    #[must_use]
    pub fn by_rank(&self) -> &[u8] {
        &self.by_rank
    }

    /// What the least and the greatest element of a block are divided by, of which the scale is the greater quotient: the largest
    /// finite magnitude with either sign, or the outermost finite values of a table that [reaches](Self::reaching) both ends.
    #[must_use]
    pub fn ends(&self) -> [f32; 2] {
        let codes = [self.by_rank.first(), self.by_rank.last()];
        match codes.map(|code| code.map_or(0.0, |&code| self.values[usize::from(code)])) {
            ends @ [least, greatest] if self.reaches && least < 0.0 && greatest > 0.0 => ends,
            _ => [-self.top, self.top],
        }
    }

    /// The encoder of blocks of `block` elements into a stream of codes, the first in the lowest bits, with a float for each
    /// block.
    ///
    /// An element takes the value nearest to `x / scale`, whose magnitude is at least 1e-38; halfway between two, the lesser.
    ///
    /// ```
    /// use tacit_kernels::{BlockScales, nearest::Table};
    ///
    /// let (mut codes, mut scales) = ([0; 2], [0.0]);
    /// let encoder = Table::new(&[-2.0, -0.5, 0.0, 2.0])?.encoder(8);
    /// encoder.quantize(&[4.0, -1.0, -3.0, 0.1, -4.0], &mut codes, BlockScales::Floats(&mut scales))?;
    /// assert_eq!((codes, scales), ([0b10_00_01_11, 0b00], [2.0]));
    /// # Ok::<(), tacit_kernels::KernelError>(())
    /// ```
    #[must_use]
    pub fn encoder(&self, block: usize) -> Encoder {
        let (bits, ends) = (self.values.len().ilog2(), self.ends());
        let top = if ends[0] + ends[1] == 0.0 { Top::Absmax(ends[1]) } else { Top::Reach(ends) };
        if bits == 8 {
            let search = Arc::new(FarSearch::new(&self.thresholds, &self.by_rank));
            return Encoder::new(block, Rule::NearestByte { search, top });
        }
        let search = Search::new(
            std::array::from_fn(|at| self.thresholds.get(at).copied().unwrap_or(f32::INFINITY)),
            std::array::from_fn(|rank| self.by_rank.get(rank).copied().unwrap_or(0)),
        );
        Encoder::new(block, Rule::Nearest { search: Box::new(search), top, bits })
    }
}

/// A blockwise format of bitsandbytes: 4 bits, the first in the high nibble, in units of the absmax.
pub(crate) fn bitsandbytes(block: usize, search: &Search, padding: u8) -> Encoder {
    let rule = Rule::Nearest { search: Box::new(*search), top: Top::Absmax(1.0), bits: 4 };
    let encoder = Encoder::new(block, rule);
    Encoder { blocks: BlockRule::PowerOfTwo, order: Order::HighFirst, padding, ..encoder }
}

/// The factor that scales a block with this scale into the range of its table. A scale that is given may be negative.
#[inline(always)]
pub(crate) fn reciprocal(scale: f32) -> f32 {
    1.0 / scale.abs().max(1e-38).copysign(scale)
}

impl Top {
    /// The scale of a block whose largest magnitude is `absmax`.
    #[inline(always)]
    #[allow(clippy::float_cmp, reason = "a quotient by exactly one is not waited for")]
    fn scale<S: Simd>(self, simd: S, block: &[f32], absmax: f32) -> f32 {
        match self {
            Self::Absmax(1.0) => absmax,
            Self::Absmax(top) => absmax / top,
            Self::Reach([least, greatest]) => {
                let (low, high) = range(simd, block);
                // The scale of zeros is not negative.
                (high / greatest).max(low / least) + 0.0
            }
        }
    }
}

/// One of at most sixteen values, whose codes may have four bits, and may be their ranks: known in advance, as packing is slower
/// where it is not, and ranks need not be looked up.
#[derive(Clone, Copy)]
pub(crate) struct Nearest<'a, const FOUR: bool, const IN_ORDER: bool> {
    pub(crate) search: &'a Search,
    pub(crate) top: Top,
    pub(crate) bits: u32,
}

impl<const FOUR: bool, const IN_ORDER: bool> Format for Nearest<'_, FOUR, IN_ORDER> {
    type Stored = f32;
    /// The reciprocal of the scale.
    type Scale = f32;
    type Ready<S: Simd> = search::Ready<S>;

    #[inline(always)]
    fn bits(self) -> u32 {
        if FOUR { 4 } else { self.bits }
    }
    #[inline(always)]
    fn scale<S: Simd>(self, simd: S, block: &[f32], absmax: f32) -> f32 {
        self.top.scale(simd, block, absmax)
    }
    #[inline(always)]
    fn unit(self, scale: f32) -> f32 {
        reciprocal(scale)
    }
    #[inline(always)]
    fn ready<S: Simd>(self, simd: S) -> search::Ready<S> {
        self.search.ready(simd)
    }
    #[inline(always)]
    fn codes<S: Simd>(ready: search::Ready<S>, simd: S, reciprocal: f32, x: S::F) -> S::I {
        let scaled = simd.mul(x, simd.splat(reciprocal));
        if IN_ORDER { ready.rank(simd, scaled) } else { ready.code(simd, scaled) }
    }
}

/// One of 256 values, whose codes may be their ranks.
#[derive(Clone, Copy)]
pub(crate) struct NearestByte<'a, const IN_ORDER: bool> {
    pub(crate) search: &'a FarSearch,
    pub(crate) top: Top,
}

impl<'a, const IN_ORDER: bool> Format for NearestByte<'a, IN_ORDER> {
    type Stored = f32;
    /// The reciprocal of the scale.
    type Scale = f32;
    type Ready<S: Simd> = (&'a FarSearch, Far<S>);

    #[inline(always)]
    fn bits(self) -> u32 {
        8
    }
    #[inline(always)]
    fn scale<S: Simd>(self, simd: S, block: &[f32], absmax: f32) -> f32 {
        self.top.scale(simd, block, absmax)
    }
    #[inline(always)]
    fn unit(self, scale: f32) -> f32 {
        reciprocal(scale)
    }
    #[inline(always)]
    fn ready<S: Simd>(self, simd: S) -> Self::Ready<S> {
        (self.search, self.search.ready(simd))
    }
    #[inline(always)]
    fn codes<S: Simd>((search, ready): Self::Ready<S>, simd: S, reciprocal: f32, x: S::F) -> S::I {
        let scaled = simd.mul(x, simd.splat(reciprocal));
        if IN_ORDER { search.rank(simd, ready, scaled) } else { search.code(simd, ready, scaled) }
    }
}
