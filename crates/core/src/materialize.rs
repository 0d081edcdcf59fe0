//! One layer of materialization, under the policy and counted.

use std::cell::Cell;

use mlx_rs::Array;
use tacit_bridge::array_id;

use crate::counters::Counters;
use crate::error::UNNAMED;
use crate::implicit_array::{NamedChild, Permit};
use crate::{Error, ImplicitArray, Policy, Result, Value, short_name};

impl Value {
    /// The next more concrete form: an implicit array materialized by one layer, a dense one as it is.
    ///
    /// # Errors
    ///
    /// The type refuses, or the policy forbids it.
    pub fn materialize(&self) -> Result<Value> {
        match self {
            Self::Dense(_) => Ok(self.clone()),
            Self::Implicit(array) => materialize(&**array),
        }
    }

    /// Materializes the value behind a view by one layer, inside the view's own
    /// [`Materialize::materialize`](crate::Materialize::materialize).
    ///
    /// The policy was asked for the view, so it is not asked again, and both count once. Elsewhere this is
    /// [`materialize`](Self::materialize).
    ///
    /// # Errors
    ///
    /// The type refuses, or the policy forbids it.
    pub fn opened(&self) -> Result<Value> {
        match self {
            Self::Dense(_) => Ok(self.clone()),
            Self::Implicit(array) => opened(&**array),
        }
    }

    /// The dense array that this stands for, materialized through all layers.
    ///
    /// The policy is asked for each layer, and each is counted; [`Policy::Warn`] gives no warning, as no primitive needs it.
    ///
    /// # Errors
    ///
    /// A type refuses, or the policy forbids it.
    pub fn dense(&self) -> Result<Array> {
        let mut value = self.clone();
        loop {
            match value {
                Self::Dense(array) => return Ok(array),
                Self::Implicit(array) => value = materialize(&*array)?,
            }
        }
    }
}

/// Materializes `array` by one layer: the policy applies and it is counted, unless it is
/// [deferred](crate::Materialize::DEFERRED).
///
/// # Errors
///
/// The type refuses, the policy forbids it, or the result is not what the type says that it is.
pub fn materialize(array: &dyn ImplicitArray) -> Result<Value> {
    if Policy::for_type(array.array_type()) == Policy::Deny && !array.array_type().deferred {
        return Err(Error::MaterializationDenied {
            call: format!("a dense array of {}", Value::from(dyn_clone::clone_box(array))),
            ty: short_name(array),
            asked: true,
            arguments: Vec::new(),
            declined: Vec::new(),
            nearest: Vec::new(),
        });
    }
    build(array)
}

/// Materializes `array` by one layer, after the policy was asked.
pub(crate) fn build(array: &dyn ImplicitArray) -> Result<Value> {
    let ty = array.typetag_name();
    let value = open(array).map_err(|error| match error {
        Error::Refused { ty: UNNAMED, reason, call } => Error::Refused { ty, reason, call },
        other => other,
    })?;
    let (expected, found) = (array.aval()?, value.aval()?);
    if expected != found {
        return Err(Error::MaterializedAval { ty, expected, found, arguments: Vec::new() });
    }
    if !array.array_type().deferred {
        Counters { materialized: 1, materialized_bytes: found.nbytes() as u64, ..Counters::default() }.add();
    }
    Ok(value)
}

/// What a deferred value is, and any other value as it is.
pub(crate) fn computed(mut value: Value) -> Result<Value> {
    while let Value::Implicit(array) = &value
        && array.array_type().deferred
    {
        value = build(&**array)?;
    }
    Ok(value)
}

/// What primitives are applied to in place of `array`, if that is another value; nothing is asked or counted.
pub(crate) fn used_as(array: &dyn ImplicitArray) -> Result<Option<Value>> {
    let Some(value) = array.used_as()? else { return Ok(None) };
    if is_itself(&value, array) {
        return Err(Error::invalid(
            format!("{} is used as itself, and so without end", array.typetag_name()),
            "return `None` from `Materialize::used_as` where primitives are applied to the array itself",
        ));
    }
    let (expected, found) = (array.aval()?, value.aval()?);
    if expected != found {
        let ty = array.typetag_name();
        return Err(Error::MaterializedAval { ty, expected, found, arguments: Vec::new() });
    }
    Ok(Some(value))
}

thread_local! {
    /// Whether a layer is built for which the policy was asked.
    static PERMITTED: Cell<bool> = const { Cell::new(false) };
}

/// Builds a layer; nothing is asked or counted.
pub(crate) fn open(array: &dyn ImplicitArray) -> Result<Value> {
    /// What was permitted before, also after a panic.
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            PERMITTED.set(self.0);
        }
    }
    // Of what a deferred op opens the policy was not asked.
    let _before = Before(PERMITTED.replace(!array.array_type().deferred));
    let value = array.build(Permit(()))?;
    if is_itself(&value, array) {
        return Err(Error::invalid(
            format!("{} is materialized to itself, and so without end", array.typetag_name()),
            "return a more concrete form from `Materialize::materialize`",
        ));
    }
    Ok(value)
}

/// Whether a value is this very array: equal static fields, and the same children in the same places.
fn is_itself(value: &Value, array: &dyn ImplicitArray) -> bool {
    let Value::Implicit(value) = value else { return false };
    if !value.aux_eq(array) {
        return false;
    }
    let (own, others) = (array.children(), value.children());
    let same = |((name, own), (other_name, other)): (&NamedChild, &NamedChild)| match (own, other) {
        _ if name != other_name => false,
        (Value::Dense(own), Value::Dense(other)) => array_id(own) == array_id(other),
        (Value::Implicit(own), other) => is_itself(other, &**own),
        (Value::Dense(_), Value::Implicit(_)) => false,
    };
    own.len() == others.len() && own.iter().zip(&others).all(same)
}

/// The dense array that a value stands for; nothing is asked or counted.
pub(crate) fn built(mut value: Value) -> Result<Array> {
    loop {
        match value {
            Value::Dense(array) => return Ok(array),
            Value::Implicit(array) => value = open(&*array)?,
        }
    }
}

/// The layer behind a view that is built; otherwise as [`materialize`].
pub(crate) fn opened(array: &dyn ImplicitArray) -> Result<Value> {
    if PERMITTED.get() { open(array) } else { materialize(array) }
}
