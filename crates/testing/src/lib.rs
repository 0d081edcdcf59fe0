//! Oracles, finite differences and the op surface that Tacit is tested over.

// The macros' output names this crate's core as the facade does.
extern crate tacit_core as tacit;

pub mod difference;
pub mod opaque;
pub mod oracle;
pub mod product;
pub mod surface;
