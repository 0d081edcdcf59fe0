//! Linear layers by their sizes, and several of one input.

use mlx_rs::builder::Builder;
use mlx_rs::error::Exception;
use mlx_rs::module::Module;
use mlx_rs::{Array, nn};

pub(crate) fn linear(from: i32, to: i32, bias: bool) -> Result<nn::Linear, Exception> {
    nn::LinearBuilder::new(from, to).bias(bias).build()
}

/// What each of several layers makes of `x`: by itself, or as a part of one that has the rows of all, and whose parts end at these
/// places.
pub(crate) fn apart_or_fused<const N: usize>(
    apart: [&mut Option<nn::Linear>; N],
    fused: &mut Option<nn::Linear>,
    ends: &[i32],
    x: &Array,
) -> Result<Vec<Array>, Exception> {
    match fused {
        Some(fused) => fused.forward(x)?.split_at_indices(ends, -1),
        None => apart.into_iter().flatten().map(|layer| layer.forward(x)).collect(),
    }
}
