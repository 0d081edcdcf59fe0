//! The identity matrix.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::primitives::Multiply;
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, handler};

use crate::avals::checks::{check_made, decline_if};
use crate::families::linear::{Gain, Linear, Product};
use crate::structured::diagonal::Diagonal;

/// The square matrix with ones on its diagonal, which holds no elements.
///
/// A product with it is the other operand as it is, implicit or dense. Off the diagonal there is nothing: a NaN or an
/// infinity on the other side of a product stays where it is.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Dtype, ops};
/// use tacit_arrays::Identity;
/// use tacit_core::implicit;
///
/// let x = ops::ones::<f32>(&[2, 3])?;
/// let identity = Identity::new(3, Dtype::Float32)?;
/// let y = implicit((x, identity), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [1.0; 6]);
/// # Ok(())
/// # }
/// ```
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Identity", family(Linear))]
pub struct Identity {
    #[implicit(aux)]
    aval: Aval,
}

impl Identity {
    /// The identity matrix of `n` rows.
    ///
    /// # Errors
    ///
    /// `n` is not positive.
    pub fn new(n: i32, dtype: Dtype) -> Result<Self> {
        let aval = Aval::new(&[n, n], dtype);
        if n < 1 {
            return Err(Error::invalid(format!("an identity matrix cannot be {aval}"), "give it one row or more"));
        }
        Ok(Self { aval })
    }
}

impl Materialize for Identity {
    fn materialize(&self) -> Result<Value> {
        let one = Array::from_f32(1.0).as_dtype(self.aval.dtype)?;
        Ok(ops::diag(ops::broadcast_to(one, &self.aval.shape[..1])?, 0)?.into())
    }

    fn check(&self) -> Result<()> {
        check_made(self, &Self::new(self.aval.shape.first().copied().unwrap_or(0), self.aval.dtype)?)
    }
}

impl Linear for Identity {
    fn product(&self, product: Product, x: &Value) -> Result<Value> {
        decline_if(product == Product::Rows, "rows are built of zeros")?;
        Ok(x.clone())
    }

    fn gain(&self) -> Gain {
        Gain::Nothing
    }

    fn transposed(&self, _axes: &[i32]) -> Result<Value> {
        Ok(self.clone().into())
    }

    fn cast(&self, dtype: Dtype) -> Result<Value> {
        Ok(Self { aval: Aval::new(&self.aval.shape, dtype) }.into())
    }
}

/// The diagonal of the other operand, be it a scalar or a matrix.
#[handler]
pub(crate) fn identity_multiply(_op: &Multiply, identity: &Identity, x: &Array) -> Result<Value> {
    if !identity.aval.dtype.is_float() {
        return Err(Error::decline(format!("{} is not float", identity.aval)));
    }
    Ok(Diagonal::new(x.diagonal(None, None, None)?)?.into())
}
