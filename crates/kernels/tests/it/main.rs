//! The kernels against plain formulas.

mod decode;
mod errors;
mod formats;
mod gather_matmul;
mod golden;
mod int8_matmul;
mod matmul;
mod nearest;
mod outputs;
mod quantize;
mod random;
mod stored;
mod sum;
