//! Every array type in the conformance suite: a type joins by its line in `kinds.rs`. Beside it, bytes and errors of other programs.

/// The suite of the lines of `kinds.rs`.
macro_rules! with_lines {
    ($($lines:tt)+) => {
        tacit_conformance::conformance! { $($lines)+ }
    };
}

mod golden;
mod kinds;
mod nested;
mod shards;
mod statistics;
mod structured;

// Dense products are those of a program with the facade: MLX takes its BLAS from this executable.
use tacit_blas as _;
// Compiled graphs are rewritten as they are there.
use tacit_fusion as _;

use kinds::{normal, subjects};
