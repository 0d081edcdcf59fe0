//! The kernels' source for GPUs: one text for all formats, which MLX compiles when a kernel first runs.
//!
//! The text in `gpu/source` uses what CUDA's C++ and Metal's have in common; `cuda.h` and `metal.h` give both the same
//! names. A generated description of the format stands before it, so that a declared format runs as the built-in ones
//! do. A third header, `host.h`, lets a CPU play a GPU in the tests.

mod attention;
#[cfg(test)]
mod checks;
mod dequantize;
mod deviations;
#[cfg(test)]
mod emulator;
mod encode;
#[cfg(test)]
mod encode_tests;
mod hadamard;
mod matmul;
mod matrices;
mod product;
mod product_scale_gradients;
mod round_columns;
mod rule;
mod scale_gradients;
#[cfg(test)]
mod signature;
mod source;
mod sum;
#[cfg(test)]
mod tests;
mod weight;

pub(super) use attention::attention;
pub(super) use dequantize::{add_dense, dequantize, gather_rows};
pub(super) use deviations::deviations;
pub(super) use encode::{draw, encode_by, quantize, quantize_sum};
pub(super) use hadamard::hadamard;
pub(super) use matmul::{gather_matmul, grouped_matmul, int8_matmul, matmul};
pub(super) use product_scale_gradients::product_scale_gradients;
pub(super) use round_columns::round_columns;
pub(super) use scale_gradients::scale_gradients;
pub(super) use source::{Parts, Target};
pub(super) use sum::measure;
