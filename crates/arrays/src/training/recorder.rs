//! Sums that an observed weight adds to; weights that meet the same rows share them.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mlx_rs::{Array, transforms};
use tacit_core::embedding::same_bits;
use tacit_core::store::serde::{Deserialize, Deserializer, Serialize, Serializer};
use tacit_core::{Error, Result};

use crate::training::observation::{Observation, Recorded};

/// Sums that all clones and views of a weight add to; nothing once the recording has ended. It is its own identity.
#[derive(Clone)]
pub(super) struct Recorder(Arc<Mutex<Option<Sums>>>);

struct Sums {
    stacked: bool,
    /// By the axis of the weight that a product summed over.
    by_axis: BTreeMap<usize, Tally>,
    ledger: Ledger,
}

/// What is recorded of weights that are observed together, and what they have met lately.
#[derive(Clone)]
pub(super) struct Ledger {
    recorded: Recorded,
    entries: Arc<Mutex<Entries>>,
}

#[derive(Default)]
struct Entries {
    /// How many tallies there were.
    tallies: u64,
    /// The last steps, the latest at the end.
    steps: VecDeque<Step>,
}

/// How many steps are remembered: queries, keys and values meet one after the other, and in some models the gates of the layer too.
const STEPS: usize = 4;

/// What a meeting made of sums.
struct Step {
    /// The number of the sums before it, 0 where there were none.
    before: u64,
    meeting: Meeting,
    after: Tally,
}

/// Sums with a number by which they are told from all others of a ledger.
#[derive(Clone)]
struct Tally {
    number: u64,
    observation: Observation,
}

/// Rows that meet a weight.
pub(super) struct Meeting {
    /// `[n, k]`, or `[e, n, k]` of a stack.
    pub(super) rows: Array,
    /// The number of the matrix that each of the rows `[n, k]` meets, and how many matrices there are.
    pub(super) chosen: Option<(Array, i32)>,
}

impl Recorder {
    pub(super) fn new(stacked: bool, ledger: Ledger) -> Self {
        Self(Arc::new(Mutex::new(Some(Sums { stacked, by_axis: BTreeMap::new(), ledger }))))
    }

    pub(super) fn is_on(&self) -> bool {
        self.state().is_some()
    }

    pub(super) fn is_stacked(&self) -> bool {
        self.state().as_ref().is_some_and(|sums| sums.stacked)
    }

    pub(super) fn has_met(&self) -> bool {
        self.state().as_ref().is_some_and(|sums| !sums.by_axis.is_empty())
    }

    /// The ledger of those that are observed together, as long as the recording lasts.
    pub(super) fn ledger(&self) -> Option<Ledger> {
        self.state().as_ref().map(|sums| sums.ledger.clone())
    }

    /// Ends the recording: what it has, by the axis that was summed over.
    pub(super) fn end(&self) -> Option<BTreeMap<usize, Observation>> {
        let by_axis = self.state().take()?.by_axis;
        Some(by_axis.into_iter().map(|(axis, tally)| (axis, tally.observation)).collect())
    }

    /// Adds rows that met the weight, whose products are summed over an axis.
    pub(super) fn add(&self, axis: usize, meeting: Meeting) -> Result<()> {
        let mut state = self.state();
        let Some(sums) = &mut *state else { return Ok(()) };
        let axes = sums.by_axis.len();
        let added = sums.add(axis, meeting);
        // What went into a sum that could not be computed is gone, and what comes later is not all of it.
        if sums.by_axis.len() < axes {
            *state = None;
        }
        added
    }

    fn state(&self) -> MutexGuard<'_, Option<Sums>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sums {
    fn add(&mut self, axis: usize, meeting: Meeting) -> Result<()> {
        meeting.compute()?;
        let number = self.by_axis.get(&axis).map_or(0, |before| before.number);
        let mut entries = self.ledger.entries();
        let after = if let Some(after) = entries.known(number, &meeting)? {
            after
        } else {
            let observation = meeting.sums(self.ledger.recorded)?;
            // Nobody else holds the sums before, so that those after are computed where they lie.
            entries.steps.retain(|step| step.after.number != number);
            let observation = match self.by_axis.remove(&axis) {
                Some(before) => before.observation.and(observation)?,
                None => observation,
            };
            entries.enter(number, meeting, observation)
        };
        self.by_axis.insert(axis, after);
        Ok(())
    }
}

