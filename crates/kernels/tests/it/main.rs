//! The kernels against plain formulas.

#[cfg(feature = "blas")]
mod blas;
mod errors;
mod matmul;
mod quantize;
mod random;
