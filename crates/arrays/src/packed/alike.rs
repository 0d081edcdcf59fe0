//! Whether a format gives a part of an array the codes that it has in the whole.

use std::ops::Range;

use mlx_rs::ops;
use tacit_core::{Aval, Error, Result, Value};

use crate::avals::axes::extent;
use crate::families::cut::cut;
use crate::families::packed::Packed;
use crate::format::AnyFormat;
use crate::kernel::Scaling;
use crate::packed::reblock::{along, edges};
use crate::views::rotated::Rotated;

/// Checks that `format` quantizes a part of an array as it does that part of the whole: that it ends with blocks, and nothing
/// is measured of the whole array.
pub(crate) fn check_alike(format: &AnyFormat, aval: &Aval, axis: usize, range: &Range<i32>) -> Result<()> {
    // Lazy, and never evaluated.
    let whole = format.quantize(&ops::zeros_dtype(&aval.shape, aval.dtype)?)?;
    let part = cut(&whole, axis as i32, range.clone())?;
    if alike(&whole, &part, axis, range) { Ok(()) } else { Err(inside(format, aval, axis, range)) }
}

/// Whether a part has the blocks of the whole, whose scales depend on nothing else, and no block, and nothing that has a
/// scale of scales in common, reaches over an end of the range.
fn alike(whole: &Value, part: &Value, axis: usize, range: &Range<i32>) -> bool {
    if let (Some(whole), Some(part)) = (whole.downcast::<Rotated>(), part.downcast::<Rotated>()) {
        return alike(whole.inner(), part.inner(), axis, range);
    }
    let stored = |value: &Value| value.family::<dyn Packed>().map(Packed::stored);
    let (Some(whole), Some(part)) = (stored(whole), stored(part)) else { return false };
    let shared = match whole.scheme.scaling {
        Scaling::Float => whole.double_quantized().is_some(),
        _ => whole.global_scale.is_some(),
    };
    if shared || whole.block != part.block {
        return false;
    }
    let (shape, along) = (whole.shape(), along(&whole, axis));
    // The last block of all may be shorter than the others.
    let (all, end) = (*range == (0..shape[along]), extent(&shape));
    all || edges(&shape, along, range).into_iter().all(|edge| edge.is_multiple_of(whole.reach()) || edge == end)
}

/// A part that a format would quantize in another way than the whole.
pub(crate) fn inside(format: &AnyFormat, aval: &Aval, axis: usize, range: &Range<i32>) -> Error {
    Error::invalid(
        format!(
            "{format} makes other scales of {aval} than of its part from {} to {} along axis {axis}",
            range.start, range.end
        ),
        "cut it between its blocks, cut what it is converted to, or prepare each part",
    )
}
