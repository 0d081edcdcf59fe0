//! A diagonal matrix.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::primitives::{Binary, Matmul, Multiply, Sum};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, handler, implicit};

use crate::avals::checks::{check_float, check_made, decline_if};
use crate::avals::dtypes::{accumulator_dtype, in_accumulator_dtype};
use crate::families::linear::{Factor, Gain, Linear, Product};

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
    /// The elements on the diagonal, `[n]`.
    #[implicit(get)]
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
        let aval = Aval::from(&diagonal);
        check_float("the diagonal", &aval)?;
        let &[n] = diagonal.shape() else {
            return Err(Error::invalid(
                format!("the diagonal is {aval}, which is not a vector"),
                "take the diagonal of a matrix with `Array::diagonal`",
            ));
        };
        Ok(Self { aval: Aval::new(&[n, n], diagonal.dtype()), diagonal })
    }

    /// `x` times the elements in the shape that broadcasts against it.
    fn times(&self, x: &Value, shape: &[i32]) -> Result<Value> {
        let diagonal = self.diagonal.reshape(shape)?;
        match x {
            // The gradient of an element is a sum over a whole row or column.
            Value::Dense(x) => {
                Ok(in_accumulator_dtype(x, |x| Ok(x.multiply(diagonal.as_dtype(accumulator_dtype(x.dtype()))?)?))?
                    .into())
            }
            Value::Implicit(_) => implicit((x, diagonal), |(x, d)| x.multiply(d)),
        }
    }

    fn with(&self, diagonal: Array) -> Value {
        Self { aval: Aval::new(&self.aval.shape, diagonal.dtype()), diagonal }.into()
    }
}

impl Materialize for Diagonal {
    fn materialize(&self) -> Result<Value> {
        Ok(ops::diag(&self.diagonal, None)?.into())
    }

    fn check(&self) -> Result<()> {
        check_made(self, &Self::new(self.diagonal.clone())?)
    }
}

impl Linear for Diagonal {
    fn product(&self, product: Product, x: &Value) -> Result<Value> {
        match product {
            Product::Right => self.times(x, &[-1]),
            Product::Left => self.times(x, &[-1, 1]),
            Product::Rows => Err(Error::decline("rows are built of zeros")),
        }
    }

    fn gain(&self) -> Gain {
        Gain::Scale
    }

    fn transposed(&self, _axes: &[i32]) -> Result<Value> {
        Ok(self.clone().into())
    }

    fn cast(&self, dtype: Dtype) -> Result<Value> {
        decline_if(!dtype.is_float(), "only float arrays are diagonal")?;
        Ok(self.with(self.diagonal.as_dtype(dtype)?))
    }

    fn scaled(&self, by: &Factor) -> Result<Value> {
        Ok(self.with(by.on(&self.diagonal)?))
    }
}

/// The product of two diagonal matrices, which is one.
#[handler]
pub(crate) fn diagonal_matmul(_op: &Matmul, a: &Diagonal, b: &Diagonal) -> Result<Value> {
    Ok(a.with(a.diagonal.multiply(&b.diagonal)?))
}

/// A linear primitive of two diagonal matrices, such as their sum: off the diagonal it makes zero of zeros.
#[handler]
pub(crate) fn diagonal_binary(op: &Binary, a: &Diagonal, b: &Diagonal) -> Result<Value> {
    if !op.is_linear() {
        return Err(Error::decline(format!("{} may make more than zero of zeros", op.name())));
    }
    // Each keeps the rank of the matrix, in which the primitive was recorded.
    let rows = [a.diagonal.reshape(&[1, -1])?, b.diagonal.reshape(&[1, -1])?];
    Ok(a.with(op.emit(&rows)?.swap_remove(0).reshape(&[-1])?))
}

/// The product with the diagonal of the other operand, be it a scalar, a matrix or diagonal itself.
#[handler(precedence = 1)]
pub(crate) fn diagonal_multiply(_op: &Multiply, d: &Diagonal, x: &Value) -> Result<Value> {
    let other = match (x.downcast::<Diagonal>(), x) {
        (Some(other), _) => other.diagonal.clone(),
        (None, Value::Dense(x)) => x.diagonal(None, None, None)?,
        _ => return Err(Error::decline(format!("the diagonal of {x} is not known"))),
    };
    Ok(d.with(d.diagonal.multiply(other)?))
}

/// The diagonal itself along one axis, its sum along both.
#[handler]
pub(crate) fn diagonal_sum(op: &Sum, d: &Diagonal) -> Result<Array> {
    match op.axes.as_slice() {
        [0] => Ok(d.diagonal.reshape(&[1, -1])?),
        [1] => Ok(d.diagonal.reshape(&[-1, 1])?),
        [0, 1] => in_accumulator_dtype(&d.diagonal, |diagonal| Ok(diagonal.sum(None)?.reshape(&[1, 1])?)),
        _ => Err(Error::decline("the sum is along no axis")),
    }
}
