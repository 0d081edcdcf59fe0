//! Scales by which the codes of a block reach all of its elements.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

use super::encode::{blocks, number, reach};
use super::scale_gradients::range;
use super::{Coding, Encoding, Scaling, Scheme};

impl Scheme {
    /// The same with scales that reach both ends of blocks, where they are largest magnitudes over that of a table.
    pub(crate) fn reaching(self) -> Option<Self> {
        let has_table = self.encoding == Encoding::Nearest && self.nested.is_none();
        has_table.then_some(Self { encoding: Encoding::Reaching, ..self })
    }

    /// Whether the codes of a block reach all of its elements by the scale that is made of them.
    pub(crate) const fn reaches(&self) -> bool {
        matches!(self.encoding, Encoding::Int8 | Encoding::Nf4 | Encoding::Fp4)
    }
}

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
    if scheme.scaling != Scaling::Float || scheme.nested.is_some() {
        return Ok(scales.clone());
    }
    let of_blocks = |numbers: &Array| numbers.as_dtype(Dtype::Float32)?.reshape(&[-1, 1]);
    let scale = of_blocks(scales)?;
    let unit = if matches!(scheme.coding, Coding::Signed) { scale.divide(number(127.0))? } else { scale.clone() };
    let divisor = ops::select(unit.eq(number(0.0))?, number(1.0), unit)?;
    let bias = biases.map_or_else(|| Ok(number(0.0)), of_blocks)?;
    let in_units = |end: Array| end.subtract(&bias)?.divide(&divisor);
    let x = blocks(x, block)?;
    let ends = [in_units(x.min_axis(-1, true)?)?, in_units(x.max_axis(-1, true)?)?];
    let (least, greatest) = range(scheme);
    let factor = reach(&ends, [least.min(0.0), greatest.max(0.0)], 1.0)?;
    // What has a code may be beyond it by rounding.
    let is_beyond = factor.gt(number(1.0 + 4.0 * f32::EPSILON))?;
    let factor = ops::select(is_beyond, factor, number(1.0))?;
    scale.multiply(factor)?.reshape(scales.shape())?.as_dtype(scales.dtype())
}
