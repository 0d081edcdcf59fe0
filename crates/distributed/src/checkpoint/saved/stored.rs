//! Stored arrays that are split in another way than they were saved: joined from all ranks' parts, and cut again.

use mlx_rs::{Array, ops};
use tacit_arrays::shard;
use tacit_bridge::with_bytes;
use tacit_core::tree::{self, Open};
use tacit_core::{Error, Policy, Result, Value, implicit};

use super::super::index::{Entry, LEAVES, tensor};
use super::super::taken::Taken;
use super::{SAME_MODEL, Saved};
use crate::layout::{Layout, Leaf, Place};

impl Saved {
    /// What a rank has of a leaf of a stored array, where that is split otherwise; nothing of any other leaf, nor of files of
    /// earlier versions, which do not say what the leaf is of.
    pub(super) fn of_stored(&self, leaf: &Leaf, entry: &Entry, place: Place) -> Result<Option<Array>> {
        let is_old = entry.layout == Layout::Own && entry.split.is_none();
        if is_old || entry.split.is_none() && leaf.split.is_none() || self.lies_alike(leaf, place) {
            return Ok(None);
        }
        let Some(key) = self.stored_array(leaf) else { return Ok(None) };
        let otherwise = |error: Error| self.split_otherwise(leaf, entry, Some(&error));
        let (whole, in_leaf) = (self.whole(key, leaf, place).map_err(otherwise)?, leaf.place(place));
        let value = match &leaf.split {
            Some(split) => shard(&whole, split.axis as i32, in_leaf.rank, in_leaf.size).map_err(otherwise)?,
            None => whole,
        };
        let wrong = |reason: String| self.tensors.wrong(Some(&leaf.key), reason, SAME_MODEL);
        let array = Taken::from_value(key, &value)?.1.remove(&leaf.key);
        let array = array.ok_or_else(|| wrong(format!("{value} has no such leaf")))?;
        if array.shape() != leaf.shape {
            let (found, own) = (array.shape(), &leaf.shape);
            return Err(wrong(format!("the leaf has the shape {found:?} there, and that of the model {own:?}")));
        }
        let layout = if leaf.split.is_some() { Layout::Whole } else { leaf.layout };
        let part = layout.part(&array, in_leaf)?;
        // Until then it holds the parts of all ranks.
        part.eval()?;
        Ok(Some(part))
    }

    /// The stored array that a leaf was of: what the model has split, or what was.
    fn stored_array<'s>(&'s self, leaf: &'s Leaf) -> Option<&'s str> {
        let key = match &leaf.stored {
            Some(key) => Some(key),
            None => self
                .index
                .stored
                .iter()
                .find(|(_, of)| of.split.is_some() && of.arrays.contains(&leaf.key))
                .map(|it| it.0),
        };
        key.map(String::as_str).filter(|key| self.index.stored.contains_key(*key))
    }

    /// A stored array, of which a leaf is, as it was before it was split.
    fn whole(&self, key: &str, leaf: &Leaf, place: Place) -> Result<Value> {
        if let Some((of, whole)) = &*self.whole.borrow()
            && of == key
        {
            return Ok(whole.clone());
        }
        let (taken, entries) = (&self.index.stored[key], &self.index.states[LEAVES]);
        let entry = |name: &str| {
            entries.get(name).ok_or_else(|| Error::invalid(format!("{name} was not saved"), "save the run again"))
        };
        let whole = match &taken.split {
            None => {
                taken.value(|name| self.part(&tensor(LEAVES, name), entry(name)?, Layout::Whole, Some(leaf), place))?
            }
            Some(split) => {
                let size = match taken.arrays.first() {
                    Some(name) => entry(name)?.parts(self.index.size),
                    None => self.index.size,
                };
                let part =
                    |number| taken.value(|name| self.one_of(&tensor(LEAVES, name), entry(name)?, Some(leaf), number));
                joined(&(0..size).map(part).collect::<Result<Vec<_>>>()?, split.axis)?
            }
        };
        *self.whole.borrow_mut() = Some((key.to_owned(), whole.clone()));
        Ok(whole)
    }
}

/// The array whose parts along an axis these are, of the same kind and to the bit: cut again, it gives them.
fn joined(parts: &[Value], axis: usize) -> Result<Value> {
    let [first, _, ..] = parts else { return parts.first().cloned().ok_or_else(|| not_joined("there are no parts")) };
    let _deny = Policy::Deny.scope();
    let whole = implicit(parts.to_vec(), |parts: Vec<Array>| ops::concatenate(&parts, axis as i32))?;
    let kind = |value: &Value| match value {
        Value::Implicit(array) => Some(array.array_type()),
        Value::Dense(_) => None,
    };
    if kind(&whole) != kind(first) {
        return Err(not_joined(&format!("parts that are {first} are joined to {whole}")));
    }
    for (rank, part) in parts.iter().enumerate() {
        let again = shard(&whole, axis as i32, rank, parts.len())?;
        if !same(&again, part)? {
            return Err(not_joined(&format!("the part of rank {rank} is not found in {whole} again")));
        }
    }
    Ok(whole)
}

fn not_joined(why: &str) -> Error {
    Error::invalid(why, "load it on as many ranks as saved it, split alike")
}

/// Whether two values have one structure, and the same bits.
fn same(a: &Value, b: &Value) -> Result<bool> {
    let ((a, of_a), (b, of_b)) = (tree::flatten(a, Open::Fully)?, tree::flatten(b, Open::Fully)?);
    if of_a != of_b || a.len() != b.len() {
        return Ok(false);
    }
    for (a, b) in a.iter().zip(&b) {
        if a.aval()? != b.aval()? {
            return Ok(false);
        }
        let (a, b) = (a.dense()?, b.dense()?);
        if !with_bytes(&a, |a| with_bytes(&b, |b| a == b))?? {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use mlx_rs::random;
    use tacit_arrays::format::{AnyFormat, Nf4};

    use super::*;

    #[test]
    fn parts_are_joined_to_the_bit_or_not_at_all() -> Result<()> {
        let numbers = random::normal::<f32>(&[512, 128], None, None, Some(&random::key(1)?))?;
        let parts = |double: bool, axis: i32| -> Result<(Value, Vec<Value>)> {
            let whole = AnyFormat::from(Nf4 { block: 64, double }).quantize(&numbers)?;
            let parts = (0..2).map(|rank| shard(&whole, axis, rank, 2)).collect::<Result<_>>()?;
            Ok((whole, parts))
        };
        for axis in [0, 1] {
            let (whole, parts) = parts(false, axis)?;
            assert!(same(&joined(&parts, axis as usize)?, &whole)?, "along axis {axis}");
            let reversed: Vec<Value> = parts.iter().rev().cloned().collect();
            assert!(!same(&joined(&reversed, axis as usize)?, &whole)?, "along axis {axis}, the other way round");
        }
        let error = joined(&parts(true, 0)?.1, 0).expect_err("the scales are codes").to_string();
        expect![[r"
            parts that are Nf4(f32[256,128]) are joined to Concat(f32[512,128])
            help: load it on as many ranks as saved it, split alike"]]
        .assert_eq(&error);
        Ok(())
    }
}
