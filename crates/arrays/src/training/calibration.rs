//! From what was seen of a weight's inputs to its codes.

pub(crate) mod awq;
pub(crate) mod calibrate;
mod coder;
pub(crate) mod corrected;
pub(crate) mod gptq;
mod hessian;
mod refit;
pub(crate) mod weighted;
