//! One trace of a compiled function, and the calls that it serves.

use std::rc::Rc;

use mlx_rs::Array;
use tacit_bridge::{KnownInputs, Program};

use super::drawn::Drawn;
use super::given_back::{GivenBack, Made};
use super::key::Key;
use super::shapeless::Recorded;
use super::steady::{Known, Steady};
use crate::Result;
use crate::tree::{Listed, Matched, TreeDef, Unchanged};

pub(super) struct Entry {
    pub(super) key: Key,
    pub(super) program: Program,
    /// The opened structure of what the call makes.
    pub(super) structure: TreeDef,
    pub(super) given_back: GivenBack,
    pub(super) unchanged: Rc<Unchanged>,
    pub(super) recorded: Option<Recorded>,
    /// Whose key is the last input, where the function draws random numbers.
    pub(super) drawn: Option<Drawn>,
    pub(super) steady: Steady,
    pub(super) used: u64,
}

/// What a trace makes of a call.
pub(super) enum Served {
    /// It is for other inputs.
    Not,
    /// MLX's own cache was cleared, and the trace with it.
    Dropped,
    With(Made),
}

impl Entry {
    /// Replays on the inputs that were matched with its structure, beside those that are known.
    pub(super) fn serve(&mut self, matched: &Matched<'_>, known: &Rc<Known>) -> Result<Served> {
        // The key of a draw is the next call's own only once it is known that this trace serves the inputs.
        let drawn = self.drawn.clone();
        let mut others: Vec<&Array> = matched.arrays.iter().map(Listed::array).collect();
        others.extend(drawn.as_ref().map(|drawn| &drawn.key));
        let inputs: Vec<&KnownInputs> = known.inputs.iter().map(|known| &**known).collect();
        // A call beside what is known asks by itself.
        let asks = inputs.is_empty() || drawn.is_some();
        if asks && !self.program.matches_beside(&inputs, &others)
            || self.recorded.as_mut().is_some_and(|recorded| !recorded.serves(&others))
        {
            return Ok(Served::Not);
        }
        let key = drawn.as_ref().map(Drawn::next).transpose()?;
        if let (Some(last), Some(key)) = (others.last_mut(), &key) {
            *last = key;
        }
        let computed = if inputs.is_empty() {
            let Some(computed) = self.computed(&others)? else { return Ok(Served::Dropped) };
            computed
        } else {
            let mut computed = Vec::new();
            if !self.program.call_beside(&inputs, &others, &mut computed)? {
                return Ok(Served::Not);
            }
            computed
        };
        let result = Made {
            leaves: self.given_back.filled_beside(known, &others, computed),
            def: self.structure.clone(),
            unchanged: Some(Rc::clone(&self.unchanged)),
            passed: known.parts.iter().map(|part| part.stamp).collect(),
        };
        self.note(matched)?;
        Ok(Served::With(result))
    }

    /// What the call makes; nothing where MLX's own cache was cleared.
    pub(super) fn replayed(&mut self, inputs: &[&Array]) -> Result<Option<Vec<Array>>> {
        let computed = self.computed(inputs)?;
        Ok(computed.map(|computed| self.given_back.filled(inputs, computed)))
    }

    /// What the program computes; nothing where MLX's own cache was cleared.
    fn computed(&mut self, inputs: &[&Array]) -> Result<Option<Vec<Array>>> {
        let mut computed = Vec::new();
        let mut dropped = false;
        let called = self.program.call(inputs, &mut computed, &mut |_| {
            dropped = true;
            Err("the trace was dropped".into())
        });
        if dropped {
            return Ok(None);
        }
        called?;
        Ok(Some(computed))
    }

    /// Notes which parts of the state a call showed stamps of.
    fn note(&mut self, matched: &Matched<'_>) -> Result<()> {
        let Self { key, unchanged, steady, program, .. } = self;
        steady.note(program, matched, |shown| {
            let part = key.def.part(shown.entry, shown.array, shown.stamp.number)?;
            unchanged.has(&part).then_some(part)
        })
    }
}
