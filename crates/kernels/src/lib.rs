//! CPU kernels of the quantized formats: pure Rust and SIMD, without MLX.
//!
//! Every function takes plain slices, checks their lengths, and returns a [`KernelError`] instead of panicking.
//! A [`Matrix`] borrows a weight in any stored format: codes that are looked up, integers of 1 to 8 bits, or floats of 8
//! or 16, with scales, and perhaps biases, for blocks of them. [`dequantize`], [`gather_rows`] and [`matmul`], in both
//! orientations, work on all of them, and never build the dense weight on their way; nor does [`gather_matmul`], the products
//! with chosen matrices of a [`Stack`]. [`nf4`] quantizes to the 4-bit
//! `NormalFloat` format of bitsandbytes, and [`stochastic`] rounds to the codes of any format at random.
//! [`dense_matmul`] multiplies what is dense already, and [`hadamard`] rotates it. A [`Sum`] of such a matrix and
//! a thin product is quantized and measured a piece at a time.
//!
//! The instruction set is chosen once at run time ([`Isa::detect`]). Work is spread over one pool of `TACIT_THREADS` threads ([`threads::count`]). Results carry the same
//! bits whatever the number of threads: only independent outputs are split, never a sum.
//!
//! ```
//! use tacit_kernels::{BlockScales, Codes, Matrix, Order, Orientation, Scales, matmul, nf4};
//!
//! let x: Vec<f32> = (0..128).map(|i| (i as f32 * 0.37).sin()).collect();
//! let mut packed = vec![0; x.len() / 2];
//! let mut absmax = vec![0.0; x.len() / 64];
//! nf4::encoder(64).quantize(&x, &mut packed, BlockScales::Floats(&mut absmax))?;
//!
//! let codes = Codes::Table { bytes: &packed, bits: 4, order: Order::HighFirst, values: &nf4::CODEBOOK };
//! let w = Matrix { n: 2, k: 64, codes, scales: Scales::F32(&absmax), biases: None, block: 64 };
//! let mut y = [0.0; 2];
//! matmul(&x[..64], 1, &w, Orientation::Transposed, &mut y[..])?;
//! # Ok::<(), tacit_kernels::KernelError>(())
//! ```

// A function that is compiled for an instruction set only passes that on to what is inlined into it.
#![allow(clippy::inline_always)]

mod added;
pub mod affine;
#[cfg(target_arch = "x86_64")]
mod amx;
mod arranged;
mod attention;
pub mod binary;
#[doc(hidden)]
pub mod choice;
mod codec;
mod codec_of;
mod complex_matmul;
mod copy;
mod decode;
mod dense;
mod dense_matmul;
mod deviations;
mod double_matmul;
pub mod dynamic8;
mod encode;
mod encoder;
mod engine;
mod engines;
mod error;
mod factors;
mod floats;
pub mod fp4;
mod gather_matmul;
mod gemm;
mod gemm_stored;
mod gemv_axpy;
mod gemv_dot;
mod gemv_lanes;
mod grouped_matmul;
mod hadamard;
pub mod half_floats;
pub mod int8;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod int8_codes;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod int8_lanes;
mod int8_matmul;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod int8_numbers;
mod int8_product;
mod int8_round;
#[cfg(target_arch = "x86_64")]
mod int8_rows;
#[cfg(target_arch = "aarch64")]
mod int8_squares;
mod int8_unpacked;
mod integers;
#[doc(hidden)]
pub mod machine;
mod matmul;
mod matrix;
mod microkernel;
mod minifloat;
pub mod mx;
pub mod nearest;
pub mod nf4;
pub mod nvfp4;
mod orientation;
mod output;
mod pack;
mod packed_a;
mod packed_b;
mod part;
mod product_scale_gradients;
pub mod program;
mod quantize;
pub mod random;
mod ranges;
mod reduce;
mod round_columns;
mod runs;
mod scale_gradients;
mod scale_rule;
mod scales;
mod search;
mod shape;
mod simd;
pub mod stochastic;
mod stored;
mod strided;
mod sum;
pub mod symmetric;
pub mod ternary;
pub mod threads;
mod unit;
mod unit_products;
mod vector;
#[cfg(target_arch = "x86_64")]
mod vnni;
mod widened;

pub use added::add_dense;
pub use attention::{Attention, Mask, MaskValues, attention};
pub use complex_matmul::{Complex, complex_matmul};
pub use decode::{dequantize, gather_rows};
pub use dense::{Dense, Operand};
pub use dense_matmul::dense_matmul;
pub use deviations::{Deviations, Norm, deviations};
pub use double_matmul::double_matmul;
pub use encoder::{BlockScales, Encoder};
pub use error::KernelError;
pub use factors::Factors;
pub use floats::{Floats, FloatsMut};
pub use gather_matmul::{Indices, gather_matmul};
pub use grouped_matmul::grouped_matmul;
pub use hadamard::{hadamard, hadamard_matrix, hadamard_order};
pub use int8_matmul::int8_matmul;
pub use int8_product::int8_product;
pub use int8_round::Int8Rounding;
pub use matmul::matmul;
pub use matrix::{Codes, Matrix, Order, Scales, Stack, code_bytes};
pub use minifloat::{E2M1, e4m3, e8m0};
pub use orientation::Orientation;
pub use part::gcd;
pub use product_scale_gradients::{OuterProducts, product_scale_gradients};
pub use ranges::ranges;
pub use reduce::sum;
pub use round_columns::{RoundColumn, RoundColumns};
pub use scale_gradients::scale_gradients;
pub use scale_rule::ScaleRule;
pub use simd::Isa;
pub use strided::{Axis, StridedCopy};
pub use sum::{Base, Sum};
