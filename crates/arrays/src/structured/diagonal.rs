//! A diagonal matrix.

use mlx_rs::{Array, ops};
use tacit_core::primitives::{Add, AsType, Divide, Matmul, Multiply, Negative, Subtract, Sum, Transpose};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, handler, implicit};

use crate::avals::checks::{check_float, check_made};
use crate::avals::dtypes::{wide, widely};
use crate::families::linear::{Gain, Linear, scalar};

/// A square matrix that is zero off its diagonal.
///
/// A product with it scales rows or columns. Off the diagonal there is nothing: what a NaN or an infinity there would
/// make of a zero does not show.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops};
/// use tacit_arrays::Diagonal;
/// use tacit_core::implicit;
///
/// let d = Diagonal::new(Array::from_slice(&[1f32, 2.0, 3.0], &[3]))?;
/// let x = ops::ones::<f32>(&[1, 3])?;
/// let y = implicit((x, d), |(x, d)| x.matmul(d))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [1.0, 2.0, 3.0]);
/// # Ok(())
/// # }
/// ```
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Diagonal", family(Linear))]
pub struct Diagonal {
    /// `[n]`.
    diagonal: Array,
    #[implicit(aux)]
    aval: Aval,
}

impl Diagonal {
    /// The matrix with `diagonal: [n]`.
    ///
    /// # Errors
    ///
    /// `diagonal` is not a float vector of one element or more.
    pub fn new(diagonal: Array) -> Result<Self> {
        let given = Aval::from(&diagonal);
        check_float("the diagonal", &given)?;
        let &[n] = diagonal.shape() else {
            return Err(Error::invalid(
                format!("the diagonal is {given}, which is not a vector"),
                "take the diagonal of a matrix with `Array::diagonal`",
            ));
        };
        Ok(Self { aval: Aval::new(&[n, n], diagonal.dtype()), diagonal })
    }

    /// The elements on the diagonal, `[n]`.
    #[must_use]
    pub fn diagonal(&self) -> &Array {
        &self.diagonal
    }

    /// `x` times the elements in the shape that broadcasts against it.
    fn times(&self, x: &Value, shape: &[i32]) -> Result<Value> {
        let diagonal = self.diagonal.reshape(shape)?;
        match x {
            // The gradient of an element is a sum over a whole row or column.
            Value::Dense(x) => Ok(widely(x, |x| Ok(x.multiply(diagonal.as_dtype(wide(x.dtype()))?)?))?.into()),
            Value::Implicit(_) => implicit((x, diagonal), |(x, d)| x.multiply(d)),
        }
    }

    /// The same matrix with other elements.
    fn with(&self, diagonal: Array) -> Value {
        Self { aval: Aval::new(&self.aval.shape, diagonal.dtype()), diagonal }.into()
    }
}

impl Materialize for Diagonal {
    fn materialize(&self) -> Result<Value> {
        // Not `ops::diag`, whose scatter has no derivative in a direction.
        let ones = ops::eye::<bool>(self.diagonal.dim(0), None, None)?;
        Ok(ops::select(ones, &self.diagonal, Array::from_f32(0.0).as_dtype(self.diagonal.dtype())?)?.into())
    }

    fn check(&self) -> Result<()> {
        check_made(self, &Self::new(self.diagonal.clone())?)
    }
}

impl Linear for Diagonal {
    fn right(&self, x: &Value) -> Result<Value> {
        self.times(x, &[-1])
    }

    fn left(&self, x: &Value) -> Result<Value> {
        self.times(x, &[-1, 1])
    }

    fn gain(&self) -> Gain {
        Gain::Scale
    }
}

/// The product of two diagonal matrices, which is one.
#[handler]
pub(crate) fn diagonal_matmul_both(_op: &Matmul, a: &Diagonal, b: &Diagonal) -> Result<Value> {
    Ok(a.with(a.diagonal.multiply(&b.diagonal)?))
}

/// The same matrix.
#[handler]
pub(crate) fn diagonal_transpose(_op: &Transpose, d: &Diagonal) -> Result<Value> {
    Ok(d.clone().into())
}

/// The diagonal in another type.
#[handler]
pub(crate) fn diagonal_astype(op: &AsType, d: &Diagonal) -> Result<Value> {
    if !op.dtype.is_float() {
        return Err(Error::decline("only float arrays are diagonal"));
    }
    Ok(d.with(d.diagonal.as_dtype(op.dtype)?))
}

/// The product with the diagonal of the other operand, be it a scalar or a matrix.
#[handler]
pub(crate) fn diagonal_multiply(_op: &Multiply, d: &Diagonal, x: &Array) -> Result<Value> {
    Ok(d.with(d.diagonal.multiply(x.diagonal(None, None, None)?)?))
}

/// The quotient by a scalar.
#[handler]
pub(crate) fn diagonal_divide(_op: &Divide, d: &Diagonal, x: &Array) -> Result<Value> {
    Ok(d.with(d.diagonal.divide(scalar(x)?)?))
}

/// The sum of two diagonal matrices.
#[handler]
pub(crate) fn diagonal_add(_op: &Add, a: &Diagonal, b: &Diagonal) -> Result<Value> {
    Ok(a.with(a.diagonal.add(&b.diagonal)?))
}

/// The difference of two diagonal matrices.
#[handler]
pub(crate) fn diagonal_subtract(_op: &Subtract, a: &Diagonal, b: &Diagonal) -> Result<Value> {
    Ok(a.with(a.diagonal.subtract(&b.diagonal)?))
}

/// The product of two diagonal matrices, element by element.
#[handler]
pub(crate) fn diagonal_multiply_both(_op: &Multiply, a: &Diagonal, b: &Diagonal) -> Result<Value> {
    Ok(a.with(a.diagonal.multiply(&b.diagonal)?))
}

/// The diagonal with its signs changed.
#[handler]
pub(crate) fn diagonal_negative(_op: &Negative, d: &Diagonal) -> Result<Value> {
    Ok(d.with(d.diagonal.negative()?))
}

/// The diagonal itself along one axis, its sum along both.
#[handler]
pub(crate) fn diagonal_sum(op: &Sum, d: &Diagonal) -> Result<Array> {
    match op.axes.as_slice() {
        [0] => Ok(d.diagonal.reshape(&[1, -1])?),
        [1] => Ok(d.diagonal.reshape(&[-1, 1])?),
        [0, 1] => widely(&d.diagonal, |diagonal| Ok(diagonal.sum(None)?.reshape(&[1, 1])?)),
        _ => Err(Error::decline("the sum is along no axis")),
    }
}
