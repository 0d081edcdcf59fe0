//! What low-rank adapters have in common: a frozen base and two trainable factors.

use std::ops::Range;

use mlx_rs::{Array, Dtype};
use tacit_core::{Aval, Error, Result, Value, implicit};

use crate::avals::dtypes::{accumulator_dtype, in_room};
use crate::families::cut::cut;
use crate::families::linear::Linear;
use crate::families::packed::Packed;
use crate::kernel::Summands;
use crate::training::ste::Ste;

pub(crate) fn transposed(matrix: &Value) -> Result<(Value, Aval)> {
    let matrix = implicit(matrix, |matrix| Ok::<_, Error>(matrix.t()))?;
    let aval = matrix.aval()?;
    Ok((matrix, aval))
}

/// Whether an axis of an adapter `[out, in]`, or `[in, out]` where `transposed`, is that of its outputs.
pub(crate) fn is_output(axis: usize, transposed: bool) -> bool {
    (axis == 0) != transposed
}

pub(crate) fn factor(array: &Array, axis: i32, range: &Range<i32>) -> Result<Array> {
    cut(&array.into(), axis, range.clone())?.dense()
}

/// What the base of an adapter is multiplied with: in `f32` where that costs nothing, as the change may bring the product back into the
/// range of `f16`.
pub(crate) fn in_room_of(base: &Value, x: &Array) -> Result<Array> {
    let is_read = base.family::<dyn Linear>().is_some_and(Linear::is_read_widely);
    if is_read { in_room(x) } else { Ok(x.clone()) }
}

/// The sum of a base and a product, each row of it multiplied by a factor; of the transpose if `transposed`.
pub(crate) fn summands(
    base: &Value,
    [left, right]: [Array; 2],
    factors: Option<Array>,
    transposed: bool,
) -> Result<Option<Summands>> {
    if transposed && factors.is_some() {
        return Ok(None);
    }
    let [left, right] = if transposed { [right.t(), left.t()] } else { [left, right] };
    let [left, right] = [left.as_dtype(Dtype::Float32)?, right.as_dtype(Dtype::Float32)?];
    let factors = factors.map(|factors| factors.as_dtype(Dtype::Float32)).transpose()?;
    let (layout, base) = match &stored(base)? {
        Value::Dense(base) if base.dtype() == Dtype::Float64 => return Ok(None),
        Value::Dense(base) => (None, vec![if transposed { base.t() } else { base.clone() }]),
        base @ Value::Implicit(_) => {
            let Some(stored) = base.family::<dyn Packed>().map(Packed::stored) else { return Ok(None) };
            if stored.transposed != transposed {
                return Ok(None);
            }
            let (layout, children) = stored.kernel(left.dim(0))?;
            (Some(layout), children)
        }
    };
    Ok(Some(Summands { layout, base, left, right, factors }))
}

/// A base as it is read, without what its gradient is and what its products round: of a master that is quantized where it is used,
/// the codes.
fn stored(base: &Value) -> Result<Value> {
    let Value::Implicit(array) = base else { return Ok(base.clone()) };
    if let Some(inner) = base.downcast::<Ste>().map(Ste::inner).or_else(|| base.family::<dyn Linear>()?.rounds()) {
        return stored(inner);
    }
    array.used_as()?.map_or_else(|| Ok(base.clone()), |used| stored(&used))
}

/// The dense sum of a base and a product of factors, in the type in which it is summed.
pub(crate) fn dense_sum(base: &Value, factors: impl FnOnce(Dtype) -> Result<[Array; 2]>) -> Result<Array> {
    let base = base.dense()?;
    let accumulator = accumulator_dtype(base.dtype());
    let [left, right] = factors(accumulator)?;
    Ok(base.as_dtype(accumulator)?.add(left.matmul(right)?)?)
}
