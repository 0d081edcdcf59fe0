//! Checkpoints: what is read, what is refused, what is written.

mod foreign;
mod gguf;
mod gguf_malformed;
mod scratch;
mod tensors;
