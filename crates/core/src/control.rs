//! Branches and loops over trees that may hold implicit arrays.
//!
//! Operands and carries are values outside the closures and arrays inside, as for [`implicit`](crate::implicit()). A carry
//! keeps its structure, with implicit types and static fields, and every shape and dtype from step to step.
//!
//! A predicate is one bool. It is *traced* where it depends on an argument of a function that `compile` or `vmap`
//! records, on an implicit argument inside `implicit`, or on any inside `explain`: it cannot be read yet. Then [`cond`]
//! runs both branches and selects, and [`while_loop`] refuses, since it cannot know its steps. [`fori_loop`] and [`scan`]
//! take them from a count or a shape. Any other predicate is evaluated, under MLX's `grad` too, and only what it chooses
//! is run; one that a traced function captured is read once, and the choice is frozen in the trace.

mod carry;
mod cond;
mod fori_loop;
mod predicate;
mod scan;
mod structure;
mod while_loop;

pub use cond::cond;
pub use fori_loop::fori_loop;
pub use scan::{Scanned, scan};
pub use while_loop::while_loop;
