//! One matrix for all entries of a batch.

use mlx_rs::ops;
use tacit_core::primitives::{Gather, Moving, TypedPrimitive};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, handler, has_shape_rules, implicit};

use crate::avals::axes::forward;
use crate::avals::checks::{check_made, decline_if};
use crate::families::linear::{Gain, Linear, Product};

/// One matrix for all entries of a batch, which is held once: a product with the batch is one with the matrix.
///
/// It is what MLX repeats for the other side of a product in a function without shapes.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::{Nf4Array, Repeated};
/// use tacit_core::implicit;
///
/// let w = Repeated::new(Nf4Array::quantize(&ops::ones::<f32>(&[32, 8])?, 64)?, &[2])?;
/// let y = implicit((ops::ones::<f32>(&[2, 3, 32])?, w), |(x, w)| x.matmul(w))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [32.0; 48]);
/// # Ok(())
/// # }
/// ```
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Repeated", family(Linear))]
pub struct Repeated {
    /// The matrix.
    #[implicit(get)]
    inner: Value,
    #[implicit(aux)]
    aval: Aval,
}

impl Repeated {
    /// `inner: [rows, columns]` for each entry of a batch of shape `batch`.
    ///
    /// # Errors
    ///
    /// `inner` is not a matrix, or an extent is negative.
    pub fn new(inner: impl Into<Value>, batch: &[i32]) -> Result<Self> {
        let inner = inner.into();
        let Aval { shape, dtype } = inner.aval()?;
        if shape.len() != 2 || batch.iter().any(|&extent| extent < 0) {
            return Err(Error::invalid(
                format!("{inner} is not repeated for a batch of shape {batch:?}"),
                "give a matrix, and count extents from 0",
            ));
        }
        Ok(Self { inner, aval: Aval::new(&[batch, &shape[..]].concat(), dtype) })
    }

    /// A matrix in this shape, as a view where there is something to view.
    pub(crate) fn view(inner: Value, shape: &[i32]) -> Result<Value> {
        match (inner, &shape[..shape.len() - 2]) {
            (inner, []) => Ok(inner),
            // Some of MLX's ops take no broadcast array.
            (Value::Dense(matrix), _) => Ok(ops::broadcast_to(matrix, shape)?.contiguous()?.into()),
            (inner, batch) => Ok(Self::new(inner, batch)?.into()),
        }
    }
}

impl Materialize for Repeated {
    fn materialize(&self) -> Result<Value> {
        Self::view(self.inner.opened()?, &self.aval.shape)
    }

    fn check(&self) -> Result<()> {
        let batch = self.aval.shape.len().saturating_sub(2);
        check_made(self, &Self::new(&self.inner, &self.aval.shape[..batch])?)
    }
}

impl Linear for Repeated {
    fn product(&self, product: Product, x: &Value) -> Result<Value> {
        decline_if(product == Product::Rows, "rows are moved elements")?;
        let result = match self.inner.family::<dyn Linear>() {
            Some(linear) => linear.product(product, x),
            None => Err(Error::decline("it has no products")),
        };
        let Value::Dense(x) = x else { return result };
        let serves = match &result {
            Ok(Value::Dense(result)) => has_shape_rules(result, x)?,
            Err(Error::Declined(_)) => false,
            _ => true,
        };
        // The matrix is built, and not the batch: a function without shapes cannot write down for how many entries.
        if serves { result } else { Ok(product.apply(x, &self.inner.dense()?)?.into()) }
    }

    fn gain(&self) -> Gain {
        self.inner.family::<dyn Linear>().map_or(Gain::None, Linear::gain)
    }
}

/// The matrix, or its transpose, for the entries of another batch.
#[handler]
pub(crate) fn repeated_moving(op: &Moving, w: &Repeated, rest: &[&Value], results: &[Aval]) -> Result<Vec<Value>> {
    let shape = &w.aval.shape;
    forward(op, shape, results)?;
    decline_if(op.name() == Gather::NAME, "an index may be outside")?;
    let rank = shape.len();
    let [rows, columns] = [rank - 2, rank - 1].map(|axis| op.axis_after(axis, shape, rest, results));
    let places = (rows?, columns?);
    results
        .iter()
        .map(|result| {
            let rank = result.shape.len();
            let inner = match places {
                (Some(rows), Some(columns)) if (rows + 2, columns + 1) == (rank, rank) => w.inner.clone(),
                (Some(rows), Some(columns)) if (rows + 1, columns + 2) == (rank, rank) => {
                    implicit(&w.inner, |inner| Ok::<_, Error>(inner.t()))?
                }
                _ => return Err(Error::decline("the matrix would be cut, or be no matrix")),
            };
            Repeated::view(inner, &result.shape)
        })
        .collect()
}
