//! What all adapters have in common.

use std::ops::Range;

use mlx_rs::{Array, Dtype, ops, stop_gradient};
use tacit_core::op::{Gather, Transpose};
use tacit_core::{Aval, Error, Result, Value, handler, implicit};

use crate::families::adapter::{Adapter, Side, of};
use crate::families::cut::cut;
use crate::families::linear::{dense_side, gathered_rows};
use crate::families::packed::Packed;
use crate::families::structural::stopped;
use crate::kernel::Summands;
use crate::training::ste::valued;

/// The other way round, as a view.
#[handler]
pub(crate) fn adapter_transpose(op: &Transpose, w: &dyn Adapter) -> Result<Value> {
    if op.axes == [1, 0] { Ok(w.turned()?.into()) } else { Ok(of(w)) }
}

/// Rows of the matrix: an embedding's.
#[handler]
pub(crate) fn adapter_gather(op: &Gather, w: &dyn Adapter, rows: &Array) -> Result<Value> {
    let shape = gathered_rows(op, &w.aval()?, rows)?;
    let made = w.applied(Side::Rows, &rows.into())?;
    implicit(made, |made| made.reshape(&shape))
}

/// A base turned round, and its aval.
pub(crate) fn turned(base: &Value) -> Result<(Value, Aval)> {
    let base = implicit(base, |base| Ok::<_, Error>(base.t()))?;
    let aval = base.aval()?;
    Ok((base, aval))
}

/// Whether an axis of an adapter `[out, in]`, or `[in, out]` where `transposed`, is that of its outputs.
pub(crate) fn is_output(axis: usize, transposed: bool) -> bool {
    (axis == 0) != transposed
}

/// The elements of a range along an axis of a factor.
pub(crate) fn factor(array: &Array, axis: i32, range: &Range<i32>) -> Result<Array> {
    cut(&array.into(), axis, range.clone())?.dense()
}

/// A product with `stored`, which stands for `adapter`: its value, with the adapter's derivative.
pub(crate) fn straight_through(side: Side, x: &Value, stored: &Value, adapter: &dyn Adapter) -> Result<Value> {
    let x = dense_side(x)?;
    let made = implicit((x, stored), |(x, w)| side.of(&x, &w))?.dense()?;
    let still = stopped(&of(adapter))?;
    let still = still.family::<dyn Adapter>().ok_or_else(|| Error::decline("the adapter is none without gradients"))?;
    // The difference is zero. Its derivative is that of the change: for what is trained, and in the derivative for `x`.
    let changed = adapter.change(side, x)?.subtract(still.change(side, x)?)?.as_dtype(made.dtype())?;
    valued(&made.add(changed)?, &made)
}

/// The dense array of `stored`, with the adapter's derivative.
pub(crate) fn built(stored: &Value, adapter: &dyn Adapter) -> Result<Value> {
    let dense = stored.dense()?;
    let rows = ops::arange::<_, i32>(None, dense.dim(0), None)?;
    let changed = adapter.change(Side::Rows, &rows)?.as_dtype(dense.dtype())?;
    valued(&changed, &stop_gradient(&dense)?)
}

/// The sum of a base and a product, each row of it multiplied by a factor, turned round if `turned`.
pub(crate) fn summands(
    base: &Value,
    [left, right]: [Array; 2],
    factors: Option<Array>,
    turned: bool,
) -> Result<Option<Summands>> {
    if turned && factors.is_some() {
        return Ok(None);
    }
    let [left, right] = if turned { [right.t(), left.t()] } else { [left, right] };
    let [left, right] = [left.as_dtype(Dtype::Float32)?, right.as_dtype(Dtype::Float32)?];
    let factors = factors.map(|factors| factors.as_dtype(Dtype::Float32)).transpose()?;
    let (layout, base) = match base {
        Value::Dense(base) if base.dtype() == Dtype::Float64 => return Ok(None),
        Value::Dense(base) => (None, vec![if turned { base.t() } else { base.clone() }]),
        Value::Implicit(_) => {
            let Some(stored) = base.family::<dyn Packed>().map(Packed::stored) else { return Ok(None) };
            if stored.transposed != turned {
                return Ok(None);
            }
            let (layout, children) = stored.kernel(left.dim(0))?;
            (Some(layout), children)
        }
    };
    Ok(Some(Summands { layout, base, left, right, factors }))
}
