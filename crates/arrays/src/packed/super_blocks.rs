//! Scales that are integers with a factor for each super-block, as K-quants have them.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops, stop_gradient};
use tacit_core::Result;

use crate::format::int8::Int8Array;
use crate::kernel::{self, Scheme};
use crate::packed::read::dense;

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
    let (groups, _) = scheme.integers()?;
    let missing = x.size().next_multiple_of(block * groups) - x.size();
    Ok(ops::pad(&x.reshape(&[-1])?, &[(0, missing as i32)][..], None, None)?.reshape(&[-1, block as i32])?)
}

/// The scales of blocks by their range, and the biases where they are no multiples of them: `f32[blocks, 1]`.
pub(crate) fn ranges(x: &Array, scheme: &Scheme) -> Result<Vec<Array>> {
    let (low, high) = (x.min_axis(-1, true)?, x.max_axis(-1, true)?);
    if scheme.integers()?.1 {
        // The larger end is the code 0, which reaches one step further than the last one.
        let edge = ops::select(low.abs()?.gt(high.abs()?)?, low, high)?;
        return Ok(vec![edge.divide(scheme.center())?]);
    }
    let (low, top) = (ops::minimum(low, Array::from_f32(0.0))?, top(scheme));
    // The difference of the two might overflow.
    Ok(vec![high.divide(&top)?.subtract(low.divide(&top)?)?, low])
}

/// The codes of `size` elements in blocks, and the scales that these are given, as they are stored.
pub(crate) fn encoded_by(x: &Array, size: usize, made: &[Array], scheme: &Scheme) -> Result<(Array, Int8Array)> {
    let (groups, centered) = scheme.integers()?;
    let number = Array::from_f32;
    let rows: Vec<Array> = made.iter().map(|row| row.reshape(&[-1, groups as i32])).collect::<Result<_, _>>()?;
    let scales = Int8Array::quantize(&ops::stack(&rows, 0)?, groups)?;
    // Codes are chosen for the scales as they are stored.
    let stored = dense(&scales)?.dense()?.reshape(&[made.len() as i32, -1, 1])?;
    let scale = stored.try_index(0)?;
    let bias = if centered {
        // The greatest floats may lie one step beyond what is a float.
        ops::clip(scale.multiply(scheme.center())?, (number(f32::MIN), number(f32::MAX)))?
    } else {
        stored.try_index(1)?
    };
    let divisor = ops::select(scale.eq(number(0.0))?, number(1.0), scale)?;
    let codes = ops::clip(x.subtract(bias)?.divide(divisor)?.round(None)?, (number(0.0), top(scheme)))?;
    let codes = stop_gradient(codes)?.as_dtype(Dtype::Uint8)?;
    Ok((kernel::packed_codes(&codes, scheme, size)?, scales))
}
