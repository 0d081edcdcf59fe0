//! The signed dynamic 8-bit format of bitsandbytes, in which it stores the absmax of its nested 4-bit formats.
//!
//! An element is a code of [`map`], in units of its block's absmax. The map is dense near zero and sparse far from it:
//! seven decades, each twice as finely divided as the one below.

use std::sync::LazyLock;

use crate::{
    Isa, KernelError,
    codebook::{check_block, reciprocal},
    encode::{self, Format},
    matrix::check_length,
    search::FarSearch,
    simd::Simd,
};

/// The value of each code, ascending, in units of the block's absmax; code 127 is zero.
#[must_use]
pub fn map() -> &'static [f32; 256] {
    &TABLES.values
}

/// Quantizes `x: f32[e]` into `codes: u8[e]` and `absmax: f32[ceil(e/block)]`.
///
/// An element takes the nearest value of [`map`]; halfway between two, the lesser.
///
/// ```
/// let (mut codes, mut absmax) = ([0; 3], [0.0]);
/// tacit_kernels::dynamic8::quantize(&[2.0, 0.0, -1e-6], 256, &mut codes, &mut absmax)?;
/// assert_eq!((codes, absmax), ([255, 127, 126], [2.0]));
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
///
/// # Errors
/// A block size that is not a power of two from 32 to 4096, a wrong length, or a NaN or infinity in `x`. The outputs
/// are then unspecified.
pub fn quantize(x: &[f32], block: usize, codes: &mut [u8], absmax: &mut [f32]) -> Result<(), KernelError> {
    check_block(block)?;
    check_length("absmax", absmax.len(), x.len().div_ceil(block), "each block of elements has one")?;
    encode::quantize(Isa::detect(), Dynamic(&TABLES), x, block, codes, absmax)
}

/// The mean of the absmax values, which bitsandbytes subtracts before it quantizes them; 0 of none.
///
/// It is summed in `f64` and so correctly rounded. bitsandbytes sums in `f32`, in an order that depends on the machine,
/// and can differ by an ulp or two.
#[must_use]
pub fn offset(absmax: &[f32]) -> f32 {
    if absmax.is_empty() {
        return 0.0;
    }
    (absmax.iter().map(|&value| f64::from(value)).sum::<f64>() / absmax.len() as f64) as f32
}

struct Tables {
    values: [f32; 256],
    /// By what lies between each value and the next.
    search: FarSearch,
}

static TABLES: LazyLock<Tables> = LazyLock::new(|| {
    let mut values = Vec::with_capacity(256);
    values.extend([0.0, 1.0]);
    for (decade, scale) in [1e-6_f32, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0].into_iter().enumerate() {
        let parts = 1_i16 << decade;
        let step = (1.0_f32 - 0.1) / f32::from(parts);
        // Counted from the nearer end and rounded once, as torch.linspace does, to the same bits.
        let boundary = |i: i16| {
            let (start, steps) = if i < (parts + 1) / 2 { (0.1, i) } else { (1.0, i - parts) };
            step.mul_add(f32::from(steps), start)
        };
        for i in 0..parts {
            let mean = f32::midpoint(boundary(i), boundary(i + 1)) * scale;
            values.extend([mean, -mean]);
        }
    }
    values.sort_by(f32::total_cmp);
    let values: [f32; 256] = std::array::from_fn(|i| values[i]);
    let thresholds: [f32; 255] = std::array::from_fn(|i| f32::midpoint(values[i], values[i + 1]));
    Tables { search: FarSearch::new(&thresholds, &std::array::from_fn::<u8, 256, _>(|i| i as u8)), values }
});

#[derive(Clone, Copy)]
struct Dynamic(&'static Tables);

impl Format for Dynamic {
    type Stored = f32;
    /// The reciprocal of the absmax.
    type Scale = f32;
    type Ready<S: Simd> = (&'static FarSearch, S::Ranks);

    #[inline(always)]
    fn bits(self) -> u32 {
        8
    }
    #[inline(always)]
    fn scale<S: Simd>(self, _: S, _: &[f32], absmax: f32) -> f32 {
        absmax
    }
    #[inline(always)]
    fn unit(self, absmax: f32) -> f32 {
        reciprocal(absmax)
    }
    #[inline(always)]
    fn ready<S: Simd>(self, simd: S) -> Self::Ready<S> {
        (&self.0.search, self.0.search.ready(simd))
    }
    #[inline(always)]
    fn codes<S: Simd>((search, sixteens): Self::Ready<S>, simd: S, reciprocal: f32, x: S::F) -> S::I {
        search.code(simd, sixteens, simd.mul(x, simd.splat(reciprocal)))
    }
}
