//! Moments that were saved as implicit arrays.

use tacit_arrays::format;
use tacit_core::{Aval, Error, Policy, Result, Value};

use super::super::index::{Entry, MOMENTS, tensor};
use super::super::pieces::leaf_of;
use super::super::taken::Taken;
use super::{SAME_RANKS, Saved};
use crate::layout::{Layout, Leaf, Place};

impl Saved {
    /// What a rank has of a moment, with its name there: the same codes where the leaf lies as it did, and otherwise codes of what
    /// all ranks' parts stand for; floats where the format does not fit the part.
    pub(super) fn moment(&self, key: &str, moment: &Taken, known: &[Leaf], place: Place) -> Result<(String, Value)> {
        let Some((leaf, slot)) = leaf_of(known, key, |leaf| &leaf.key) else {
            if place.size != self.index.size && self.is_own(moment) {
                let reason = format!("it was another on each of {} ranks", self.index.size);
                return Err(self.tensors.wrong(Some(key), reason, SAME_RANKS));
            }
            return Ok((key.to_owned(), self.moment_of(moment, place.rank)?));
        };
        let path = format!("{}{slot}", leaf.path);
        let is_alike = place.size == self.index.size || !self.is_own(moment);
        if is_alike && self.lies_alike(leaf, place) {
            return Ok((path, self.moment_of(moment, place.rank)?));
        }
        let otherwise = || {
            let reason = format!("it was kept of {} as that lay on {} ranks", leaf.key, self.index.size);
            self.tensors.wrong(Some(key), reason, SAME_RANKS)
        };
        let Entry { layout, shape, .. } = self.entry(leaf).ok_or_else(otherwise)?;
        let holders = match layout {
            Layout::Own => return Err(otherwise()),
            Layout::Whole if self.is_own(moment) => return Err(otherwise()),
            Layout::Whole => 0..1,
            Layout::Flat | Layout::Axis(_) => 0..self.index.size,
        };
        let parts = holders.map(|rank| self.moment_of(moment, rank)).collect::<Result<Vec<_>>>()?;
        let of_part = layout.shape(shape, self.index.size);
        let follows = parts.iter().map(|part| Ok(part.aval()?.shape == of_part)).collect::<Result<Vec<_>>>()?;
        if leaf.layout == Layout::Own || follows.contains(&false) {
            return Err(otherwise());
        }
        // It is asked for, and lives until it is quantized again.
        let _allow = Policy::Allow.scope();
        let floats = parts.iter().map(Value::dense).collect::<Result<Vec<_>>>()?;
        let whole = layout.whole(&floats, &Aval::new(shape, parts[0].aval()?.dtype))?;
        let part = leaf.layout.part(&whole, place)?;
        let quantized = match format::of_value(&parts[0]) {
            Some(text) => format::parse(&text)?.quantize(&part).ok(),
            None => None,
        };
        Ok((path, quantized.unwrap_or_else(|| part.into())))
    }

    fn moment_of(&self, moment: &Taken, rank: usize) -> Result<Value> {
        moment.value(|name| {
            let entry = self.moment_entry(name)?;
            let file = if entry.layout == Layout::Whole { entry.holder } else { rank };
            self.get(file, &tensor(MOMENTS, name), &entry.shape)
        })
    }

    /// Whether each rank had a moment of its own.
    fn is_own(&self, moment: &Taken) -> bool {
        moment.arrays.iter().any(|name| self.moment_entry(name).is_ok_and(|entry| entry.layout == Layout::Own))
    }

    fn moment_entry(&self, name: &str) -> Result<&Entry> {
        let entry = self.index.states.get(MOMENTS).and_then(|entries| entries.get(name));
        entry.ok_or_else(|| Error::invalid(format!("the moment {name} was not saved"), "save the run again"))
    }
}
