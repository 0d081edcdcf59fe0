//! GGUF's K-quants: 2 to 6 bits an element, with 8-bit integers for scales.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops, stop_gradient};
use tacit_core::{Error, Result, Value, register_array};

use crate::format::declaration::{Format, TextForm};
use crate::int8::Int8Array;
use crate::kernel::{self, Coding, Encoding, Layout, Nested, Scaling, Scheme};
use crate::packed::{self, Packed};
use crate::packed_array::PackedArray;
use crate::register_format;

/// An array of any shape in 2 to 6 bits an element, as GGUF's `Q2_K` to `Q6_K` have them.
///
/// Groups of 16 elements (2, 3 and 6 bits) or 32 (4 and 5 bits), counted row-major, share a scale, which is an integer
/// times a float of their super-block of 256. With 3 and 6 bits an element is `(code - 2^(bits-1)) * scale`; with 2, 4 and
/// 5 bits `code * scale + bias`, where the bias is made like the scale.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::{KQuantArray, format::KQuant};
/// use tacit_core::implicit;
///
/// let w = KQuantArray::quantize(&ops::ones::<f32>(&[8, 256])?, KQuant { bits: 6 })?;
/// let x = ops::ones::<f32>(&[2, 256])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [256.0; 16]);
/// # Ok(())
/// # }
/// ```
///
/// The codes are `u8[ceil(size * bits / 8)]`, one stream of bits, the lowest first. The scales are an [`Int8Array`] that
/// stands for `f32[1, s, g]`, `s` super-blocks of `g` groups, or for `f32[2, s, g]`, scales and then biases. So `Q4_K`
/// takes 4.75 bits an element, and `Q6_K` 6.625. The formats are defined by `ggml-quants.c`; quantizing takes the range of
/// each group and does not search for a better one, as llama.cpp does.
pub type KQuantArray = PackedArray<KQuant>;

/// GGUF's K-quants, by the bits of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KQuant {
    /// Bits of an element, 2 to 6.
    pub bits: u32,
}

impl KQuant {
    /// Elements that share a scale.
    #[must_use]
    pub fn group(self) -> usize {
        if matches!(self.bits, 4 | 5) { 32 } else { 16 }
    }

    /// Whether the middle code stands for zero, and there are no biases.
    #[must_use]
    pub fn is_centered(self) -> bool {
        matches!(self.bits, 3 | 6)
    }
}

/// Elements of a super-block.
const SUPER: usize = 256;

impl Format for KQuant {
    const SAVED_AS: &'static str = "tacit.KQuant";

    fn scheme(&self) -> Scheme {
        let nested = Nested::Integers { block: SUPER / self.group(), centered: self.is_centered() };
        let coding = Coding::Unsigned { bits: self.bits };
        Scheme { nested: Some(nested), ..Scheme::flat(Self::NAME, Encoding::Affine, coding) }
    }

    fn block(&self) -> usize {
        self.group()
    }

    fn check(&self) -> Result<()> {
        if (2..=6).contains(&self.bits) {
            return Ok(());
        }
        Err(Error::invalid(format!("there is no K-quant of {} bits", self.bits), "use 2, 3, 4, 5 or 6 bits"))
    }
}

impl TextForm for KQuant {
    const NAME: &'static str = "k";
    const FORMS: &'static str = "k:BITS";

    fn options(&self) -> String {
        format!(":{}", self.bits)
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        let [bits] = options else { return None };
        Some(Self { bits: bits.parse().ok()? })
    }
}

register_format!(KQuant);
register_array!(KQuantArray);

/// How many scales share a float, and whether there are no biases.
fn integers(scheme: &Scheme) -> Result<(usize, bool)> {
    match scheme.nested {
        Some(Nested::Integers { block, centered }) => Ok((block, centered)),
        _ => Err(Error::decline("the scales are not integers")),
    }
}

/// What is added to a code in the middle of a group without a bias.
pub(crate) fn center(scheme: &Scheme) -> Array {
    Array::from_f32(-((1_u32 << (scheme.bits() - 1)) as f32))
}

