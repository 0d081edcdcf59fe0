//! Stored formats as values, as rules, configurations and command lines name them.
//!
//! A format is a small struct such as [`Nf4`] or [`Affine`], which quantizes by [`Quantizer`], is compared and hashed, and
//! reads as text, `nf4:64` or `affine:4:64`, by which serde stores it. [`parse`] reads the text of any of them, a
//! stranger's too, once that is registered by [`register_format!`](crate::register_format).

pub(crate) mod affine;
pub(crate) mod any;
pub(crate) mod binary;
pub(crate) mod by_key;
pub(crate) mod codebook;
pub(crate) mod declaration;
pub(crate) mod dynamic;
pub(crate) mod e4m3;
pub(crate) mod e5m2;
pub(crate) mod fit;
pub(crate) mod fitted;
pub(crate) mod fitting;
pub(crate) mod fp4;
pub(crate) mod halves;
pub(crate) mod int8;
pub(crate) mod k_quant;
pub(crate) mod mx;
pub(crate) mod mxfp4;
pub(crate) mod mxfp8;
pub(crate) mod nf4;
pub(crate) mod nvfp4;
mod of_value;
pub(crate) mod options;
pub(crate) mod pieces;
mod rotation;
mod stochastic;
pub(crate) mod symmetric;
pub(crate) mod ternary;
pub(crate) mod text;
pub(crate) mod trained_scales;

pub use crate::kernel::scheme::{Coding, Encoding, Nested, Scaling, Scheme};
pub use crate::packed::array::{Int8Activations, PackedArray, Parts};
pub use crate::packed::in_pieces::quantize_in_pieces;
pub use affine::Affine;
pub use any::AnyFormat;
pub use binary::Binary;
pub use by_key::quantize_by_key;
pub use codebook::Codebook;
pub use declaration::{Format, Quantizer, TextForm};
pub use dynamic::Dynamic;
pub use e4m3::E4m3;
pub use e5m2::E5m2;
pub use fit::Fit;
pub use fitted::Fitted;
pub use fp4::Fp4;
pub use halves::{Bf16, F16};
pub use int8::Int8;
pub use k_quant::KQuant;
pub use mxfp4::Mxfp4;
pub use mxfp8::Mxfp8;
pub use nf4::Nf4;
pub use nvfp4::Nvfp4;
pub use of_value::of_value;
pub use options::Granularity;
pub use pieces::RowPieces;
pub use rotation::Rotation;
pub use stochastic::Stochastic;
pub use symmetric::Symmetric;
pub use ternary::Ternary;
#[doc(hidden)]
pub use text::{__private, deserialized, read};
pub use text::{FormatEntry, forms, names, parse};
pub use trained_scales::{FloatScales, TrainedScales};
