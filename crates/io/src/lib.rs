//! Checkpoints of models whose parameters are implicit arrays.
//!
//! [`save`] and [`load`] are for whatever Tacit has: any implicit array, by path; [`ModelFile`] is both for a model or a part of
//! one. [`Training`] is a run with its optimizer and
//! random state, which goes on where it was, bit by bit. [`Tensors`] reads any safetensors files, memory-mapped and
//! checked, and [`write()`] writes them, so that a file is either the old one or the new one, whenever the program ends.

mod atomic;
mod checkpoint;
mod header;
mod index;
mod model_file;
mod progress;
mod stored_dtype;
mod structure;
mod tensors;
mod training;
mod write;

pub use checkpoint::{load, save, save_with};
pub use model_file::ModelFile;
pub use progress::{Progress, progress_bar};
pub use stored_dtype::{dtype_of_stored, stored_dtype};
pub use tensors::Tensors;
pub use training::Training;
pub use write::{Metadata, Writing, write, write_sharded, write_with};
