//! What holds for every implicit type.

use tacit_core::op::{Copy, StopGradient};
use tacit_core::{ImplicitArray, Result, Value, handler};

/// Stops the gradient at the float children, which is where gradients of an implicit array go.
#[handler]
pub fn stop_gradient(_op: &StopGradient, array: &dyn ImplicitArray) -> Result<Value> {
    let stopped = array
        .children()
        .into_iter()
        .map(|(_, child)| match child {
            Value::Dense(child) if child.dtype().is_inexact() => Ok(mlx_rs::stop_gradient(&child)?.into()),
            Value::Dense(child) => Ok(child.into()),
            Value::Implicit(child) => stop_gradient(&StopGradient, &*child),
        })
        .collect::<Result<Vec<Value>>>()?;
    Ok(array.with_children(stopped)?.into())
}

/// The same array again; MLX copies what a transform hands on.
#[handler]
pub fn copy(_op: &Copy, array: &dyn ImplicitArray) -> Result<Value> {
    Ok(dyn_clone::clone_box(array).into())
}
