//! Functions that the output of `derive(ImplicitArray)` and `#[handler]` calls.

use std::any::TypeId;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};

use serde::de::DeserializeOwned;
use serde::ser::SerializeStruct;
use serde::{Deserializer, Serialize};
use tacit_bridge::Aval;

pub use crate::implicit_array::Permit;

use crate::materialize;
use crate::{Error, ImplicitArray, Result, Value};

/// A type that a static field may have.
///
/// The methods repeat those of the traits below it, so that a type that lacks one is one error and not five.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the type of a static field",
    label = "not all of `Clone + Debug + Eq + Hash + Serialize + Deserialize`",
    note = "derive the missing ones of `Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize`",
    note = "keep a float as its bits, and an array as a child, without `#[implicit(aux)]`"
)]
pub trait Aux: Sized {
    /// A clone.
    #[must_use]
    fn duplicate(&self) -> Self;

    /// Whether both are equal.
    fn equals(&self, other: &Self) -> bool;

    /// Hashes the value.
    fn hash_into(&self, state: &mut dyn Hasher);

    /// Serializes the value as itself, as the field `name`.
    fn write<S: SerializeStruct>(&self, name: &'static str, fields: &mut S) -> Result<(), S::Error>;

    /// The inverse of [`write`](Self::write).
    fn restore<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error>;
}

#[diagnostic::do_not_recommend]
impl<T: Clone + Debug + Eq + Hash + Serialize + DeserializeOwned> Aux for T {
    fn duplicate(&self) -> Self {
        self.clone()
    }

    fn equals(&self, other: &Self) -> bool {
        self == other
    }

    fn hash_into(&self, mut state: &mut dyn Hasher) {
        self.hash(&mut state);
    }

    fn write<S: SerializeStruct>(&self, name: &'static str, fields: &mut S) -> Result<(), S::Error> {
        fields.serialize_field(name, self)
    }

    fn restore<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer)
    }
}

/// The type of a static field named `aval`.
#[diagnostic::on_unimplemented(
    message = "a static field named `aval` is the array's `Aval`, and cannot be a `{Self}`",
    label = "not an `Aval`",
    note = "give the field the type `tacit::Aval`, or another name"
)]
pub trait DeclaredAval {
    /// The aval.
    fn declared(&self) -> Aval;
}

impl DeclaredAval for Aval {
    fn declared(&self) -> Aval {
        self.clone()
    }
}

/// Hashes which type `T` is, so that equal static fields of two types differ.
pub fn hash_type<T: 'static>(mut state: &mut dyn Hasher) {
    TypeId::of::<T>().hash(&mut state);
}

/// The next layer of an array, without policy or counting: for tests of what a type builds.
///
/// # Errors
///
/// The type refuses.
pub fn open(array: &dyn ImplicitArray) -> Result<Value> {
    materialize::open(array)
}

/// The aval of a type that declares none: that of what it materializes to.
///
/// # Errors
///
/// The type refuses to be materialized.
pub fn inferred_aval(array: &dyn ImplicitArray) -> Result<Aval> {
    on_prototypes(array).and_then(|array| open(&*array)?.aval()).map_err(|error| Error::NoAval {
        ty: array.typetag_name(),
        reason: match error {
            Error::Refused { reason, .. } => reason,
            other => other.to_string(),
        },
    })
}

/// The array with children that have no data, so that nothing of it can be computed.
fn on_prototypes(array: &dyn ImplicitArray) -> Result<Box<dyn ImplicitArray>> {
    let children = array.children().into_iter().map(|(_, child)| match child {
        Value::Dense(child) => Ok(tacit_bridge::prototype(&Aval::from(&child))?.into()),
        Value::Implicit(child) => Ok(on_prototypes(&*child)?.into()),
    });
    array.with_children(children.collect::<Result<_>>()?)
}

/// An array made from `children` by a function that takes them field by field.
///
/// # Errors
///
/// The function takes more or fewer children than there are, or one of them does not fit.
pub fn rebuilt<T: ImplicitArray>(
    children: Vec<Value>,
    rebuild: impl FnOnce(&mut dyn Iterator<Item = Value>) -> Result<T>,
) -> Result<Box<dyn ImplicitArray>> {
    let count = children.len();
    let mut children = children.into_iter();
    let array = rebuild(&mut children)?;
    let unread = children.len();
    if unread > 0 {
        return Err(Error::invalid(
            format!("{} has {} children and was given {count}", array.typetag_name(), count - unread),
            "give one value for each child",
        ));
    }
    Ok(Box::new(array))
}

/// The operands from a position on.
///
/// # Errors
///
/// There are fewer.
pub fn rest_operands<'a, 'b>(operands: &'b [&'a Value], position: usize) -> Result<&'b [&'a Value]> {
    operands.get(position..).ok_or_else(|| {
        Error::invalid(
            format!("there are {} operands and the handler takes at least {position}", operands.len()),
            "call handlers through a registry",
        )
    })
}
