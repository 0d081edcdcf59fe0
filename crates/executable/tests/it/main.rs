//! Executables: what they hold, run, cut and say.

extern crate tacit_core as tacit;

// Dense products are those of a program with the facade: MLX takes its BLAS from this executable.
use tacit_blas as _;
// And so are the graphs that passes leave.
use tacit_fusion as _;

mod bytes;
mod described;
mod extents;
mod failures;
mod gradients;
mod messages;
mod modes;
mod phases;
mod runs;
#[path = "../../../core/tests/it/types.rs"]
#[allow(dead_code, reason = "the tests of the core share them")]
mod types;
