//! Values as a structure in JSON with arrays beside it, and back.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use tacit_core::store::{self, Arrays, StoredChild};
use tacit_core::{Error, Result, Value, array_types};
use tacit_nn::{Parameters, undropped};

use crate::header::Unique;
use crate::tensors::Tensors;

/// What each value is made of, by path.
pub(crate) type Structure = BTreeMap<String, Json>;

/// The structure of values, and their arrays by the keys that stand in it: `prefix`, the value's path, and that in the
/// value.
pub(crate) fn take_apart(values: &Parameters, prefix: Option<&str>) -> Result<(Structure, Arrays)> {
    let (structure, arrays) = store::collect(|| {
        // The dense ones first: their keys are their paths, whatever the keys within implicit arrays are.
        let (dense, implicit): (Vec<_>, Vec<_>) =
            values.iter().partition(|(_, value)| matches!(value, Value::Dense(_)));
        let values = dense.into_iter().chain(implicit);
        let one = |(path, value): (&String, &Value)| stored(path, value).map(|json| (path.clone(), json));
        let run = || values.map(one).collect::<Result<Structure>>();
        match prefix {
            Some(prefix) => store::named(prefix, run),
            None => run(),
        }
    });
    Ok((structure?, arrays))
}

/// The structure of the value at a path, whose arrays [`store::collect`] takes.
///
/// # Errors
///
/// A type of the value cannot be saved.
#[doc(hidden)]
pub fn stored(path: &str, value: &Value) -> Result<Json> {
    // What a step drops is over with the step, and evaluation is to drop nothing.
    let lasting = undropped(value)?;
    store::named(path, || serde_json::to_value(lasting.stored())).map_err(|error| {
        let text = error.to_string();
        let (reason, help) = text.split_once("\nhelp: ").unwrap_or((&text, UNSAVED));
        Error::invalid(format!("{path}, a {value}, cannot be saved: {reason}"), help)
    })
}

/// A value of an array type that is not in this program.
pub(crate) struct Unknown {
    /// What the type is saved as.
    pub(crate) ty: String,
    pub(crate) nbytes: usize,
}

/// The structure that stands in the metadata of `tensors`, in JSON.
pub(crate) fn read(tensors: &Tensors, json: &str) -> Result<Structure> {
    let structure: Unique<Json> = serde_json::from_str(json)
        .map_err(|error| tensors.wrong(None, format!("it does not say which values it holds: {error}"), DAMAGED))?;
    Ok(structure.0)
}

/// The values of a structure whose arrays `tensors` has.
pub(crate) fn put_together(tensors: &Tensors, structure: Structure) -> Result<Parameters> {
    let known = |(path, value): (String, Result<Value, Unknown>)| match value {
        Ok(value) => Ok((path, value)),
        Err(Unknown { ty, .. }) => {
            let (reason, help) = not_one(&ty, 0);
            Err(tensors.wrong(Some(&path), reason, help))
        }
    };
    known_or_not(tensors, structure)?.into_iter().map(known).collect()
}

/// The values of a structure, and of those that this program does not know what is said of them.
pub(crate) fn known_or_not(tensors: &Tensors, structure: Structure) -> Result<Vec<(String, Result<Value, Unknown>)>> {
    if structure.is_empty() {
        return Ok(Vec::new());
    }
    let arrays: Arrays =
        tensors.names().map(|name| Ok((name.to_owned(), tensors.get(name)?))).collect::<Result<_>>()?;
    let known: Vec<&str> = array_types().iter().map(|ty| ty.saved_as).collect();
    store::provide(arrays, || {
        let one = |(path, json): (String, Json)| {
            if let Some(ty) = type_in(&json, &|ty| !known.contains(&ty)) {
                let unknown = Unknown { ty: ty.to_owned(), nbytes: nbytes(tensors, &json) };
                return Ok((path, Err(unknown)));
            }
            let value = restored(&json).map_err(|(reason, help)| tensors.wrong(Some(&path), reason, help))?;
            // Files of earlier versions have what a step dropped.
            Ok((path, Ok(undropped(&value)?)))
        };
        structure.into_iter().map(one).collect()
    })
}

