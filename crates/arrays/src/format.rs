//! Stored formats as values: what a rule, a configuration or a command line says of a weight.
//!
//! A format is a small struct such as [`Nf4`] or [`Affine`], which quantizes by [`Quantizer`], is compared and hashed, and
//! reads as text, `nf4:64` or `affine:4:64`, by which serde stores it. [`parse`] reads the text of any of them, a
//! stranger's too, once that is registered by [`register_format!`](crate::register_format).

mod any;
pub(crate) mod declaration;
mod fit;
pub(crate) mod fitting;
mod of_value;
pub(crate) mod options;
mod rotation;
pub(crate) mod trained_scales;

pub use crate::affine::Affine;
pub use crate::binary::Binary;
pub use crate::codebook::Codebook;
pub use crate::e4m3::E4m3;
pub use crate::e5m2::E5m2;
pub use crate::fp4::Fp4;
pub use crate::halves::{Bf16, F16};
pub use crate::int8::Int8;
pub use crate::k_quant::KQuant;
pub use crate::kernel::{Coding, Encoding, Nested, Scaling, Scheme};
pub use crate::mxfp4::Mxfp4;
pub use crate::mxfp8::Mxfp8;
pub use crate::nf4::Nf4;
pub use crate::nvfp4::Nvfp4;
pub use crate::packed_array::{Int8Activations, PackedArray, Parts};
pub use crate::ternary::Ternary;
pub use any::AnyFormat;
#[doc(hidden)]
pub use declaration::{__private, deserialized, read};
pub use declaration::{Entry, Format, Quantizer, TextForm, forms, names, parse};
pub use fit::{Fit, Fitted};
pub use of_value::of_value;
pub use options::Per;
pub use rotation::Rotation;
pub use trained_scales::{FloatScales, TrainedScales};
