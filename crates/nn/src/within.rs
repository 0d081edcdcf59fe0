//! Values of which an array inside is replaced by another one.

use tacit_arrays::{Adapter, Distributed};
use tacit_core::{ChildName, ImplicitArray, Result, Value};

use crate::filter::{BASE, Role};

/// Whether an adapter has a key by which it drops features.
pub(crate) fn has_chosen(adapter: &Value) -> bool {
    let Value::Implicit(array) = adapter else { return false };
    array.children().into_iter().any(|(name, child)| match child {
        Value::Dense(_) => Role::of_child(&**array, name, None) == Role::Choice,
        Value::Implicit(_) => name.field != BASE && has_chosen(&child),
    })
}

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
    Ok(without_keys(value)?.unwrap_or_else(|| value.clone()))
}

/// The same; nothing where it stays as it is.
fn without_keys(value: &Value) -> Result<Option<Value>> {
    let unkeyed: Option<Value> = match value.family::<dyn Adapter>() {
        Some(adapter) if adapter.dropout() > 0.0 && has_chosen(value) => Some(adapter.with_key(None)?.into()),
        _ => None,
    };
    let Value::Implicit(array) = unkeyed.as_ref().unwrap_or(value) else { return Ok(None) };
    // The base of an adapter may be adapted itself.
    let rebuilt = with_others(&**array, |_, child| without_keys(child))?;
    Ok(rebuilt.or(unkeyed))
}

/// The value with others in place of those in it that `f` gives others for, itself among them; nothing where `f` gives none.
pub(crate) fn mapped(value: &Value, f: &mut dyn FnMut(&Value) -> Result<Option<Value>>) -> Result<Option<Value>> {
    if let Some(other) = f(value)? {
        return Ok(Some(other));
    }
    let Value::Implicit(array) = value else { return Ok(None) };
    match array.family::<dyn Distributed>() {
        Some(placed) => placed.with_held(&mut |held| mapped(held, f)),
        None => with_others(&**array, |_, child| mapped(child, f)),
    }
}

/// The array with others in place of the children that `f` gives others for; nothing where it gives none.
pub(crate) fn with_others(
    array: &dyn ImplicitArray,
    mut f: impl FnMut(ChildName, &Value) -> Result<Option<Value>>,
) -> Result<Option<Value>> {
    let (mut children, mut changed) = (Vec::new(), false);
    for (name, child) in array.children() {
        let other = f(name, &child)?;
        changed |= other.is_some();
        children.push(other.unwrap_or(child));
    }
    if changed { Ok(Some(array.with_children(children)?.into())) } else { Ok(None) }
}
