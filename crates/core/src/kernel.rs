//! Host code as an MLX primitive.

use std::collections::HashSet;
use std::mem::{Discriminant, discriminant};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use mlx_rs::Array;

pub use tacit_bridge::kernel::{Element, Fallback, Input, Kernel, Output};
pub use tacit_bridge::{Mapped, Mode, Quantized};

use crate::counters::Counters;
use crate::error::way_out;
use crate::{Aval, Error, Policy, Result, policy};

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

/// Asks the policy whether what stands for a kernel may build `dense`, and counts it.
///
/// For the [fallback](Kernel::fallback) of a kernel that works on codes or parts, where its decomposition builds the array
/// that these stand for: that is materialization like any other. A vmap builds one for each example. The warning comes once
/// for each kernel and kind of reason.
///
/// # Errors
///
/// The policy forbids it.
pub fn permit_dense(kernel: &'static str, dense: &Aval, reason: Fallback) -> Result<()> {
    static WARNED: LazyLock<Mutex<Warned>> = LazyLock::new(Mutex::default);
    match Policy::current() {
        Policy::Allow => {}
        Policy::Warn => {
            // Whoever listens to warnings may come here again.
            let first = WARNED.lock().unwrap_or_else(PoisonError::into_inner).insert((kernel, discriminant(&reason)));
            if first {
                let out = way_out(reason);
                policy::warn(&format!(
                    "kernel {kernel} builds a dense {dense} {reason}; {out}, or silence this with `Policy::Allow.scope()`"
                ));
            }
        }
        Policy::Deny => return Err(Error::FallbackDenied { kernel, dense: dense.clone(), reason }),
    }
    let examples = if let Fallback::Vmap { examples } = reason { examples } else { 1 };
    let materialized_bytes = (dense.nbytes() * examples) as u64;
    Counters { materialized: 1, materialized_bytes, ..Counters::default() }.add();
    Ok(())
}

/// The kernels, and why plain ops stood for them.
type Warned = HashSet<(&'static str, Discriminant<Fallback>)>;

/// MLX's own product with a matrix in one of its modes: `x W^T` if `transpose`, and else `x W`.
///
/// mlx-rs has it for affine alone.
///
/// # Errors
///
/// MLX refuses the shapes or the dtypes.
pub fn quantized_matmul(x: &Array, matrix: Quantized<'_>, transpose: bool) -> Result<Array> {
    Ok(tacit_bridge::quantized_matmul(x, matrix, transpose)?)
}
