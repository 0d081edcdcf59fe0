//! Sums of a packed array and a dense one, such as an optimizer's moments and a gradient.
//!
//! Differences are not computed from the codes. In a model they are those of norms, where the mean is taken of the same
//! array; the gradients of its scales cancel better where both come from one dense array.

use mlx_rs::Array;
use tacit_core::primitives::Add;
use tacit_core::{Error, Result, Value, handler};

use crate::avals::checks::decline_if;
use crate::families::packed::Packed;
use crate::kernel;
use crate::views::scaled::Scaled;

/// The sum, from the codes.
#[handler]
pub(crate) fn packed_add(_op: &Add, array: &dyn Packed, x: &Array) -> Result<Value> {
    added(array, None, x)
}

/// The sum, from the codes and the number that the view multiplies them by.
#[handler]
pub(crate) fn scaled_add(_op: &Add, view: &Scaled, x: &Array) -> Result<Value> {
    decline_if(view.divides(), "a sum with a quotient is not made from the codes")?;
    let array = view.inner().family::<dyn Packed>().ok_or_else(|| Error::decline("what is scaled has no codes"))?;
    added(array, Some(view.scale()), x)
}

fn added(array: &dyn Packed, factor: Option<&Array>, x: &Array) -> Result<Value> {
    let stored = array.stored();
    decline_if(!stored.aval.dtype.is_float() || x.dtype() != stored.aval.dtype, "the dense array is of another type")?;
    // Both the way round in which the codes lie.
    let oriented = |x: &Array| if stored.transposed { x.swap_axes(-1, -2) } else { Ok(x.clone()) };
    let shape = stored.shape();
    let (layout, children) = stored.kernel(shape.first().copied().unwrap_or(1))?;
    let x = oriented(x)?.reshape(&[layout.n as i32, layout.k as i32])?;
    let result = kernel::add_dense(layout, &children, factor, &x)?.reshape(&shape)?;
    Ok(oriented(&result)?.into())
}