/// Scales and biases as the kernels read them, and how these are made, where a block has integers for both.
pub(crate) fn children(scales: &Value, layout: &Layout) -> Result<(Scaling, Vec<Array>)> {
    let (block, centered) = integers(&layout.scheme)?;
    let blocks = (layout.n * layout.k).div_ceil(layout.block) as i32;
    let row = |array: &Array, row: i32| -> Result<Array> {
        let row = array.try_index(row)?.reshape(&[-1])?;
        Ok(if row.size() as i32 == blocks { row } else { row.try_index(..blocks)? })
    };
    let center = center(&layout.scheme);
    let Some(integers) = scales.downcast::<Int8Array>() else {
        // Scales that a tree of them made dense.
        let dense = scales.dense()?;
        let first = row(&dense, 0)?;
        let biases = if centered { first.multiply(center)? } else { row(&dense, 1)? };
        return Ok((Scaling::Float, vec![first, biases]));
    };
    let stored = integers.stored();
    let rows = stored.codes.dim(0);
    // The integers' own unit is their largest magnitude, 127.
    let factors = stored.scales.as_ref().ok_or_else(|| Error::decline("the integers have no scales"))?;
    let factors = factors.dense()?.as_dtype(Dtype::Float32)?.divide(Array::from_f32(127.0))?;
    let factors = factors.reshape(&[rows, -1])?;
    let (codes, scale) = (row(&stored.codes, 0)?, factors.try_index(0)?);
    let (bias_codes, bias) = if centered {
        (codes.clone(), scale.multiply(center)?)
    } else {
        (row(&stored.codes, 1)?, factors.try_index(1)?)
    };
    Ok((Scaling::Integers { block }, vec![codes, scale, bias_codes, bias]))
}

/// The greatest code.
fn top(scheme: &Scheme) -> Array {
    Array::from_f32(((1_u32 << scheme.bits()) - 1) as f32)
}

/// The codes of `x: f32[..]` and the scales of its blocks.
pub(crate) fn encoded(x: &Array, scheme: &Scheme, block: usize) -> Result<(Array, Int8Array)> {
    let blocks = in_blocks(x, scheme, block)?;
    encoded_by(&blocks, x.size(), &ranges(&blocks, scheme)?, scheme)
}

/// Whole super-blocks of `x`, filled up with zeros: `f32[blocks, block]`.
pub(crate) fn in_blocks(x: &Array, scheme: &Scheme, block: usize) -> Result<Array> {
    let (groups, _) = integers(scheme)?;
    let missing = x.size().next_multiple_of(block * groups) - x.size();
    Ok(ops::pad(&x.reshape(&[-1])?, &[(0, missing as i32)][..], None, None)?.reshape(&[-1, block as i32])?)
}

/// The scales of blocks by their range, and the biases where they are no multiples of them: `f32[blocks, 1]`.
pub(crate) fn ranges(x: &Array, scheme: &Scheme) -> Result<Vec<Array>> {
    let (low, high) = (x.min_axis(-1, true)?, x.max_axis(-1, true)?);
    if integers(scheme)?.1 {
        // The larger end is the code 0, which reaches one step further than the last one.
        let edge = ops::select(low.abs()?.gt(high.abs()?)?, low, high)?;
        return Ok(vec![edge.divide(center(scheme))?]);
    }
    let (low, top) = (ops::minimum(low, Array::from_f32(0.0))?, top(scheme));
    // The difference of the two might overflow.
    Ok(vec![high.divide(&top)?.subtract(low.divide(&top)?)?, low])
}

/// The codes of `size` elements in blocks, and the scales that these are given, as they are stored.
pub(crate) fn encoded_by(x: &Array, size: usize, made: &[Array], scheme: &Scheme) -> Result<(Array, Int8Array)> {
    let (groups, centered) = integers(scheme)?;
    let number = Array::from_f32;
    let rows: Vec<Array> = made.iter().map(|row| row.reshape(&[-1, groups as i32])).collect::<Result<_, _>>()?;
    let scales = Int8Array::quantize(&ops::stack(&rows, 0)?, groups)?;
    // Codes are chosen for the scales as they are stored.
    let stored = packed::dense(&scales)?.dense()?.reshape(&[made.len() as i32, -1, 1])?;
    let scale = stored.try_index(0)?;
    let bias = if centered { scale.multiply(center(scheme))? } else { stored.try_index(1)? };
    let divisor = ops::select(scale.eq(number(0.0))?, number(1.0), scale)?;
    let codes = ops::clip(x.subtract(bias)?.divide(divisor)?.round(None)?, (number(0.0), top(scheme)))?;
    let codes = stop_gradient(codes)?.as_dtype(Dtype::Uint8)?;
    Ok((kernel::packed_codes(&codes, scheme, size)?, scales))
}
