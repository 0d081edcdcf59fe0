//! CPU kernels of the quantized formats: pure Rust and SIMD, without MLX.
//!
//! Every function takes plain slices, checks their lengths, and returns a [`KernelError`] instead of panicking.
//! [`nf4`] holds the 4-bit `NormalFloat` format of bitsandbytes: quantize, dequantize, row gather, and products with a
//! packed weight in both orientations, none of which ever builds the dense weight. `blas` (feature `blas`) exports the
//! three `cblas_*gemm` functions that MLX imports.
//!
//! The instruction set is chosen once at run time ([`Isa::detect`]); each function has a `_with` twin that takes it
//! explicitly. Work is spread over one pool of `TACIT_THREADS` threads ([`threads::count`]). Results carry the same
//! bits whatever the number of threads: only independent outputs are split, never a sum.
//!
//! ```
//! use tacit_kernels::nf4;
//!
//! let x: Vec<f32> = (0..128).map(|i| (i as f32 * 0.37).sin()).collect();
//! let mut packed = vec![0; nf4::packed_len(x.len())];
//! let mut absmax = vec![0.0; nf4::absmax_len(x.len(), 64)];
//! nf4::quantize(&x, 64, &mut packed, &mut absmax)?;
//!
//! let w = nf4::Weight { packed: &packed, absmax: &absmax, block: 64, n: 2, k: 64 };
//! let mut y = [0.0; 2];
//! nf4::matmul(&x[..64], 1, &w, nf4::Orientation::Transposed, &mut y)?;
//! # Ok::<(), tacit_kernels::KernelError>(())
//! ```

// A function that is compiled for an instruction set only passes that on to what is inlined into it.
#![allow(clippy::inline_always)]

#[cfg(feature = "blas")]
pub mod blas;
mod decode;
mod error;
mod floats;
mod isa;
mod matmul;
mod matrix;
pub mod nf4;
mod simd;
pub mod threads;
mod tile;

pub use decode::{dequantize, gather_rows};
pub use error::KernelError;
pub use floats::{Floats, FloatsMut};
pub use isa::Isa;
pub use matmul::matmul;
pub use matrix::{Codes, E2M1, Matrix, Order, Scales, code_bytes, e4m3, e8m0};
pub use nf4::Orientation;
