//! Adapters that compute as the array that they are merged into, with the derivative of their own.

use mlx_rs::{ops, stop_gradient};
use tacit_core::{Error, Result, Value, implicit};

use crate::families::adapter::{Adapter, Side, of};
use crate::families::linear::dense_side;
use crate::families::structural::stopped;
use crate::training::ste::valued;

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
