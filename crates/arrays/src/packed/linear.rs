//! Packed arrays as the family [`Linear`].

use tacit_core::{Error, Result, Value};

use crate::families::linear::{Linear, dense_side};
use crate::families::packed::Packed;
use crate::packed::batched::Batched;
use crate::packed::products::product;

impl<T: Packed> Linear for T {
    fn right(&self, x: &Value) -> Result<Value> {
        if self.stored().aval.shape.len() > 2
            && let Ok(batch) = Batched::whole(self)
        {
            return batch.right(x);
        }
        Ok(product(dense_side(x)?, self, false)?.into())
    }

    /// As the transpose of `x^T M^T`.
    fn left(&self, x: &Value) -> Result<Value> {
        if self.stored().aval.shape.len() > 2
            && let Ok(batch) = Batched::whole(self)
        {
            return batch.left(x);
        }
        let x = dense_side(x)?;
        if x.ndim() < 2 {
            return Err(Error::decline("the right side is a vector"));
        }
        Ok(product(&x.swap_axes(-1, -2)?, self, true)?.swap_axes(-1, -2)?.into())
    }
}
