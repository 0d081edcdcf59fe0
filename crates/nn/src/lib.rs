//! Models whose parameters are implicit arrays.
//!
//! A rule says which parameters of an mlx-rs module become which implicit arrays. [`quantized`] makes them once,
//! [`straight_through`] makes them anew from the float masters in each training step, and [`ImplicitModule`] keeps them
//! in place of the dense ones.

mod implicit_module;
mod rule;

pub use implicit_module::ImplicitModule;
pub use rule::{quantized, straight_through};
