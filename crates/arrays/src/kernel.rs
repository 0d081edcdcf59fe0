//! The functions of `tacit-kernels` as MLX primitives: one family for every stored format.
//!
//! A [`Scheme`] says how the children of a packed type are read. Each kernel runs on the packed codes, and its
//! decomposition says the same in plain ops.

mod added;
mod attention;
mod block_ranges;
mod coded;
mod contradictions;
mod dequantize;
pub(crate) mod derivatives;
mod deviations;
mod draw;
mod dynamic8;
mod encode;
mod encode_by;
mod gather;
mod gather_matmul;
mod gpu;
mod hadamard;
mod host;
mod int8_matmul;
mod int8_product;
mod int8_rows;
mod layout;
mod matmul;
mod mlx_matmul;
mod parts;
mod pieces;
mod product_scale_gradients;
mod quantize;
mod reach;
mod round_columns;
mod scale_gradients;
pub(crate) mod scheme;
mod sum;
#[cfg(test)]
mod tests;

pub(crate) use added::add_dense;
pub(crate) use attention::{Attend, Hiding, StoredTokens};
pub(crate) use block_ranges::block_ranges;
pub use dequantize::dequantize;
pub(crate) use deviations::{Sums, deviations};
pub(crate) use draw::draw;
pub use dynamic8::quantize_dynamic8;
pub(crate) use encode::{
    coded as codes_by, float_scales, packed as packed_codes, rounded_scales, symmetric as symmetric_scales, top_code,
};
pub(crate) use encode_by::encode_by;
pub use gather::gather_rows;
pub use gather_matmul::{StackLayout, gather_matmul};
pub use hadamard::hadamard;
pub use int8_matmul::int8_matmul;
pub(crate) use int8_matmul::rounded_to_int8;
pub(crate) use int8_product::int8_product;
pub(crate) use int8_rows::{Int8Rows, no_int8_derivative};
pub use layout::Layout;
pub(crate) use layout::nested;
pub use matmul::{Groups, grouped_matmul, matmul};
pub use quantize::quantize;
pub(crate) use quantize::quantize_piece;
pub(crate) use reach::reaching;
pub(crate) use round_columns::round_columns;
pub(crate) use scale_gradients::scale_gradients;
pub(crate) use scheme::{Coding, Encoding, NVFP4_RANGE, Nested, Scaling, Scheme};
pub(crate) use sum::global_scale;
pub use sum::{Measure, Summands};
