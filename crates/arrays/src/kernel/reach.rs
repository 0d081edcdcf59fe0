//! Scales by which the codes of a block reach all of its elements.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

use super::encode::{blocks, number};
use super::scale_gradients::range;
use super::{Encoding, Scaling, Scheme};

/// The scales of the blocks of `x: f32`, greater where an element is beyond the outermost codes of its block.
///
/// The scales that a format makes need not reach so far: a table may end nearer to zero on one side, integers have one less above
/// zero than below, biases put a code at zero, and a mean magnitude is less than the largest. Scales that are no floats stay.
pub(crate) fn reaching(
    scheme: &Scheme,
    block: usize,
    x: &Array,
    scales: &Array,
    biases: Option<&Array>,
) -> Result<Array, Exception> {
    let reaches = matches!(scheme.encoding, Encoding::Int8 | Encoding::Nf4 | Encoding::Fp4);
    if reaches || scheme.scaling != Scaling::Float || scheme.nested.is_some() {
        return Ok(scales.clone());
    }
    let of_blocks = |numbers: &Array| numbers.as_dtype(Dtype::Float32)?.reshape(&[-1, 1]);
    let scale = of_blocks(scales)?;
    let mut units = blocks(x, block)?;
    if let Some(biases) = biases {
        units = units.subtract(of_blocks(biases)?)?;
    }
    let units = units.divide(ops::select(scale.eq(number(0.0))?, number(1.0), &scale)?)?;
    let (least, greatest) = range(scheme);
    let mut factor = number(1.0);
    if least < 0.0 {
        factor = ops::maximum(factor, units.min_axis(-1, true)?.divide(number(least))?)?;
    }
    if greatest > 0.0 {
        factor = ops::maximum(factor, units.max_axis(-1, true)?.divide(number(greatest))?)?;
    }
    scale.multiply(factor)?.reshape(scales.shape())?.as_dtype(scales.dtype())
}
