//! Checkpoints of models whose parameters are implicit arrays.
//!
//! [`save`] and [`load`] write and read parameters of any implicit type by path; [`ModelFile`] does so for a model or a part of
//! one. [`Training`] is a run with its optimizer and random state, which resumes bit by bit. [`CheckpointRotation`] keeps the latest
//! checkpoints of a run. [`Tensors`] reads any safetensors files, memory-mapped and checked, and [`write()`] writes them. All files
//! of a checkpoint appear together: the old ones or the new ones are there, whenever the program ends.
//!
//! Each format of another program has a reader, which keeps codes and scales as they are: [`bitsandbytes`], [`mlx_lm`], [`gptq`],
//! [`awq`], [`torchao`], [`Gguf`] of llama.cpp, with configuration and tokenizer, and, for floats, [`hugging_face`]. [`read()`]
//! recognizes the format. [`bitsandbytes`], [`mlx_lm`] and [`hugging_face`] write files of their format as well. [`ModelFolder`] writes
//! a whole model for another library, with its configuration and its tokenizer, or as one GGUF file. [`mlx_adapter`] and [`peft`] read
//! and write adapters, [`mlx_prompt_cache`] the prompt caches of mlx-lm.
//! All of them use [`Parameters`](tacit_nn::Parameters). [`convert()`] converts one format to another and measures the error.

mod adapter;
pub mod awq;
pub mod bitsandbytes;
mod checkpoint;
mod codes;
mod convert;
mod distance;
mod filled;
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
pub mod layout;
mod mapped;
mod mistaken;
pub mod mlx_adapter;
pub mod mlx_lm;
pub mod mlx_prompt_cache;
mod model_file;
mod model_folder;
pub mod peft;
mod positions;
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
mod unconfigured;
mod write;
mod writer;

pub use checkpoint::{load, save, save_with};
pub use convert::{ConversionReport, Converted, convert, dense};
pub use distance::Distance;
pub use gguf::{Gguf, GgufType, GgufValue};
pub use kind::FileKind;
pub use model_file::ModelFile;
pub use model_folder::{Library, ModelFolder, chat_template};
pub use positions::positions_once;
pub use progress::{Progress, progress_bar};
pub use read::{Content, contents, read};
pub use resumable::Resumable;
pub use rotation::CheckpointRotation;
pub use shards::replaced;
pub use sources::{FileState, sources};
pub use stored_dtype::{dtype_of_stored, stored_dtype};
#[doc(hidden)]
pub use structure::{restored, stored};
pub use tensors::Tensors;
pub use training::Training;
pub use write::{write, write_sharded, write_with};
pub use writer::{Metadata, Writing};
