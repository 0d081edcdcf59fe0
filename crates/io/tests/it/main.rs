//! Checkpoints: what is read, what is refused, what is written.

mod checkpoints;
mod foreign;
mod gguf;
mod gguf_malformed;
mod malformed;
mod models;
mod scratch;
mod tensors;
