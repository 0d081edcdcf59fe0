//! Moments that were saved as implicit arrays.

use tacit_arrays::format;
use tacit_core::{Aval, Error, Policy, Result, Value};

use super::super::index::{Entry, MOMENTS, tensor};
use super::super::taken::Taken;
use super::{Known, SAME_RANKS, Saved};
use crate::layout::{Layout, Leaf, Place};

impl Saved {
    /// What a rank has of a moment, with its name there: the same codes where the leaf lies as it did, and otherwise codes of what
    /// all ranks' parts stand for; floats where the format does not fit the part.
    pub(super) fn moment(&self, key: &str, moment: &Taken, known: &Known<'_>, place: Place) -> Result<(String, Value)> {
        // How many ranks had a moment of their own; nothing where all had the same.
        let mut entries = moment.arrays.iter().filter_map(|name| self.moment_entry(name).ok());
        let parts = entries.find(|entry| entry.layout == Layout::Own).map(|entry| entry.parts(self.index.size));
        let Some((leaf, slot)) = known.by_key.leaf_of(key) else {
            if place.size != self.index.size && parts.is_some() {
                let reason = format!("it was another on each of {} ranks", self.index.size);
                return Err(self.tensors.wrong(Some(key), reason, SAME_RANKS));
            }
            return Ok((key.to_owned(), self.moment_of(moment, None, place.rank)?));
        };
        let (path, in_leaf) = (format!("{}{slot}", leaf.path), leaf.place(place));
        if parts.is_none_or(|parts| parts == in_leaf.size) && self.lies_alike(leaf, place) {
            return Ok((path, self.moment_of(moment, Some(leaf), in_leaf.rank)?));
        }
        let otherwise = || {
            let reason = format!("it was kept of {} as that lay on {} ranks", leaf.key, self.index.size);
            self.tensors.wrong(Some(key), reason, SAME_RANKS)
        };
        let entry = self.entry(leaf).ok_or_else(otherwise)?;
        let Entry { layout, shape, .. } = entry;
        let size = entry.parts(self.index.size);
        let numbers = match layout {
            Layout::Own => return Err(otherwise()),
            Layout::Whole if parts.is_some() => return Err(otherwise()),
            Layout::Whole => 0..1,
            Layout::Flat | Layout::Axis(_) => 0..size,
        };
        let parts = numbers.map(|number| self.moment_of(moment, Some(leaf), number)).collect::<Result<Vec<_>>>()?;
        let of_part = layout.shape(shape, size);
        let follows = parts.iter().map(|part| Ok(part.aval()?.shape == of_part)).collect::<Result<Vec<_>>>()?;
        if leaf.layout == Layout::Own || follows.contains(&false) {
            return Err(otherwise());
        }
        // It is asked for, and lives until it is quantized again.
        let _allow = Policy::Allow.scope();
        let floats = parts.iter().map(Value::dense).collect::<Result<Vec<_>>>()?;
        let whole = layout.whole(&floats, &Aval::new(shape, parts[0].aval()?.dtype))?;
        let part = leaf.layout.part(&whole, in_leaf)?;
        let quantized = match format::of_value(&parts[0]) {
            Some(text) => format::parse(&text)?.quantize(&part).ok(),
            None => None,
        };
        Ok((path, quantized.unwrap_or_else(|| part.into())))
    }

    fn moment_of(&self, moment: &Taken, leaf: Option<&Leaf>, number: usize) -> Result<Value> {
        moment.value(|name| self.one_of(&tensor(MOMENTS, name), self.moment_entry(name)?, leaf, number))
    }

    fn moment_entry(&self, name: &str) -> Result<&Entry> {
        let entry = self.index.states.get(MOMENTS).and_then(|entries| entries.get(name));
        entry.ok_or_else(|| Error::invalid(format!("the moment {name} was not saved"), "save the run again"))
    }
}
