//! The predicate of a branch or a loop: one bool.

use mlx_rs::Array;
use tacit_bridge::is_traced;

use crate::{Aval, Error, Result};

/// A predicate, and whether it can be read.
pub(super) enum Predicate {
    /// It has data, or can be evaluated.
    Known(Array),
    /// It depends on an array without data; it has no axes.
    Traced(Array),
}

impl Predicate {
    /// The predicate that an array is; `name` is what messages call it.
    pub(super) fn from_array(array: &Array, name: &str) -> Result<Self> {
        let aval = Aval::from(array);
        if aval.dtype != mlx_rs::Dtype::Bool || aval.size() != 1 {
            return Err(Error::invalid(
                format!("{name} is {aval} and must be one bool"),
                "compare, as in `x.lt(y)`, and bring several bools to one by `any` or `all`",
            ));
        }
        if !is_traced(array) {
            return Ok(Self::Known(array.clone()));
        }
        // With an axis of its own it would give one to what it selects.
        Ok(Self::Traced(if aval.shape.is_empty() { array.clone() } else { array.reshape(&[])? }))
    }
}

/// The bool in an array that is a [`Predicate::Known`].
pub(super) fn read(array: &Array) -> Result<bool> {
    array.eval()?;
    array.try_item_exact().map_err(|error| Error::Mlx(error.to_string()))
}
