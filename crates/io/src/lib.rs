//! Checkpoints of models whose parameters are implicit arrays.
//!
//! [`save`] and [`load`] are for whatever Tacit has: any implicit array, by path; [`ModelFile`] is both for a model or a part of
//! one. [`Training`] is a run with its optimizer and random state, which goes on where it was, bit by bit. [`Tensors`] reads
//! any safetensors files, memory-mapped and checked, and [`write()`] writes them. All files of a checkpoint appear at once: it is
//! either the old one or the new one, whenever the program ends.
//!
//! Other programs' checkpoints are read by a module each, with the codes and scales that they have: [`bitsandbytes`],
//! [`mlx_lm`], [`gptq`], [`awq`], [`torchao`], [`Gguf`] of llama.cpp and, for floats, [`hugging_face`]; the first two are
//! written, too, and [`read()`] finds out whose a checkpoint is. [`mlx_adapter`] and [`peft`] are for adapters over a model that was read, [`mlx_prompt_cache`] for
//! what mlx-lm has computed of a prompt. All read and write
//! [`Parameters`](tacit_nn::Parameters), and [`convert()`] goes from one format to another and tells what that costs.

mod adapter;
pub mod awq;
pub mod bitsandbytes;
mod checkpoint;
mod clause;
mod codes;
mod convert;
mod distance;
mod floats;
mod fp8;
mod gguf;
pub mod gptq;
mod header;
pub mod hugging_face;
mod index;
mod integers;
pub mod json;
mod kind;
pub mod mlx_adapter;
pub mod mlx_lm;
pub mod mlx_prompt_cache;
mod model_file;
pub mod peft;
mod progress;
mod quantized_layers;
mod read;
mod remaining;
mod resumable;
mod rotation;
mod set;
mod shards;
mod sources;
mod stored_dtype;
mod structure;
mod tensors;
mod torch_dtype;
pub mod torchao;
mod training;
mod write;
mod writer;

pub use checkpoint::{load, save, save_with};
pub use convert::{ConversionReport, Converted, convert, dense};
pub use distance::Distance;
pub use gguf::{Gguf, GgufType, GgufValue};
pub use kind::FileKind;
pub use model_file::ModelFile;
pub use progress::{Progress, progress_bar};
pub use read::{Content, contents, read};
pub use resumable::Resumable;
pub use rotation::Rotation;
pub use shards::replaced;
pub use sources::sources;
pub use stored_dtype::{dtype_of_stored, stored_dtype};
pub use tensors::Tensors;
pub use training::Training;
pub use write::{write, write_sharded, write_with};
pub use writer::{Metadata, Writing};
