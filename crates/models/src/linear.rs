//! Linear layers by their sizes.

use mlx_rs::builder::Builder;
use mlx_rs::error::Exception;
use mlx_rs::nn;

pub(crate) fn linear(from: i32, to: i32, bias: bool) -> Result<nn::Linear, Exception> {
    nn::LinearBuilder::new(from, to).bias(bias).build()
}
