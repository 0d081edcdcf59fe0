//! Transforms over trees: gradients, mapped functions, checkpoints, and rules of one's own.
//!
//! Each takes a function as [`implicit`](crate::implicit()) does: inside, every leaf is a dense array; outside, it is a
//! value. [`vjp`], [`jvp`] and [`map_chunks`] run it, and take their arguments before it; the others make a function, whose
//! [`call`](Transformed::call) takes them. The table says what becomes of the transform of a column inside that of a row:
//!
//! | around       | `implicit` | `grad`  | `vmap`  | `compile` | `checkpoint` | `map_chunks` | `saved_as` |
//! |--------------|------------|---------|---------|-----------|--------------|--------------|------------|
//! | `implicit`   | works      | works   | works   | inlined   | works        | works        | works      |
//! | `grad`       | works      | works   | works   | inlined   | works        | works        | works      |
//! | `vmap`       | works      | works   | works   | inlined   | works        | works        | works      |
//! | `compile`    | works      | works   | works   | inlined   | works        | works        | works      |
//! | `checkpoint` | works      | works   | works   | inlined   | works        | works        | works      |
//! | `map_chunks` | works      | works   | works   | inlined   | works        | works        | works      |
//! | `saved_as`   | works      | works   | works   | inlined   | works        | works        | works      |
//!
//! inlined: the values are right, and the inner function runs as it is, since its arguments are no data; compile the
//! outermost function. The gradient of the gradient of a `saved_as` is an error.
//!
//! Wherever `implicit` is the row or the column, handlers take the primitives on implicit operands.

mod again;
mod checkpoint;
mod custom_jvp;
mod custom_vjp;
mod differentiable;
mod grad;
mod jvp;
mod map_chunks;
mod node;
mod opened;
mod resident;
mod rule;
mod saved;
mod saved_form;
mod transformed;
mod vmap;
mod wrt;

pub use checkpoint::checkpoint;
pub use custom_jvp::custom_jvp;
pub use custom_vjp::custom_vjp;
pub use differentiable::{Differentiable, apply};
pub use grad::{ValueAndGradient, grad, grad_wrt, value_and_grad, value_and_grad_wrt, vjp};
pub use jvp::jvp;
pub use map_chunks::map_chunks;
pub use saved::saved_as;
pub use saved_form::SavedForm;
pub use transformed::Transformed;
pub use vmap::{Axes, vmap};
pub use wrt::Wrt;

use mlx_rs::Array;

use crate::{Result, Value, trace};

/// Runs `f` on a list of values with every primitive on an implicit one intercepted: [`implicit`](crate::implicit())
/// for a handler, whose operands are a list.
///
/// # Errors
///
/// As for [`implicit`](crate::implicit()).
pub fn intercept(args: &[Value], f: impl FnOnce(Vec<Array>) -> Result<Vec<Array>>) -> Result<Vec<Value>> {
    trace::redispatch(args, f)
}
