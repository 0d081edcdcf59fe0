//! The functions of `tacit-kernels` as MLX primitives.

pub mod nf4;
