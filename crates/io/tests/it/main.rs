//! Checkpoints: what is read, what is refused, what is written.

mod checkpoints;
mod malformed;
mod models;
mod scratch;
mod tensors;
