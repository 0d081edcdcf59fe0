//! bitsandbytes' 8-bit dynamic floats, as the scales of other arrays are stored.

use std::ops::Range;

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value};
use tacit_kernels::gcd;

use crate::avals::checks::{check_block_size, check_children, check_elements, checked};
use crate::families::cut::{Cut, cut};
use crate::kernel;

/// A vector of 8 bits an element: codes of floats with a scale for each block, and an offset that all share.
///
/// It stands for `map[code] * absmax + offset`. As the scales of an [`Nf4Array`](crate::Nf4Array) or an
/// [`Fp4Array`](crate::Fp4Array) it makes their double quantization, whose products read it as it is.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops};
/// use tacit_arrays::Dynamic8Array;
/// use tacit_core::Value;
///
/// let scales = ops::ones::<f32>(&[512])?;
/// let array = Dynamic8Array::quantize(&scales, 256)?;
/// assert_eq!(Value::from(array).dense()?.as_slice::<f32>(), [1.0; 512]);
/// # Ok(())
/// # }
/// ```
///
/// The format is that of bitsandbytes' `create_dynamic_map(signed=True)` with `compress_statistics`.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Dynamic8", family(Cut))]
pub struct Dynamic8Array {
    /// `u8[n]`.
    codes: Array,
    /// The scale of each block: `f32[ceil(n/block_size)]`.
    absmax: Array,
    /// What is added to each element: `f32[]`.
    offset: Array,
    /// Elements in a block.
    #[implicit(aux, get)]
    block_size: usize,
    #[implicit(aux)]
    aval: Aval,
}

const LABEL: &str = "dynamic8";

impl Dynamic8Array {
    /// Quantizes the vector `x: f32[n]` in blocks of `block_size` elements, of which bitsandbytes takes 256.
    ///
    /// The offset is the mean of `x`. It is lazy, and works inside `grad` and `compile`.
    ///
    /// # Errors
    ///
    /// `x` is not a vector of `f32` with elements, or the block size is not a power of two from 32 to 4096. A NaN or an
    /// infinity in `x` is an error of the eval.
    pub fn quantize(x: &Array, block_size: usize) -> Result<Self> {
        check_block_size(LABEL, block_size)?;
        let aval = check(Aval::from(x), block_size)?;
        let [codes, absmax, offset] = kernel::quantize_dynamic8(x, block_size)?;
        Ok(Self { codes, absmax, offset, block_size, aval })
    }

    /// The array of codes, scales and offset that were made elsewhere, such as a bitsandbytes checkpoint.
    ///
    /// # Errors
    ///
    /// A shape or dtype does not fit the others.
    pub fn from_parts(codes: Array, absmax: Array, offset: Array, block_size: usize) -> Result<Self> {
        let aval = Aval::new(codes.shape(), Dtype::Float32);
        checked(Self { codes, absmax, offset, block_size, aval })
    }

    /// The value of each code, ascending, in units of its block's scale.
    #[must_use]
    pub fn map() -> &'static [f32; 256] {
        tacit_kernels::dynamic8::map()
    }

    /// The codes, the scale of each block, and the offset.
    #[must_use]
    pub fn parts(&self) -> [Array; 3] {
        [self.codes.clone(), self.absmax.clone(), self.offset.clone()]
    }

    /// Other codes and their scales with the same offset, in blocks of `block_size` elements. The floats may have been cast,
    /// as a tree of them may be.
    pub(crate) fn with(&self, codes: Array, absmax: Array, block_size: usize) -> Self {
        let aval = Aval::new(codes.shape(), Dtype::Float32);
        Self { codes, absmax, offset: self.offset.clone(), block_size, aval }
    }

    /// The same codes in blocks of `block_size` elements, which divide the array's own, each with the scale of the whole.
    pub(crate) fn reblocked(&self, block_size: usize) -> Result<Self> {
        let count = self.codes.size().div_ceil(block_size);
        let absmax = each_repeated(&self.absmax, self.block_size / block_size, count)?;
        Ok(Self { absmax, block_size, ..self.clone() })
    }

    /// The array after a linear map.
    pub(crate) fn scaled(&self, map: impl Fn(&Array) -> Result<Array>) -> Result<Self> {
        Ok(Self { absmax: map(&self.absmax)?, offset: map(&self.offset)?, ..self.clone() })
    }
}

/// Codes may be in smaller blocks than those that are quantized: a part of a block keeps its scale.
fn check(aval: Aval, block_size: usize) -> Result<Aval> {
    check_elements(LABEL, &aval)?;
    check_block_size(LABEL, if block_size.is_power_of_two() { block_size.max(32) } else { block_size })?;
    if aval.shape.len() != 1 || aval.dtype != Dtype::Float32 {
        return Err(Error::invalid(format!("{aval} cannot be {LABEL}"), "quantize a vector of f32"));
    }
    Ok(aval)
}

impl Materialize for Dynamic8Array {
    fn materialize(&self) -> Result<Value> {
        Ok(kernel::nested(&self.codes, &self.absmax, &self.offset, self.block_size)?.into())
    }

    fn check(&self) -> Result<()> {
        let aval = check(self.aval.clone(), self.block_size)?;
        let f32 = |shape: &[i32]| Aval::new(shape, Dtype::Float32);
        let expected = [
            ("codes", Aval::new(&aval.shape, Dtype::Uint8), Aval::from(&self.codes)),
            ("absmax", f32(&[aval.size().div_ceil(self.block_size) as i32]), Aval::from(&self.absmax)),
            ("offset", f32(&[]), Aval::from(&self.offset)),
        ];
        check_children(LABEL, &aval, &expected)
    }
}

impl Cut for Dynamic8Array {
    fn cut(&self, _axis: usize, range: Range<i32>) -> Result<Value> {
        let [from, to] = [range.start, range.end].map(|at| at as usize);
        let whole = if to == self.codes.size() { from } else { to };
        let smaller = self.reblocked([from, whole].into_iter().fold(self.block_size, gcd))?;
        let block = smaller.block_size;
        let part = |array: &Array, range: Range<usize>| cut(&array.into(), 0, range.start as i32..range.end as i32);
        let (codes, absmax) = (part(&self.codes, from..to)?, part(&smaller.absmax, from / block..to.div_ceil(block))?);
        Ok(self.with(codes.dense()?, absmax.dense()?, block).into())
    }
}

/// Each element so many times, one after the other, of which the first `count` are kept: `[count]`.
pub(crate) fn each_repeated(array: &Array, times: usize, count: usize) -> Result<Array> {
    if times == 1 && array.size() == count {
        return Ok(array.reshape(&[-1])?);
    }
    let repeated = ops::broadcast_to(array.reshape(&[-1, 1])?, &[array.size() as i32, times as i32])?;
    Ok(repeated.reshape(&[-1])?.try_index(..count as i32)?)
}
