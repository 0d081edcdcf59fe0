//! What holds for every implicit type.

use mlx_rs::Array;
use tacit_core::primitives::{Copy, Graph, StopGradient};
use tacit_core::transform::checkpoint;
use tacit_core::{Error, ImplicitArray, Primitive, Result, Value, handler};

/// Stops the gradient at the float children, which is where gradients of an implicit array go.
#[handler]
pub(crate) fn stop_gradient(_op: &StopGradient, array: &dyn ImplicitArray) -> Result<Value> {
    let stopped = array.children().iter().map(|(_, child)| stopped(child)).collect::<Result<Vec<Value>>>()?;
    Ok(array.with_children(stopped)?.into())
}

/// An implicit array as a value.
pub(crate) fn itself(array: &dyn ImplicitArray) -> Value {
    Value::Implicit(dyn_clone::clone_box(array))
}

/// A value without gradients.
pub(crate) fn stopped(value: &Value) -> Result<Value> {
    match value {
        Value::Dense(array) if array.dtype().is_inexact() => Ok(mlx_rs::stop_gradient(array)?.into()),
        Value::Dense(array) => Ok(array.into()),
        Value::Implicit(array) => stop_gradient(&StopGradient, &**array),
    }
}

/// The same array again; MLX copies what a transform hands on.
#[handler]
pub(crate) fn copy(_op: &Copy, array: &dyn ImplicitArray) -> Result<Value> {
    Ok(itself(array))
}

/// A checkpoint of implicit arguments: their arrays are what it keeps, and its function is intercepted in both passes.
#[handler]
pub(crate) fn checkpointed(op: &Graph, operands: &[&Value]) -> Result<Vec<Value>> {
    let Some(args) = op.checkpoint_args().and_then(|args| operands.get(..args)) else {
        return Err(Error::decline("it is no checkpoint"));
    };
    let primitive: Primitive = (**op).clone();
    let args: Vec<Value> = args.iter().map(|&arg| arg.clone()).collect();
    checkpoint(move |args: Vec<Array>| primitive.call_checkpointed(&args)).call(args)
}
