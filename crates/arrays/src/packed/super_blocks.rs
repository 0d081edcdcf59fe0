//! Scales that are integers with a factor for each super-block, as K-quants have them.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, ops};
use tacit_core::Result;

use crate::format::int8::Int8Array;
use crate::kernel::{self, Scheme};
use crate::packed::read::dense;

/// The codes of `x: f32[..]`, before which `before` elements come in the array that it is a piece of, and the scales of its blocks.
pub(crate) fn encoded(x: &Array, scheme: &Scheme, block: usize, before: usize) -> Result<(Array, Int8Array)> {
    let blocks = in_blocks(x, scheme, block)?;
    encoded_by(&blocks, x.size(), &ranges(&blocks, scheme, before)?, scheme)
}

/// Whole super-blocks of `x`, filled up with zeros: `f32[blocks, block]`.
pub(crate) fn in_blocks(x: &Array, scheme: &Scheme, block: usize) -> Result<Array> {
    let groups = scheme.integers()?;
    let missing = x.size().next_multiple_of(block * groups) - x.size();
    let flat = x.reshape(&[-1])?;
    // MLX copies what it pads, also with nothing.
    let whole = if missing == 0 { flat } else { ops::pad(&flat, &[(0, missing as i32)][..], None, None)? };
    Ok(whole.reshape(&[-1, block as i32])?)
}

/// The scales of blocks by their range, and the biases where they are no multiples of them: `f32[blocks, 1]`.
pub(crate) fn ranges(x: &Array, scheme: &Scheme, before: usize) -> Result<Vec<Array>> {
    let ends = kernel::block_ranges(before, x)?;
    if scheme.is_centered() {
        return Ok(vec![kernel::symmetric_scales(&ends, scheme)?]);
    }
    let [low, high] = ends;
    let (low, top) = (ops::minimum(low, Array::from_f32(0.0))?, kernel::top_code(scheme));
    // The difference of the two might overflow.
    Ok(vec![high.divide(&top)?.subtract(low.divide(&top)?)?, low])
}

/// The codes of `size` elements in blocks by these scales, and biases if there are any, and how all of these are stored.
pub(crate) fn encoded_by(x: &Array, size: usize, numbers: &[Array], scheme: &Scheme) -> Result<(Array, Int8Array)> {
    let groups = scheme.integers()?;
    let row = |numbers: &Array| -> Result<Array> { Ok(in_blocks(numbers, scheme, 1)?.reshape(&[-1, groups as i32])?) };
    let rows = numbers.iter().map(row).collect::<Result<Vec<_>>>()?;
    let scales = Int8Array::quantize(&ops::stack(&rows, 0)?, groups)?;
    // Codes are chosen for the scales as they are stored.
    let stored = dense(&scales)?.dense()?.reshape(&[numbers.len() as i32, -1, 1])?;
    let scale = stored.try_index(0)?;
    let codes = if scheme.is_centered() {
        kernel::codes_by(scheme, x, &[scale], None)?
    } else {
        let number = Array::from_f32;
        let divisor = ops::select(scale.eq(number(0.0))?, number(1.0), scale)?;
        kernel::codes_by(scheme, x, &[divisor, stored.try_index(1)?], None)?
    };
    Ok((kernel::packed_codes(&codes, scheme, size)?, scales))
}
