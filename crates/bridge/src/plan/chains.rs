//! Which stages of a plan run together, one piece of their elements after the other.
//!
//! A stage that can run in [pieces](Pieces) joins the chain of its input where both have the same elements, and where
//! the piece that the input's stage writes is the piece that this one reads. A chain runs at the place of its last
//! stage, where all its inputs are there. A stage that reads a result of the chain in any other way, or writes over an
//! array that the chain reads, closes the chain: no later stage joins it.

use std::ops::Range;

use super::draft::{Buffer, Draft, Home, Value};
use crate::Aval;
use crate::kernel::Pieces;

/// Elements of a piece. Four floats of each, as two moments and what is added to them, fit the second-level cache beside codes.
const PIECE: usize = 1 << 12;

/// And at most, where blocks are longer.
const MOST: usize = 1 << 14;

/// Elements below which another thread takes longer to wake than to help.
const ALONE: usize = 1 << 14;

/// Stages that run together.
pub(super) struct Chain {
    /// In their order.
    pub(super) stages: Vec<usize>,
    pub(super) elements: usize,
    /// What no other stage uses, in the order in which it is written.
    pub(super) inside: Vec<Inside>,
    /// What a piece is a multiple of.
    unit: usize,
    is_open: bool,
}

impl Chain {
    /// The elements of each piece but the last.
    pub(super) fn piece(&self) -> usize {
        (PIECE / self.unit).max(1) * self.unit
    }

    /// How many pieces there are.
    pub(super) fn pieces(&self) -> usize {
        self.elements.div_ceil(self.piece())
    }

    /// How many of so many threads share the pieces.
    pub(super) fn workers(&self, threads: usize) -> usize {
        threads.min(self.elements.div_ceil(ALONE)).max(1)
    }
}

/// A buffer that only the stages of a chain use.
pub(super) struct Inside {
    pub(super) buffer: usize,
    /// The bytes of a piece, or of all where that is less.
    pub(super) bytes: usize,
    /// The steps of the chain from the one that writes it to the last that reads it.
    pub(super) steps: Range<usize>,
}

/// Whether the arrays of a kernel are as many bytes as its pieces say.
pub(super) fn are_sound(pieces: &Pieces, inputs: &[Aval], outputs: &[Aval]) -> bool {
    let Pieces { elements, unit, .. } = *pieces;
    if elements == 0 || unit == 0 || pieces.inputs.len() != inputs.len() || pieces.outputs.len() != outputs.len() {
        return false;
    }
    let fits = |aval: &Aval, bytes: usize| {
        bytes > 0 && bytes.is_multiple_of(aval.item_size()) && aval.nbytes().div_ceil(bytes) == elements.div_ceil(unit)
    };
    let read = inputs.iter().zip(&pieces.inputs).all(|(aval, bytes)| bytes.is_none_or(|bytes| fits(aval, bytes)));
    read && outputs.iter().zip(&pieces.outputs).all(|(aval, &bytes)| fits(aval, bytes))
}

/// The chains of which some stage leaves another what nobody else takes, in the order in which they run.
pub(super) fn find(drafts: &[Draft], values: &[Value], buffers: &[Buffer]) -> Vec<Chain> {
    let mut search = Search {
        drafts,
        values,
        maker: vec![None; buffers.len()],
        readers: vec![Vec::new(); buffers.len()],
        chain_of: vec![None; drafts.len()],
        chains: Vec::new(),
    };
    (0..drafts.len()).for_each(|stage| search.add(stage));
    let mut chains = std::mem::take(&mut search.chains);
    chains.retain(|chain| chain.stages.len() > 1);
    for chain in &mut chains {
        chain.inside = search.inside(chain, buffers);
    }
    chains.retain(|chain| chain.inside.iter().any(|array| array.steps.len() > 1));
    // One that began first may end last.
    chains.sort_unstable_by_key(|chain| chain.stages.last().copied());
    chains
}

/// The stages in the order in which they run: those of a chain where its last one is.
pub(super) fn order(stages: usize, chains: &[Chain]) -> Vec<usize> {
    let mut chain_of = vec![None; stages];
    for chain in chains {
        chain.stages.iter().for_each(|&stage| chain_of[stage] = Some(chain));
    }
    let mut order = Vec::with_capacity(stages);
    for (stage, chain) in chain_of.into_iter().enumerate() {
        match chain {
            None => order.push(stage),
            Some(chain) if chain.stages.last() == Some(&stage) => order.extend(&chain.stages),
            Some(_) => {}
        }
    }
    order
}

