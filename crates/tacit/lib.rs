//! Implicit arrays for MLX: quantized and structured weights that plain mlx-rs code uses as if they were dense.
pub use tacit_core::*;
