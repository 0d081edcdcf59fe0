//! Host code as an MLX primitive.

use std::sync::Arc;

use mlx_rs::Array;

pub use tacit_bridge::Mapped;
pub use tacit_bridge::kernel::{Element, Input, Kernel, Output};

use crate::Result;

/// Puts `kernel` into the graph, applied to `inputs`.
///
/// # Errors
///
/// The kernel refuses the avals of the inputs. What it refuses when it runs becomes an error of the eval.
pub fn apply(kernel: impl Kernel, inputs: &[Array]) -> Result<Vec<Array>> {
    Ok(tacit_bridge::kernel::apply(Arc::new(kernel), inputs)?)
}

/// Fails if `array` is computed from the results of a kernel that failed, as every read and eval of it does. A kernel that
/// has not run yet may still fail.
///
/// # Errors
///
/// The failure.
pub fn check_intact(array: &Array) -> Result<()> {
    Ok(tacit_bridge::kernel::check_intact(array)?)
}
