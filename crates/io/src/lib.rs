//! Checkpoints of models whose parameters are implicit arrays.
//!
//! [`Tensors`] reads safetensors files, memory-mapped and checked, and [`write()`] writes them, so that a file is either the
//! old one or the new one, whenever the program ends.

mod adapter;
mod atomic;
pub mod bitsandbytes;
mod convert;
mod floats;
mod header;
pub mod hugging_face;
mod index;
pub mod json;
pub mod mlx_adapter;
pub mod mlx_lm;
pub mod peft;
mod remaining;
mod stored_dtype;
mod tensors;
mod torch_dtype;
mod write;

pub use convert::{ConversionReport, Converted, convert, dense};
pub use stored_dtype::{dtype_of_stored, stored_dtype};
pub use tensors::Tensors;
pub use write::{Metadata, write, write_sharded};
