//! The C++ beside MLX and its safe Rust face: record, walk, re-emit, kernels, custom vjp.
//!
//! MLX is lazy: an op only adds a node to a graph. This crate makes placeholders to record such a graph on
//! ([`Scope`]), lists the nodes that depend on them ([`Tape`]), tells what each node is ([`Primitive`], [`typed`]),
//! emits a primitive again with other operands or rewires a node in place, and puts Rust functions into graphs
//! ([`kernel`], [`custom_vjp()`]). It knows nothing of implicit arrays.
//!
//! No Rust panic and no C++ exception crosses the border: a failing callback becomes an exception with its text, and
//! [`recover`] finds the error itself again.

mod arrays;
mod aval;
mod custom_vjp;
mod error;
mod ffi;
pub mod kernel;
mod names;
mod param;
mod primitive;
mod scope;
mod tape;
pub mod typed;

pub use arrays::{array_id, prototype};
pub use aval::{Aval, ParseAvalError, dtype_name, dtype_named};
pub use custom_vjp::{Differentiable, GradientError, PanicError, custom_vjp};
pub use error::{BoxError, BridgeError, recover, remember};
pub use names::NameId;
pub use param::{Param, ParamError};
pub use primitive::Primitive;
pub use scope::Scope;
pub use tape::{Kept, Slot, Tape};
