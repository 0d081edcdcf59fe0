//! The kind of an implicit input: a chain of subjects, each in the place of a child of the one before.
//!
//! `lora/base:sliced/inner:nf4` is the subject `lora` whose child `base` is the subject `sliced`, and the child `inner` of that
//! the subject `nf4`. Which children take another array is asked of the arrays themselves.

use mlx_rs::Array;
use tacit_core::{Aval, ImplicitArray, Value};

use super::draw::Rng;
use crate::call::{self, text};
use crate::structure;
use crate::subject::{Subject, implicit};

/// The implicit array of a kind that stands for `x`, where its subjects do not ignore values.
pub(super) fn build(kind: &str, subjects: &[Subject], x: &Array) -> Result<Value, String> {
    let (subject_name, inner) =
        kind.split_once('/').map_or((kind, None), |(subject_name, inner)| (subject_name, Some(inner)));
    let subject = subjects.iter().find(|subject| subject.name() == subject_name);
    let subject = subject.ok_or_else(|| format!("no subject `{subject_name}`"))?;
    let value = subject.stand_in(x).ok_or_else(|| format!("{subject_name} does not stand for {}", Aval::from(x)))?;
    let Some(inner) = inner else { return Ok(value) };
    let (child, kind) = inner.split_once(':').ok_or_else(|| format!("`{inner}` names no child"))?;
    let array = implicit(&value).ok_or_else(|| format!("{subject_name} is dense"))?;
    let mut children = array.children();
    let place = children.iter().position(|(name, _)| name.to_string() == child);
    let place = place.ok_or_else(|| format!("{value} has no child `{child}`"))?;
    children[place].1 = build(kind, subjects, &call::dense(&children[place].1)?)?;
    let children = children.into_iter().map(|(_, child)| child).collect();
    Ok(array.with_children(children).map_err(text)?.into())
}

/// A kind for arrays of this aval: `first`, with others in it, so many deep at most.
pub(super) fn drawn(rng: &mut Rng, subjects: &[Subject], first: &Subject, aval: &Aval, depth: usize) -> Option<String> {
    let value = first.normal(aval, 1)?;
    let nested = depth.checked_sub(1).and_then(|depth| nested(rng, subjects, first, &value, depth));
    Some(nested.unwrap_or_else(|| first.name().to_owned()))
}

/// The kinds that are tried for a child before it is left as it is.
const TRIES: usize = 5;

fn nested(rng: &mut Rng, subjects: &[Subject], first: &Subject, value: &Value, depth: usize) -> Option<String> {
    let array = implicit(value)?;
    let (name, aval) = rng.pick_one(&replaceable(array))?;
    (0..TRIES).find_map(|_| {
        let subject = subjects.get(rng.index(subjects.len()))?;
        let kind = format!("{}/{name}:{}", first.name(), drawn(rng, subjects, subject, &aval, depth)?);
        is_valid(&kind, subjects, value).then_some(kind)
    })
}

/// The children in whose place an implicit array may be, with their avals.
fn replaceable(array: &dyn ImplicitArray) -> Vec<(String, Aval)> {
    let children = array.children();
    let takes = |place: usize| {
        let mut others: Vec<Value> = children.iter().map(|(_, child)| child.clone()).collect();
        others[place] = Value::Implicit(dyn_clone::clone_box(array));
        array.with_children(others).is_ok()
    };
    let float = |place: &usize| children[*place].1.aval().is_ok_and(|aval| aval.dtype.is_float());
    let places = (0..children.len()).filter(float).filter(|&place| takes(place));
    places.filter_map(|place| Some((children[place].0.to_string(), children[place].1.aval().ok()?))).collect()
}

/// Whether the array of a kind is one that its type takes from a file, where everything is checked.
fn is_valid(kind: &str, subjects: &[Subject], outer: &Value) -> bool {
    let value = call::dense(outer).and_then(|dense| build(kind, subjects, &dense));
    value.is_ok_and(|value| implicit(&value).is_some_and(structure::reloads))
}