/// The value of a structure whose arrays [`store::provide`] lends.
///
/// # Errors
///
/// The structure is no value's, or an array is not there: the reason, and what to do.
#[doc(hidden)]
pub fn restored(structure: &Json) -> Result<Value, (String, String)> {
    let value = Value::restore(structure.clone()).or_else(|error| {
        // Keys are sorted, and typetag keeps the fields that it finds before the type. In what it keeps, the key of a map is a
        // text and never a number.
        let mut text = String::new();
        write_type_first(structure, &mut text);
        Value::restore(&mut serde_json::Deserializer::from_str(&text)).map_err(|_| error)
    });
    value.map_err(|error| {
        let types = array_types();
        let count = |name: &str| types.iter().filter(|ty| ty.saved_as == name).count();
        if let Some(ty) = type_in(structure, &|ty| count(ty) != 1) {
            let (reason, help) = not_one(ty, count(ty));
            return (reason, help.to_owned());
        }
        // serde hands on the text of an array's own error, and nothing else of it.
        let text = error.to_string();
        let (reason, help) = text.split_once("\nhelp: ").unwrap_or((&text, DAMAGED));
        (reason.to_owned(), help.to_owned())
    })
}

/// The text of a structure in which the type of each array comes before its fields.
fn write_type_first(json: &Json, text: &mut String) {
    match json {
        Json::Object(fields) => {
            let (first, others): (Vec<_>, Vec<_>) = fields.iter().partition(|(name, _)| *name == "type");
            text.push('{');
            for (place, (name, field)) in first.into_iter().chain(others).enumerate() {
                text.push_str(if place > 0 { "," } else { "" });
                text.push_str(&Json::from(name.as_str()).to_string());
                text.push(':');
                write_type_first(field, text);
            }
            text.push('}');
        }
        Json::Array(items) => {
            text.push('[');
            for (place, item) in items.iter().enumerate() {
                text.push_str(if place > 0 { "," } else { "" });
                write_type_first(item, text);
            }
            text.push(']');
        }
        leaf => text.push_str(&leaf.to_string()),
    }
}

/// The bytes of the arrays that a structure names.
fn nbytes(tensors: &Tensors, json: &Json) -> usize {
    match json {
        Json::Object(fields) => {
            let bytes = fields.get("array").and_then(Json::as_str).and_then(|key| tensors.bytes(key).ok());
            bytes.map_or_else(|| fields.values().map(|field| nbytes(tensors, field)).sum(), <[u8]>::len)
        }
        Json::Array(items) => items.iter().map(|item| nbytes(tensors, item)).sum(),
        _ => 0,
    }
}

const UNSAVED: &str = "give its static fields types that JSON has a form of";

pub(crate) const DAMAGED: &str = "the file is not as it was written: fetch or write it again";

/// The reason, and what to do, where no type of this program is registered under the name of an array type, or several are.
fn not_one(ty: &str, count: usize) -> (String, &'static str) {
    if count == 0 {
        (format!("this program has no array type {ty:?}"), "use the crate that declares the type, or a newer Tacit")
    } else {
        let reason = format!("{count} array types of this program are registered under the name {ty:?}");
        (reason, "give each a name of its own, and register it once")
    }
}

/// The first array type in a structure of whose name this holds.
fn type_in<'j>(json: &'j Json, holds: &dyn Fn(&str) -> bool) -> Option<&'j str> {
    match json {
        Json::Object(fields) => {
            let name = fields.get("implicit").and_then(|array| array.get("type")).and_then(Json::as_str);
            name.filter(|name| holds(name)).or_else(|| fields.values().find_map(|field| type_in(field, holds)))
        }
        Json::Array(items) => items.iter().find_map(|item| type_in(item, holds)),
        _ => None,
    }
}
