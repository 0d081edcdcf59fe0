//! Checkpoints: what is read, what is refused, what is written.

// The derives name the facade.
extern crate tacit_core as tacit;

mod adapters;
mod bitsandbytes;
mod checkpoints;
mod conversion;
mod damage;
mod foreign;
mod fp8;
mod gguf;
mod gguf_architectures;
mod gguf_malformed;
mod gguf_messages;
mod gguf_positions;
mod gguf_written;
mod gguf_written_malformed;
mod golden;
mod gptq_zeros;
mod hugging_face;
mod leaves;
mod libraries;
mod malformed;
mod meeting;
mod messages;
mod mlx_lm;
mod mlx_prompt_cache;
mod model_folder;
mod models;
mod resumable;
mod rotation;
mod scratch;
mod strangers;
mod tensors;
mod tied_heads;
mod writers;
