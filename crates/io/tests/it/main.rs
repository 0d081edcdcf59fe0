//! Checkpoints: what is read, what is refused, what is written.

mod checkpoints;
mod malformed;
mod scratch;
mod tensors;
