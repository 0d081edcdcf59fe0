//! What only Tacit's own tests and benchmarks use: types without handlers, and the baseline of a product.

// The macros' output names this crate's core as the facade does.
extern crate tacit_core as tacit;

pub mod opaque;
pub mod product;
