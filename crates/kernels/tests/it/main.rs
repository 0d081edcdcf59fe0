//! The kernels against plain formulas.

mod attention;
mod decode;
mod errors;
mod formats;
mod golden;
mod int8_matmul;
mod matmul;
mod nearest;
mod outputs;
mod quantize;
mod random;
mod stored;
mod sum;
