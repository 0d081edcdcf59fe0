//! Handlers for every implicit type.

use std::slice::from_ref;

use mlx_rs::{Array, ops};
use tacit_core::primitives::{Broadcast, BroadcastAxes, Copy, Graph, StopGradient};
use tacit_core::transform::checkpoint;
use tacit_core::{Aval, Error, ImplicitArray, Primitive, Result, Value, handler};

use crate::avals::checks::decline_if;

/// Stops the gradient at the float children, which is where gradients of an implicit array go.
#[handler]
pub(crate) fn stop_gradient(_op: &StopGradient, array: &dyn ImplicitArray) -> Result<Value> {
    has_run(array)?;
    let stopped = array.children().iter().map(|(_, child)| stopped(child)).collect::<Result<Vec<Value>>>()?;
    Ok(array.with_children(stopped)?.into())
}

pub(crate) fn itself(array: &dyn ImplicitArray) -> Value {
    Value::Implicit(dyn_clone::clone_box(array))
}

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

/// What is broadcast against the other operand of an elementwise op. MLX makes it of either in a function without shapes,
/// whatever the shapes are, and of the other one it asks the shape alone.
#[handler]
pub(crate) fn broadcast_beside(
    _op: &Broadcast,
    array: &Value,
    other: &Value,
    more: &[&Value],
    results: &[Aval],
) -> Result<Value> {
    beside(array, &[&[other], more].concat(), &[], &results[0])
}

/// What is broadcast against the other operand of an op but for some axes, such as those of the matrices of a product.
#[handler]
pub(crate) fn broadcast_axes_beside(
    op: &BroadcastAxes,
    array: &Value,
    other: &Value,
    more: &[&Value],
    results: &[Aval],
) -> Result<Value> {
    beside(array, &[&[other], more].concat(), &op.ignore_axes, &results[0])
}

/// `array`, broadcast against these others but for axes that are counted from the last.
fn beside(array: &Value, others: &[&Value], ignored: &[i32], result: &Aval) -> Result<Value> {
    if let Value::Implicit(array) = array {
        has_run(&**array)?;
    }
    // Where nothing repeats it, nothing does for any shape that a function without shapes serves.
    if array.aval()?.shape == result.shape {
        return Ok(array.clone());
    }
    let Value::Dense(array) = array else { return Err(Error::decline("it is repeated")) };
    let shaped = |other: &&Value| match other {
        Value::Implicit(other) => {
            let mut shape = other.aval()?.shape;
            for &axis in ignored {
                if let Some(extent) = shape.iter_mut().nth_back((-1 - axis) as usize) {
                    *extent = 1;
                }
            }
            Ok(ops::broadcast_to(Array::from_f32(0.0), &shape)?)
        }
        Value::Dense(other) if ignored.is_empty() => Ok(other.clone()),
        Value::Dense(_) => Err(Error::decline("dense arrays have axes that are ignored")),
    };
    let others = others.iter().map(shaped).collect::<Result<Vec<_>>>()?;
    Ok(ops::broadcast_arrays(&[from_ref(array), &others[..]].concat())?.swap_remove(0).into())
}

/// Declines the result of an op that has not run yet: it would run for what is made here alone, and again for others.
fn has_run(array: &dyn ImplicitArray) -> Result<()> {
    decline_if(array.array_type().deferred, "it is computed once for all")
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
