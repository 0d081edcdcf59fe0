//! What all adapters have in common: a frozen base, and a change of it that is trained.

use mlx_rs::Array;
use tacit_core::primitives::{Gather, Transpose};
use tacit_core::{ImplicitArray, Result, Value, handler, implicit};

use crate::families::linear::{Linear, gathered_rows};
use crate::kernel::Summands;

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

    /// The same adapter with this choice of dropped features, `u32[2]`, or with none dropped; one that drops nothing is itself.
    ///
    /// # Errors
    ///
    /// It is no key.
    fn with_key(&self, _key: Option<Array>) -> Result<Box<dyn ImplicitArray>> {
        self.with_base(self.base().clone())
    }

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

    /// The same of the product of two thin matrices, in their type.
    pub(crate) fn of_factors(self, x: &Array, [left, right]: &[Array; 2]) -> Result<Array> {
        let x = if x.dtype().is_float() { &x.as_dtype(left.dtype())? } else { x };
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
