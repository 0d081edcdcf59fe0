//! Experts that are split over the ranks.

use mlx_rs::{Array, ops};
use tacit_core::primitives::GatherMM;
use tacit_core::{Error, Result, Value, handler, implicit};

use super::Sharded;
use super::indexing::own_rows;
use super::part::sum_identity;

/// The products of chosen matrices with chosen experts: each rank gives those of its own experts, and zeros for the others,
/// to a sum.
///
/// Every rank multiplies as many rows as one alone would, and holds its part of the experts.
#[handler(precedence = 3)]
pub(crate) fn sharded_gather_mm(_op: &GatherMM, x: &Array, w: &Sharded, left: &Array, right: &Array) -> Result<Value> {
    if w.aval.shape.len() != 3 {
        return Err(Error::decline(format!("{} is not a stack of matrices", w.aval)));
    }
    if w.axis == 2 {
        let x = w.group.enter(x)?;
        let part = implicit((x, w.entered_part()?), |(x, part)| ops::gather_mm(x, part, left, right, None))?;
        let axis = part.aval()?.shape.len() - 1;
        return w.with(part, axis);
    }
    if w.axis == 1 {
        let x = w.operand(&x.into(), x.ndim() - 1)?;
        return implicit((x, w.entered_part()?), |(x, part)| {
            w.group.all_sum(&ops::gather_mm(x, part, left, right, None)?)
        });
    }
    let x = w.group.enter(x)?;
    implicit((x, w.entered_part()?), |(x, part)| {
        let (chosen, there) = own_rows(w, right)?;
        let chosen = chosen.as_dtype(mlx_rs::Dtype::Uint32)?;
        let product = ops::gather_mm(x, part, left, &chosen, None)?;
        let zero = sum_identity(product.dtype())?;
        w.group.all_sum(&ops::select(there.expand_dims_axes(&[-1, -2])?, product, zero)?)
    })
}
