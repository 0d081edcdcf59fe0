//! The kernels against plain formulas.

mod attention;
mod checked_products;
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
mod int8_product;
mod lengths;
mod mask_column;
mod matmul;
mod nearest;
mod one_block;
mod outputs;
mod product_scale_gradients;
mod program;
mod quantize;
mod random;
mod reduce;
mod round_columns;
mod signs_of_zero;
mod small;
mod stochastic;
mod stored;
mod sum;
