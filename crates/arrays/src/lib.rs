//! Array types, one file each, with their handlers.
//!
//! Codes in flat blocks: [`Nf4Array`] and [`Fp4Array`] of bitsandbytes, whose scales may be a [`Dynamic8Array`],
//! [`Int8Array`], [`E4m3Array`], [`E5m2Array`], [`TernaryArray`] and [`BinaryArray`], [`KQuantArray`] of GGUF, and [`CodebookArray`] for any
//! table. Codes in groups along the last axis, in MLX's layout: [`AffineArray`], [`Mxfp4Array`], [`Mxfp8Array`] and [`Nvfp4Array`].
//! Codes that are the values: [`F16Array`] and [`Bf16Array`]. All of them share their handlers: products,
//! rows, and the structural ops that cut, join or scale codes and scales without making them anew. [`ste()`] wraps any
//! of them so that gradients pass straight through to a float master; adapters such as [`Lora`] are the family [`Adapter`];
//! what holds for every type is in [`structural`].
//! [`kernel`] puts the crate `tacit-kernels` into MLX graphs.

// The macros' output names this crate's core as the facade does.
extern crate tacit_core as tacit;

pub mod adapter;
pub mod affine;
pub mod as_stored;
pub mod batched;
pub mod binary;
pub mod cast;
mod checks;
pub mod codebook;
pub mod concat;
pub mod constant;
pub mod cut;
pub mod diagonal;
mod divided;
pub mod dora;
pub mod dynamic8;
pub mod e4m3;
pub mod e5m2;
pub mod format;
pub mod fp4;
pub mod halves;
pub mod identity;
pub mod int8;
pub mod int8_inputs;
pub mod k_quant;
pub mod kernel;
pub mod layout;
pub mod linear;
pub mod lora;
pub mod lora_set;
pub mod low_rank;
pub mod masked;
pub mod merge;
mod mx;
pub mod mxfp4;
pub mod mxfp8;
pub mod nf4;
pub mod nvfp4;
pub mod packed;
mod packed_array;
pub mod placed;
pub mod prepared;
pub mod qa_lora;
pub mod rotated;
pub mod scaled;
pub mod scores;
pub mod sliced;
pub mod sparse24;
pub mod stacked;
pub mod ste;
pub mod structural;
pub mod ternary;
pub mod transposed;
pub mod views;
pub mod wide;
pub mod writes;

pub use adapter::Adapter;
pub use affine::AffineArray;
pub use as_stored::AsStored;
pub use batched::Batched;
pub use binary::BinaryArray;
pub use cast::Cast;
pub use codebook::CodebookArray;
pub use concat::Concat;
pub use constant::Constant;
pub use cut::{Cut, cut, shard};
pub use diagonal::Diagonal;
pub use dora::Dora;
pub use dynamic8::Dynamic8Array;
pub use e4m3::E4m3Array;
pub use e5m2::E5m2Array;
pub use format::Quantizer;
pub use fp4::Fp4Array;
pub use halves::{Bf16Array, F16Array};
pub use identity::Identity;
pub use int8::Int8Array;
pub use int8_inputs::{Int8Inputs, ScalePer, int8_rounded};
pub use k_quant::KQuantArray;
pub use linear::{Gain, Linear};
pub use lora::Lora;
pub use lora_set::LoraSet;
pub use low_rank::LowRank;
pub use masked::Masked;
pub use mx::ScaleRule;
pub use mxfp4::Mxfp4Array;
pub use mxfp8::Mxfp8Array;
pub use nf4::Nf4Array;
pub use nvfp4::Nvfp4Array;
pub use packed::{Packed, Stored};
pub use packed_array::PackedArray;
pub use placed::Placed;
pub use prepared::Prepared;
pub use qa_lora::QaLora;
pub use rotated::Rotated;
pub use scaled::Scaled;
pub use scores::Scores;
pub use sliced::Sliced;
pub use sparse24::Sparse24;
pub use stacked::Stacked;
pub use ste::{Ste, ste};
pub use ternary::TernaryArray;
pub use transposed::Transposed;
