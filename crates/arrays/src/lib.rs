//! Array types, one file each, with their handlers.
//!
//! [`Nf4Array`] holds bitsandbytes' 4-bit `NormalFloat`, [`AffineArray`] MLX's own 2- to 8-bit format, and [`ste()`] wraps
//! either so that gradients pass straight through to a float master. A handler stands beside its type; what holds for
//! every type is in [`structural`]. [`kernel`] puts the crate `tacit-kernels` into MLX graphs.

// The macros' output names this crate's core as the facade does.
extern crate tacit_core as tacit;

pub mod affine;
pub mod kernel;
mod matrix;
pub mod nf4;
pub mod ste;
pub mod structural;

pub use affine::AffineArray;
pub use nf4::Nf4Array;
pub use ste::{Ste, ste};
