//! Array types, one file each, with their handlers.
//!
//! Codes in flat blocks: [`Nf4Array`] and [`Fp4Array`] of bitsandbytes (with a [`Dynamic8Array`] for scales where these are quantized
//! too), [`DynamicArray`], [`Int8Array`], [`E4m3Array`], [`E5m2Array`], [`TernaryArray`], [`BinaryArray`], [`KQuantArray`] of GGUF, and
//! [`CodebookArray`] for any table. Codes in groups along the last axis, in MLX's layout: [`AffineArray`], [`SymmetricArray`],
//! [`Mxfp4Array`], [`Mxfp8Array`] and [`Nvfp4Array`]. Codes that are the values: [`F16Array`] and [`Bf16Array`]. All of them are a
//! [`PackedArray`](format::PackedArray) and share its handlers: products, rows, and the structural ops that slice, concatenate or
//! scale codes and scales without quantizing again. [`ste()`] and [`Prepared`] wrap any of them so that gradients pass straight
//! through to a float master.
//!
//! Matrices of few numbers are [`LowRank`], [`Diagonal`], [`Identity`], [`Constant`] and [`Sparse24`]. Views such as [`Transposed`],
//! [`Cast`] and [`Concat`] stand around any of these. Adapters such as [`Lora`] are the family [`Adapter`]. The folder `families` has
//! what holds for every type of a family. [`kernel`] puts the crate `tacit-kernels` into MLX graphs.

// The macros' output names this crate's core as the facade does.
extern crate tacit_core as tacit;

mod adapters;
mod avals;
mod families;
pub mod format;
pub mod kernel;
mod packed;
mod structured;
mod training;
mod views;

pub use adapters::as_stored::AsStored;
pub use adapters::dora::Dora;
pub use adapters::lora::Lora;
pub use adapters::lora_set::LoraSet;
pub use adapters::merge::{MergeLoss, Merged, merge, merge_exactly};
pub use adapters::qa_lora::QaLora;
pub use avals::dtypes::{accumulator_dtype, in_accumulator_dtype};
pub use families::adapter::Adapter;
pub use families::cut::{Cut, cut, shard};
pub use families::distributed::Distributed;
#[doc(hidden)]
pub use families::linear::within_products;
pub use families::linear::{Factor, Gain, Linear, Product, scaled_sum};
pub use families::packed::{Packed, Stored};
pub use families::view::{Move, View};
pub use format::affine::AffineArray;
pub use format::binary::BinaryArray;
pub use format::codebook::CodebookArray;
pub use format::dynamic::DynamicArray;
pub use format::e4m3::E4m3Array;
pub use format::e5m2::E5m2Array;
pub use format::fp4::Fp4Array;
pub use format::halves::{Bf16Array, F16Array};
pub use format::int8::Int8Array;
pub use format::k_quant::KQuantArray;
pub use format::mx::ScaleRule;
pub use format::mxfp4::Mxfp4Array;
pub use format::mxfp8::Mxfp8Array;
pub use format::nf4::Nf4Array;
pub use format::nvfp4::Nvfp4Array;
pub use format::symmetric::SymmetricArray;
pub use format::ternary::TernaryArray;
pub use packed::batched::Batched;
pub use packed::dynamic8::Dynamic8Array;
pub use packed::scores::Scores;
pub use structured::constant::Constant;
pub use structured::diagonal::Diagonal;
pub use structured::identity::Identity;
pub use structured::low_rank::LowRank;
pub use structured::sparse24::Sparse24;
pub use training::calibration::awq::Awq;
pub use training::calibration::calibrate::Calibrate;
pub use training::calibration::corrected::{Corrected, Rounding};
pub use training::calibration::gptq::Gptq;
pub use training::calibration::weighted::WeightedSearch;
pub use training::int8_inputs::{ActivationGranularity, Int8Inputs, int8_rounded};
pub use training::int8_training::Int8Training;
pub use training::observation::Observation;
pub use training::observed::Observed;
pub use training::prepared::Prepared;
pub use training::saved::saved;
pub use training::saved_inputs::SavedInputs;
pub use training::ste::{Ste, ste};
pub use training::trained_codes::TrainedCodes;
pub use views::cast::Cast;
pub use views::concat::Concat;
pub use views::masked::Masked;
pub use views::repeated::Repeated;
pub use views::rotated::Rotated;
pub use views::scaled::Scaled;
pub use views::scaled_channels::ScaledChannels;
pub use views::sliced::Sliced;
pub use views::stacked::Stacked;
pub use views::transposed::Transposed;
