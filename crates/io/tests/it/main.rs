//! Checkpoints: what is read, what is refused, what is written.

mod scratch;
mod tensors;