impl Ledger {
    pub(super) fn new(recorded: Recorded) -> Self {
        Self { recorded, entries: Arc::default() }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    /// What sums of a number are after a meeting, if another weight had them and met the same.
    fn known(&self, before: u64, meeting: &Meeting) -> Result<Option<Tally>> {
        for step in self.steps.iter().rev().filter(|step| step.before == before) {
            if step.meeting.is_same(meeting)? {
                return Ok(Some(step.after.clone()));
            }
        }
        Ok(None)
    }

    /// Notes what a meeting made of sums of a number.
    fn enter(&mut self, before: u64, meeting: Meeting, observation: Observation) -> Tally {
        self.tallies += 1;
        let after = Tally { number: self.tallies, observation };
        self.steps.push_back(Step { before, meeting, after: after.clone() });
        if self.steps.len() > STEPS {
            self.steps.pop_front();
        }
        after
    }
}

impl Meeting {
    fn compute(&self) -> Result<()> {
        let indices = self.chosen.iter().map(|(indices, _)| indices);
        // A placeholder of a trace around this one is no tracer of MLX's, and what is made of it cannot be computed.
        transforms::eval(indices.chain([&self.rows])).map_err(|error| match Error::from(error) {
            Error::EvalInTrace => in_transformation(),
            error => error,
        })
    }

    fn sums(&self, recorded: Recorded) -> Result<Observation> {
        match &self.chosen {
            None => Observation::summed(&self.rows, recorded),
            Some((indices, matrices)) => Observation::summed_by(&self.rows, indices, *matrices, recorded),
        }
    }

    /// Whether the rows are the same bits, and lie alike: their sums are then the same bits, too.
    fn is_same(&self, other: &Self) -> Result<bool> {
        let chosen = match (&self.chosen, &other.chosen) {
            (None, None) => true,
            (Some((own, count)), Some((other, others))) => count == others && are_same(own, other)?,
            _ => false,
        };
        Ok(chosen && are_same(&self.rows, &other.rows)?)
    }
}

/// Whether two computed arrays are the same bits in the same places. One array is often given to products as several: MLX makes a new
/// one where it flattens a batch.
fn are_same(a: &Array, b: &Array) -> Result<bool> {
    Ok(a.strides() == b.strides() && same_bits(a, b)?)
}

pub(super) fn in_transformation() -> Error {
    Error::invalid(
        "an observed weight is multiplied inside a transformation, where nothing can be summed",
        "observe plain calls of the model, outside of compile, vmap and gradients",
    )
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_on() { "recording" } else { "ended" })
    }
}

impl PartialEq for Recorder {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || !(self.is_on() || other.is_on())
    }
}

impl Eq for Recorder {}

impl Hash for Recorder {
    // Two of them become equal when they end.
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Serialize for Recorder {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

impl<'de> Deserialize<'de> for Recorder {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <()>::deserialize(deserializer)?;
        Ok(Self(Arc::new(Mutex::new(None))))
    }
}

#[cfg(test)]
mod tests {
    use mlx_rs::ops;

    use super::*;

    fn rows(count: i32, inputs: i32) -> Result<Meeting> {
        Ok(Meeting { rows: ops::ones::<f32>(&[count, inputs])?, chosen: None })
    }

    #[test]
    fn a_sum_that_is_lost_ends_its_recording_and_that_of_no_other() -> Result<()> {
        let ledger = Ledger::new(Recorded::Products);
        let [lost, other] = [ledger.clone(), ledger].map(|ledger| Recorder::new(false, ledger));
        lost.add(1, rows(2, 3)?)?;
        other.add(1, rows(2, 3)?)?;
        // Sums of two inputs are not added to those of three.
        assert!(lost.add(1, rows(4, 2)?).is_err());
        assert!(!lost.is_on() && lost.end().is_none());
        other.add(1, rows(4, 3)?)?;
        let seen = other.end().unwrap_or_default();
        assert_eq!((seen[&1].rows(), seen[&1].gram()?.as_slice::<f32>()), (&[6][..], &[6.0; 9][..]));
        Ok(())
    }
}
