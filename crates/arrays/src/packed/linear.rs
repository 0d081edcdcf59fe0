//! Packed arrays as the family [`Linear`].

use mlx_rs::{Array, Dtype};
use tacit_core::primitives::GatherMM;
use tacit_core::{Result, Value};
use tacit_kernels::Orientation;

use crate::avals::axes::swapped;
use crate::avals::checks::decline_if;
use crate::avals::dtypes::{check_castable, holds};
use crate::families::linear::{Factor, Linear, Product, dense_operand};
use crate::families::packed::{Packed, read_in};
use crate::packed::batched::Batched;
use crate::packed::factor;
use crate::packed::products::{gathered, product, products_by_index};
use crate::views::cast::Cast;

impl<T: Packed> Linear for T {
    fn is_read_widely(&self) -> bool {
        true
    }

    fn product(&self, kind: Product, x: &Value) -> Result<Value> {
        if kind == Product::Rows {
            return Ok(gathered(self, dense_operand(x)?)?.into());
        }
        if self.stored().aval.shape.len() > 2
            && let Ok(batch) = Batched::whole(self)
        {
            return batch.product(kind, x);
        }
        let x = dense_operand(x)?;
        if kind == Product::Right {
            return Ok(product(x, self, false)?.into());
        }
        decline_if(x.ndim() < 2, "the right side is a vector")?;
        // As the transpose of `x^T M^T`.
        Ok(product(&x.swap_axes(-1, -2)?, self, true)?.swap_axes(-1, -2)?.into())
    }

    fn gather_mm(&self, _op: &GatherMM, x: &Value, left: &Array, right: &Array) -> Result<Value> {
        let orientation = if self.stored().transposed { Orientation::Transposed } else { Orientation::Plain };
        Ok(products_by_index(dense_operand(x)?, self, orientation, [left, right])?.into())
    }

    fn rounding_alike(&self, matrix: Value) -> Result<Value> {
        let codes = matrix.family::<dyn Packed>().filter(|codes| self.int8_activations() && !codes.int8_activations());
        let rounding = codes.and_then(|codes| codes.rounding_activations().ok());
        Ok(rounding.map_or(matrix, Value::from))
    }

    /// Each matrix transposed, and a batch of them in another order, as a view.
    fn transposed(&self, axes: &[i32]) -> Result<Value> {
        if axes.len() > 2
            && let Ok(batch) = Batched::whole(self)
        {
            return batch.transposed(axes);
        }
        decline_if(!swapped(axes).is_sorted(), "only the last two axes are transposed as a view")?;
        let mut stored = self.stored();
        stored.transposed = !stored.transposed;
        stored.aval.shape = swapped(&stored.aval.shape);
        Ok(self.restored(stored).into())
    }

    /// The codes and scales as they are, read in another float type, or a [`Cast`] where a rounding must show.
    fn cast(&self, dtype: Dtype) -> Result<Value> {
        check_castable(dtype)?;
        let from = self.aval()?.dtype;
        let half = self.stored().scheme.half();
        // Values that the array's own type holds as they are show no rounding in a wider one either.
        if holds(dtype, from) || half.is_some_and(|half| half == from) && holds(from, dtype) {
            return Ok(read_in(self, dtype));
        }
        // The rounding of the narrower type shows; products leave it out.
        Cast::view(read_in(self, Dtype::Float32), from, dtype)
    }

    /// The scales are multiplied, and the codes stay.
    fn scaled(&self, by: &Factor) -> Result<Value> {
        factor::scaled(self, &|number| by.on(number))
    }
}
