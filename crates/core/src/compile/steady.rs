//! Parts of the state that do not change from call to call.

use std::sync::{Arc, Weak};

use mlx_rs::Array;
use tacit_bridge::{KnownInputs, Program};

use crate::Result;
use crate::tree::{Listed, Matched, Part, Shown};

/// The parts of a trace's state that have a stamp, and those that need not be looked at while they have the same.
///
/// What is known of a part holds its arrays, and lives as long as its stamp: a state that changes, or goes, is not held here.
/// It is made when a part has the same stamp in two calls that follow each other, so that a state that changes in each call costs
/// nothing.
#[derive(Default)]
pub(super) struct Steady {
    /// What stamps keep for the trace lives no longer than this.
    owner: Arc<()>,
    /// The parts of the latest call that are not known.
    latest: Vec<Part>,
    /// Parts of which nothing can be known.
    refused: Vec<Part>,
    /// In the order of the inputs.
    known: Vec<(Part, Weak<KnownInputs>)>,
}

#[derive(Default)]
pub(super) struct Known {
    pub(super) parts: Vec<Part>,
    pub(super) inputs: Vec<Arc<KnownInputs>>,
}

impl Known {
    /// Some of them, by their numbers.
    pub(super) fn only(&self, numbers: &[usize]) -> Self {
        let some = numbers.iter().map(|&number| (self.parts[number], Arc::clone(&self.inputs[number])));
        let (parts, inputs) = some.unzip();
        Self { parts, inputs }
    }
}

impl Steady {
    /// What is known, and is still what it was.
    pub(super) fn known(&mut self) -> Known {
        self.known.retain(|(_, known)| known.strong_count() > 0);
        let live = self.known.iter().filter_map(|(part, known)| Some((*part, known.upgrade()?)));
        let (parts, inputs) = live.unzip();
        Known { parts, inputs }
    }

    /// Notes the stamps that a call showed. `part` finds the part of a stamp, if the trace leaves that alone.
    pub(super) fn note(
        &mut self,
        program: &Program,
        matched: &Matched<'_>,
        part: impl Fn(&Shown<'_>) -> Option<Part>,
    ) -> Result<()> {
        let mut latest = Vec::new();
        for shown in &matched.stamps {
            let Some(part) = part(shown) else { continue };
            // A matcher that was given no known parts, as another trace was tried first, shows known ones again.
            let is_known = self.known.iter().any(|(known, _)| *known == part);
            // The arrays of a known part are not listed, so those of a part around it are not all there.
            let is_listed = !matched.passed_at.iter().any(|at| part.has_entry(*at));
            if self.latest.contains(&part) && !self.refused.contains(&part) && is_listed && !is_known {
                let arrays = matched.arrays.get(shown.listed..shown.listed + part.arrays.1).unwrap_or_default();
                let arrays: Vec<&Array> = arrays.iter().map(Listed::array).collect();
                match program.know(part.arrays.0, &arrays)? {
                    Some(known) => {
                        let known = Arc::new(known);
                        self.known.push((part, Arc::downgrade(&known)));
                        self.known.sort_by_key(|(part, _)| part.arrays);
                        shown.stamp.keep(&self.owner, known);
                    }
                    None => self.refused.push(part),
                }
            }
            latest.push(part);
        }
        self.refused.retain(|part| latest.contains(part));
        self.latest = latest;
        Ok(())
    }
}
