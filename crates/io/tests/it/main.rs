//! Checkpoints: what is read, what is refused, what is written.

mod adapters;
mod bitsandbytes;
mod conversion;
mod foreign_damage;
mod golden;
mod hugging_face;
mod mlx_lm;
mod scratch;
mod tensors;