struct Search<'a> {
    drafts: &'a [Draft],
    values: &'a [Value],
    /// The stage that writes each buffer, and as which of its outputs.
    maker: Vec<Option<(usize, usize)>>,
    readers: Vec<Vec<usize>>,
    /// The chain of each stage.
    chain_of: Vec<Option<usize>>,
    chains: Vec<Chain>,
}

impl Search<'_> {
    fn add(&mut self, stage: usize) {
        let (drafts, values) = (self.drafts, self.values);
        let draft = &drafts[stage];
        if let Some(target) = draft.begins_as {
            let readers = self.readers[values[target.0].buffer].iter();
            for chain in readers.filter_map(|&reader| self.chain_of[reader]) {
                self.chains[chain].is_open = false;
            }
        }
        let mut joined = Vec::new();
        for (at, input) in draft.inputs.iter().chain(&draft.begins_as).enumerate() {
            let value = &values[input.0];
            self.readers[value.buffer].push(stage);
            let Some((maker, output)) = self.maker[value.buffer] else { continue };
            let Some(chain) = self.chain_of[maker].filter(|&chain| self.chains[chain].is_open) else { continue };
            if self.takes_pieces(draft, at, value, (maker, output)) {
                joined.push(chain);
            } else {
                self.chains[chain].is_open = false;
            }
        }
        for (output, value) in draft.outputs.iter().enumerate() {
            self.maker[values[value.0].buffer] = Some((stage, output));
        }
        if let Some(pieces) = &draft.pieces {
            joined.sort_unstable();
            joined.dedup();
            joined.retain(|&chain| self.chains[chain].is_open);
            self.join(stage, pieces, &joined);
        }
    }

    /// Whether what a stage takes as its input `at` of another one is, piece by piece, what that leaves.
    fn takes_pieces(&self, draft: &Draft, at: usize, value: &Value, (maker, output): (usize, usize)) -> bool {
        let (Some(pieces), Some(other)) = (&draft.pieces, &self.drafts[maker].pieces) else { return false };
        let Some(&Some(bytes)) = pieces.inputs.get(at) else { return false };
        let whole = self.values[self.drafts[maker].outputs[output].0].aval.nbytes() == value.aval.nbytes();
        whole && pieces.elements == other.elements && bytes * other.unit == other.outputs[output] * pieces.unit
    }

    /// Puts a stage and the chains that it takes something of together, or into a chain of its own where pieces would be too long.
    fn join(&mut self, stage: usize, pieces: &Pieces, joined: &[usize]) {
        let unit = joined.iter().fold(pieces.unit, |unit, &chain| Pieces::common_unit(unit, self.chains[chain].unit));
        let (first, others) = match joined {
            [first, others @ ..] if unit <= MOST => {
                self.chains[*first].unit = unit;
                (*first, others)
            }
            _ => {
                for &chain in joined {
                    self.chains[chain].is_open = false;
                }
                let Pieces { elements, unit, .. } = *pieces;
                let (stages, inside, is_open) = (Vec::new(), Vec::new(), unit <= MOST);
                self.chains.push(Chain { stages, elements, inside, unit, is_open });
                (self.chains.len() - 1, &[][..])
            }
        };
        let mut stages = vec![stage];
        for &other in others {
            stages.append(&mut self.chains[other].stages);
        }
        for &stage in &stages {
            self.chain_of[stage] = Some(first);
        }
        let chain = &mut self.chains[first];
        chain.stages.append(&mut stages);
        chain.stages.sort_unstable();
    }

    /// What only the stages of a chain use of what they leave.
    fn inside(&self, chain: &Chain, buffers: &[Buffer]) -> Vec<Inside> {
        let mut inside = Vec::new();
        for (step, &stage) in chain.stages.iter().enumerate() {
            let Draft { outputs, pieces: Some(pieces), .. } = &self.drafts[stage] else { continue };
            for (output, bytes) in outputs.iter().zip(&pieces.outputs) {
                let buffer = self.values[output.0].buffer;
                let bytes = bytes.saturating_mul(chain.piece() / pieces.unit).min(buffers[buffer].bytes);
                let mut readers = self.readers[buffer].iter().map(|reader| chain.stages.binary_search(reader).ok());
                let last = readers.try_fold(step, |last, reader| Some(last.max(reader?)));
                if let Some(last) = last.filter(|_| buffers[buffer].home == Home::Arena(0)) {
                    inside.push(Inside { buffer, bytes, steps: step..last + 1 });
                }
            }
        }
        inside
    }
}
