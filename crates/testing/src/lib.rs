//! Oracles, finite differences, the op surface and the conformance suite that Tacit is tested with.

// The macros' output names this crate's core as the facade does.
extern crate tacit_core as tacit;

pub mod conformance;
pub mod difference;
pub mod opaque;
pub mod oracle;
pub mod product;
pub mod surface;
