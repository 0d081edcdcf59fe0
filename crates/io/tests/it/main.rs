//! Checkpoints: what is read, what is refused, what is written.

mod bitsandbytes;
mod golden;
mod mlx_lm;
mod scratch;
mod tensors;
