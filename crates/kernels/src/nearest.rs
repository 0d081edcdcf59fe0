//! Codes of the nearest value of any table, in units of a scale for each block.
//!
//! The scale is the block's largest magnitude over that of the table, so that it takes the table's outermost value. A value
//! that is not finite is never chosen. The formats of bitsandbytes have tables of their own and the same rule, with
//! thresholds to the bit: [`nf4`](crate::nf4) and [`fp4`](crate::fp4).

use crate::{
    Isa, KernelError,
    codebook::reciprocal,
    encode::{self, Format},
    search::{self, FarSearch, Search},
    simd::Simd,
};

/// A table of 2, 4, 8, 16 or 256 values, whose codes are their places, of 1, 2, 3, 4 or 8 bits.
#[derive(Clone, Debug)]
pub struct Table<'a> {
    values: &'a [f32],
    thresholds: Vec<f32>,
    by_rank: Vec<u8>,
    top: f32,
}

impl<'a> Table<'a> {
    /// The table of these values, in any order.
    ///
    /// # Errors
    /// There are not 2, 4, 8, 16 or 256 values, or none that is finite and not zero.
    pub fn new(values: &'a [f32]) -> Result<Self, KernelError> {
        let mut by_rank: Vec<u8> = (0..=u8::MAX).zip(values).filter(|(_, x)| x.is_finite()).map(|(at, _)| at).collect();
        let value = |code: u8| values[usize::from(code)];
        by_rank.sort_by(|&a, &b| value(a).total_cmp(&value(b)));
        let thresholds = by_rank.windows(2).map(|pair| f32::midpoint(value(pair[0]), value(pair[1]))).collect();
        let top = by_rank.iter().fold(0.0, |most: f32, &code| most.max(value(code).abs()));
        if !matches!(values.len(), 2 | 4 | 8 | 16 | 256) || top == 0.0 {
            return Err(KernelError::Table { values: values.len() });
        }
        Ok(Self { values, thresholds, by_rank, top })
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

    /// The largest finite magnitude.
    #[must_use]
    pub fn top(&self) -> f32 {
        self.top
    }

    /// Quantizes `x: f32[e]` in flat blocks into a stream of codes, the first in the lowest bits, and
    /// `scales: f32[ceil(e/block)]`.
    ///
    /// An element takes the value nearest to `x * (1 / max(scale, 1e-38))`; halfway between two, the lesser.
    ///
    /// ```
    /// use tacit_kernels::nearest::Table;
    ///
    /// let (mut codes, mut scales) = ([0; 2], [0.0]);
    /// Table::new(&[-2.0, -0.5, 0.0, 2.0])?.quantize(&[4.0, -1.0, -3.0, 0.1, -4.0], 8, &mut codes, &mut scales)?;
    /// assert_eq!((codes, scales), ([0b10_00_01_11, 0b00], [2.0]));
    /// # Ok::<(), tacit_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// A block of no elements, a wrong length, or a NaN or infinity in `x`. The outputs are then unspecified.
    pub fn quantize(&self, x: &[f32], block: usize, codes: &mut [u8], scales: &mut [f32]) -> Result<(), KernelError> {
        if self.bits() == 8 {
            let format = NearestByte { top: self.top, search: &self.far_search() };
            return encode::quantize(Isa::detect(), format, x, block, codes, scales);
        }
        encode::quantize(Isa::detect(), Nearest { table: self, search: &self.search() }, x, block, codes, scales)
    }

    /// Codes `x` as [`quantize`](Self::quantize) does, by these scales.
    ///
    /// # Errors
    /// As for [`quantize`](Self::quantize).
    pub fn quantize_by(&self, x: &[f32], block: usize, scales: &[f32], codes: &mut [u8]) -> Result<(), KernelError> {
        if self.bits() == 8 {
            let format = NearestByte { top: self.top, search: &self.far_search() };
            return encode::quantize_by(Isa::detect(), format, x, block, scales, codes);
        }
        encode::quantize_by(Isa::detect(), Nearest { table: self, search: &self.search() }, x, block, scales, codes)
    }
}

impl Table<'_> {
    fn bits(&self) -> u32 {
        self.values.len().ilog2()
    }

    /// What finds the codes of at most 16 values.
    fn search(&self) -> Search {
        Search::new(
            std::array::from_fn(|at| self.thresholds.get(at).copied().unwrap_or(f32::INFINITY)),
            std::array::from_fn(|rank| self.by_rank.get(rank).copied().unwrap_or(0)),
        )
    }

    fn far_search(&self) -> FarSearch {
        FarSearch::new(&self.thresholds, &self.by_rank)
    }
}

#[derive(Clone, Copy)]
struct Nearest<'a> {
    table: &'a Table<'a>,
    search: &'a Search,
}

impl Format for Nearest<'_> {
    type Stored = f32;
    /// The reciprocal of the scale.
    type Scale = f32;
    type Ready<S: Simd> = search::Ready<S>;

    #[inline(always)]
    fn bits(self) -> u32 {
        self.table.bits()
    }
    #[inline(always)]
    fn scale<S: Simd>(self, _: S, _: &[f32], absmax: f32) -> f32 {
        absmax / self.table.top
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
        ready.code(simd, simd.mul(x, simd.splat(reciprocal)))
    }
}

/// One of 256 values.
#[derive(Clone, Copy)]
struct NearestByte<'a> {
    top: f32,
    search: &'a FarSearch,
}

impl<'a> Format for NearestByte<'a> {
    type Stored = f32;
    /// The reciprocal of the scale.
    type Scale = f32;
    type Ready<S: Simd> = (&'a FarSearch, S::Ranks);

    #[inline(always)]
    fn bits(self) -> u32 {
        8
    }
    #[inline(always)]
    fn scale<S: Simd>(self, _: S, _: &[f32], absmax: f32) -> f32 {
        absmax / self.top
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
    fn codes<S: Simd>((search, sixteens): Self::Ready<S>, simd: S, reciprocal: f32, x: S::F) -> S::I {
        search.code(simd, sixteens, simd.mul(x, simd.splat(reciprocal)))
    }
}
