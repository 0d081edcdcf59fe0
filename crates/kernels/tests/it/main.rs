//! The kernels against plain formulas.

mod attention;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod choice;
mod decode;
mod dense_matmul;
mod encode;
mod errors;
mod formats;
mod gather_matmul;
mod golden;
mod hadamard;
mod int8_matmul;
mod matmul;
mod nearest;
mod outputs;
mod program;
mod quantize;
mod random;
mod reduce;
mod small;
mod stored;
mod sum;
