//! Values with something else in place of what is within them.

use tacit_arrays::Adapter;
use tacit_core::{Result, Value};

/// A value with nothing dropped: an adapter in it keeps its probability of dropout, and lets go of the features that a step
/// chose.
///
/// What [`Model::drop_features`](crate::Model::drop_features) chose is of one step, and no part of what is trained: files do
/// not have it.
///
/// # Errors
///
/// An implicit array refuses its own children.
pub fn undropped(value: &Value) -> Result<Value> {
    let made = mapped(value, &mut |value| match value.family::<dyn Adapter>() {
        Some(adapter) if adapter.dropout() > 0.0 => Ok(Some(adapter.with_key(None)?.into())),
        _ => Ok(None),
    })?;
    Ok(made.unwrap_or_else(|| value.clone()))
}

/// The value with others in place of those in it that `f` gives others for, itself among them; nothing where `f` gives none.
pub(crate) fn mapped(value: &Value, f: &mut dyn FnMut(&Value) -> Result<Option<Value>>) -> Result<Option<Value>> {
    if let Some(other) = f(value)? {
        return Ok(Some(other));
    }
    let Value::Implicit(array) = value else { return Ok(None) };
    let (mut children, mut changed) = (Vec::new(), false);
    for (_, child) in array.children() {
        let other = mapped(&child, f)?;
        changed |= other.is_some();
        children.push(other.unwrap_or(child));
    }
    if changed { Ok(Some(array.with_children(children)?.into())) } else { Ok(None) }
}
