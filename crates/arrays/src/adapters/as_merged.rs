//! Products of adapters that compute with the merged array, and have the adapter's own derivative.

use mlx_rs::{ops, stop_gradient};
use tacit_core::{Error, Result, Value, implicit};

use crate::adapters::factors;
use crate::families::adapter::Adapter;
use crate::families::linear::{Product, dense_operand};
use crate::families::structural::{itself, stopped};
use crate::kernel::Summands;
use crate::training::ste::dense_with_gradient_of;

/// A product with `stored`, which stands for `adapter`: its value, with the adapter's derivative.
pub(crate) fn straight_through(product: Product, x: &Value, stored: &Value, adapter: &dyn Adapter) -> Result<Value> {
    let x = dense_operand(x)?;
    let value = implicit((x, stored), |(x, w)| product.apply(&x, &w))?.dense()?;
    let still = stopped(&itself(adapter))?;
    let still = still.family::<dyn Adapter>().ok_or_else(|| Error::decline("without gradients it is no adapter"))?;
    // The difference is zero. Its derivative is that of the change: for what is trained, and in the derivative for `x`.
    let changed = adapter.change(product, x)?.subtract(still.change(product, x)?)?.as_dtype(value.dtype())?;
    dense_with_gradient_of(&value, &value.add(changed)?)
}

/// The dense array of `stored`, with the adapter's derivative.
pub(crate) fn built(stored: &Value, adapter: &dyn Adapter) -> Result<Value> {
    let dense = stored.dense()?;
    let rows = ops::arange::<_, i32>(None, dense.dim(0), None)?;
    let changed = adapter.change(Product::Rows, &rows)?.as_dtype(dense.dtype())?;
    dense_with_gradient_of(&stop_gradient(&dense)?, &changed)
}

/// `stored` as a sum with nothing: another format codes what was trained, which is rounded already.
pub(crate) fn summands(stored: &Value, transposed: bool) -> Result<Option<Summands>> {
    let shape = stored.aval()?.shape;
    let &[n, k] = shape.as_slice() else { return Ok(None) };
    let nothing = [ops::zeros::<f32>(&[n, 1])?, ops::zeros::<f32>(&[1, k])?];
    factors::summands(stored, nothing, None, transposed)
}
