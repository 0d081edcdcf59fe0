//! What all adapters have in common: a frozen base, and a change of it that is trained.

use std::ops::Range;

use mlx_rs::{Array, Dtype, ops, stop_gradient};
use tacit_core::op::{Gather, Transpose};
use tacit_core::{Aval, Error, ImplicitArray, Result, Value, handler, implicit};

use crate::cut::cut;
use crate::kernel::Summands;
use crate::linear::{Linear, dense_side, gathered_rows};
use crate::packed::Packed;
use crate::ste::valued;
use crate::structural::stopped;

/// The family of adapters: matrices that are a frozen base and what is trained beside it, such as
/// [`Lora`](crate::Lora).
///
/// Whatever adapts a weight joins it, and is then trained, saved by itself, merged and stored as every other.
pub trait Adapter: Linear {
    /// The frozen array, turned round if the adapter is.
    fn base(&self) -> &Value;

    /// The same adapter on another base, such as none of the model's own.
    ///
    /// # Errors
    ///
    /// The base does not fit.
    fn with_base(&self, base: Value) -> Result<Box<dyn ImplicitArray>>;

    /// The names of the children that are trained.
    fn trained(&self) -> &'static [&'static str];

    /// The probability with which an input feature is dropped in training.
    fn dropout(&self) -> f32 {
        0.0
    }

    /// The same adapter with this choice of dropped features, `u32[2]`, or with none dropped.
    ///
    /// # Errors
    ///
    /// It is no key.
    fn with_key(&self, key: Option<Array>) -> Result<Box<dyn ImplicitArray>>;

    /// The matrix, or its transpose if `turned`, as a sum that kernels read; `None` where it is no such sum or the base
    /// is neither dense nor packed.
    ///
    /// # Errors
    ///
    /// Scales that are packed in turn are built, which the policy may forbid.
    fn summands(&self, turned: bool) -> Result<Option<Summands>>;

    /// What `side` is of the matrix: both products of [`Linear`] and the rows are this.
    ///
    /// # Errors
    ///
    /// As for [`Linear::right`].
    fn applied(&self, side: Side, x: &Value) -> Result<Value>;

    /// The matrix turned round, as a view.
    ///
    /// # Errors
    ///
    /// The base cannot be turned round.
    fn turned(&self) -> Result<Box<dyn ImplicitArray>>;

    /// What of a product depends on the trained children. Its derivative for them is that of the whole product, its value
    /// need not be.
    ///
    /// # Errors
    ///
    /// It declines what it cannot take.
    fn change(&self, side: Side, x: &Array) -> Result<Array>;

    /// The array that it is merged into without loss, if there is one.
    ///
    /// # Errors
    ///
    /// MLX refuses an op.
    fn lossless(&self) -> Result<Option<Value>> {
        Ok(None)
    }
}

/// The other way round, as a view.
#[handler]
pub fn adapter_transpose(op: &Transpose, w: &dyn Adapter) -> Result<Value> {
    if op.axes == [1, 0] { Ok(w.turned()?.into()) } else { Ok(of(w)) }
}

/// Rows of the matrix: an embedding's.
#[handler]
pub fn adapter_gather(op: &Gather, w: &dyn Adapter, rows: &Array) -> Result<Value> {
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

/// An adapter as a value.
pub(crate) fn of(adapter: &dyn Adapter) -> Value {
    let array: &dyn ImplicitArray = adapter;
    dyn_clone::clone_box(array).into()
}

/// What is computed of a matrix `W` and something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// `x W`.
    Right,
    /// `W x`.
    Left,
    /// Rows of `W`, of which `x` has the numbers.
    Rows,
}

impl Side {
    pub(crate) fn of(self, x: &Array, w: &Array) -> Result<Array> {
        Ok(match self {
            Self::Right => x.matmul(w)?,
            Self::Left => w.matmul(x)?,
            Self::Rows => w.take_axis(x, 0)?,
        })
    }

    /// The same of the product of two thin matrices.
    pub(crate) fn of_factors(self, x: &Array, [left, right]: &[Array; 2]) -> Result<Array> {
        Ok(match self {
            Self::Right => x.matmul(left)?.matmul(right)?,
            Self::Left => left.matmul(right.matmul(x)?)?,
            Self::Rows => left.take_axis(x, 0)?.matmul(right)?,
        })
    }

    /// The same of the matrix whose rows, or columns, are multiplied by `factors`.
    pub(crate) fn of_scaled(
        self,
        x: &Array,
        factors: &Array,
        columns: bool,
        f: impl FnOnce(&Array) -> Result<Array>,
    ) -> Result<Array> {
        let each_row = |of: &Array, by: &Array| -> Result<Array> {
            let by = if of.ndim() > 1 { by.expand_dims(-1)? } else { by.clone() };
            Ok(of.multiply(by)?)
        };
        match (self, columns) {
            (Self::Right, false) => f(&x.multiply(factors)?),
            (Self::Right | Self::Rows, true) => Ok(f(x)?.multiply(factors)?),
            (Self::Left, false) => each_row(&f(x)?, factors),
            (Self::Left, true) => f(&each_row(x, factors)?),
            (Self::Rows, false) => {
                let made = f(x)?;
                Ok(made.multiply(factors.take_axis(x, 0)?.expand_dims(-1)?)?)
            }
        }
    }
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
