//! Evaluation, and the time that it takes.

use std::time::Duration;

use mlx_rs::Array;

use crate::error::check;
use crate::ffi::{self, Span};
use crate::{BridgeError, arrays};

/// What an evaluation took on the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// Handing nodes to the device.
    pub encode: Duration,
    /// Waiting for what the device had not computed by then.
    pub wait: Duration,
}

/// Evaluates arrays together, and waits for them.
///
/// # Errors
///
/// MLX's own, and the failure of a kernel.
pub fn eval<'a>(values: impl IntoIterator<Item = &'a Array>) -> Result<Spent, BridgeError> {
    let handles = arrays::handles(values);
    let (mut encode, mut wait) = (0.0, 0.0);
    // SAFETY: the arrays and the numbers are live for the call.
    check(unsafe { ffi::tacit_eval(Span::new(&handles), &raw mut encode, &raw mut wait) })?;
    Ok(Spent { encode: Duration::from_secs_f64(encode), wait: Duration::from_secs_f64(wait) })
}
