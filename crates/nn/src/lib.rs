//! Models whose parameters are implicit arrays.
//!
//! [`with_parameters`] runs an unmodified mlx-rs module with other values in place of its parameters. A rule says which
//! parameters become which implicit arrays: [`quantized`] makes them once, [`straight_through`] makes them anew from the
//! float masters in each training step, and [`ImplicitModule`] keeps them in place of the dense ones. [`Module`] and
//! [`Stateful`] make trees of modules, and of optimizers and random states.

mod implicit_module;
mod inputs;
mod module;
mod parameters;
mod rule;
mod stateful;

pub use implicit_module::ImplicitModule;
pub use inputs::Inputs;
pub use module::Module;
pub use parameters::{Parameters, check_parameters, explain_with_parameters, with_parameters};
pub use rule::{quantized, straight_through};
pub use stateful::Stateful;
