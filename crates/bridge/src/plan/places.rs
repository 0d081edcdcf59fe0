//! Where the arrays of a plan lie.

use std::sync::Arc;

use super::arena::ALIGNMENT;
use super::chains::{self, Chain, are_sound};
use super::draft::{Buffer, Draft, Home, Value, root};
use super::gaps::Gaps;
use super::memory::{Dense, Memory, Place};
use super::over_inputs::{put_behind_readers, write_over_inputs};
use super::pieced::{Part, Pieced, Step, Threads};
use super::{Plan, PlanValue, Stage};
use crate::Aval;
use crate::error::BoxError;
use crate::kernel::{Input, Kernel, Output, Pieces};

/// Makes a [`Plan`]: its inputs, its kernels, each behind those whose results it takes, and its outputs.
#[derive(Default)]
pub struct PlanBuilder {
    values: Vec<Value>,
    buffers: Vec<Buffer>,
    drafts: Vec<Draft>,
    inputs: Vec<Aval>,
    threads: Option<Threads>,
}

impl PlanBuilder {
    /// The same, where stages that fall into [pieces](Kernel::pieces) may run together, on these threads.
    #[must_use]
    pub fn in_pieces(self, threads: Threads) -> Self {
        Self { threads: Some(threads), ..self }
    }

    /// The next input.
    pub fn input(&mut self, aval: Aval) -> PlanValue {
        self.inputs.push(aval.clone());
        self.buffer(aval, Home::Input(self.inputs.len() - 1))
    }

    /// The aval of a value.
    #[must_use]
    pub fn aval(&self, value: PlanValue) -> &Aval {
        &self.values[value.0].aval
    }

    /// The elements of `of` from this byte on, as an array of another shape or of fewer elements.
    ///
    /// # Errors
    ///
    /// They are not within `of`.
    pub fn view(&mut self, of: PlanValue, offset: usize, aval: Aval) -> Result<PlanValue, BoxError> {
        let whole = &self.values[of.0];
        if offset.checked_add(aval.nbytes()).is_none_or(|end| end > whole.aval.nbytes()) {
            return Err(format!("{aval} from byte {offset} on is not within {}", whole.aval).into());
        }
        let (buffer, offset) = (whole.buffer, whole.offset + offset);
        Ok(self.value(Value { buffer, offset, aval }))
    }

    /// The results of a kernel.
    ///
    /// # Errors
    ///
    /// The kernel refuses the avals.
    pub fn stage(&mut self, kernel: Arc<dyn Kernel>, inputs: &[PlanValue]) -> Result<Vec<PlanValue>, BoxError> {
        let avals: Vec<Aval> = inputs.iter().map(|&input| self.aval(input).clone()).collect();
        let outputs = kernel.output_avals(&avals)?;
        let pieces = if self.threads.is_some() { kernel.pieces(&avals) } else { None };
        let pieces = pieces.filter(|pieces| are_sound(pieces, &avals, &outputs));
        let mut in_place = kernel.in_place(&avals);
        in_place.retain(|&(output, input)| outputs.get(output).is_some_and(|aval| avals.get(input) == Some(aval)));
        let outputs = outputs.into_iter().map(|aval| self.buffer(aval, Home::Arena(0))).collect::<Vec<_>>();
        let (inputs, results) = (inputs.to_vec(), outputs.clone());
        self.drafts.push(Draft { kernel, inputs, outputs, begins_as: None, pieces, in_place });
        Ok(results)
    }

    /// The result of a kernel that is given `target` as its output and writes a part of it: `target` itself, where nothing
    /// needs it any more, or else a copy.
    pub fn update(&mut self, kernel: Arc<dyn Kernel>, target: PlanValue, inputs: &[PlanValue]) -> PlanValue {
        let output = self.buffer(self.aval(target).clone(), Home::Arena(0));
        let (inputs, outputs) = (inputs.to_vec(), vec![output]);
        let in_place = Vec::new();
        self.drafts.push(Draft { kernel, inputs, outputs, begins_as: Some(target), pieces: None, in_place });
        output
    }

    /// The plan that gives these values.
    ///
    /// # Errors
    ///
    /// The arrays need more memory than there can be.
    pub fn finish(mut self, outputs: &[PlanValue]) -> Result<Plan, BoxError> {
        let mut avals = Vec::with_capacity(outputs.len());
        for (number, &value) in outputs.iter().enumerate() {
            let value = self.whole(value);
            self.buffers[self.values[value.0].buffer].home = Home::Output(number);
            avals.push(self.aval(value).clone());
        }
        put_behind_readers(&mut self.drafts, &self.values, &self.buffers);
        let chains = self.take_chains();
        self.find_lives(&chains);
        let mut donated = self.merge();
        write_over_inputs(&mut self.drafts, &self.values, &self.buffers, &chains, &mut donated);
        let scratch = chains.iter().map(|chain| self.place_inside(chain));
        let scratch = scratch.collect::<Option<Vec<_>>>().ok_or(TOO_LARGE)?;
        let arena = self.place_in_arena()?;
        let pieced: Vec<Pieced> =
            chains.iter().zip(&scratch).map(|(chain, scratch)| self.pieced(chain, scratch)).collect();
        let stages = self.drafts.iter().enumerate().map(|(number, draft)| {
            let runs_alone = !pieced.iter().any(|together| together.stages.contains(&number));
            let place = |value: &PlanValue| runs_alone.then(|| self.place(*value));
            Stage {
                kernel: Arc::clone(&draft.kernel),
                result: draft.outputs.first().map(|&output| self.aval(output).clone()),
                inputs: draft.inputs.iter().filter_map(place).collect(),
                outputs: draft.outputs.iter().filter_map(place).collect(),
                begins_as: draft.begins_as.as_ref().and_then(place),
                in_place: draft.in_place.clone(),
            }
        });
        let stages = stages.collect();
        let [inputs, outputs] = [self.inputs, avals].map(|avals| avals.into_iter().map(Dense::new).collect());
        Ok(Plan { inputs, outputs, stages, pieced, arena, donated })
    }

    fn buffer(&mut self, aval: Aval, home: Home) -> PlanValue {
        self.buffers.push(Buffer { bytes: aval.nbytes(), home, life: 0..0 });
        self.value(Value { buffer: self.buffers.len() - 1, offset: 0, aval })
    }

    fn value(&mut self, value: Value) -> PlanValue {
        self.values.push(value);
        PlanValue(self.values.len() - 1)
    }

    /// The value as one that can be an output: all that a kernel wrote, and no output yet.
    fn whole(&mut self, value: PlanValue) -> PlanValue {
        let Value { buffer, aval, .. } = &self.values[value.0];
        let Buffer { bytes, home, .. } = self.buffers[*buffer];
        if home == Home::Arena(0) && aval.nbytes() == bytes {
            return value;
        }
        self.update(Arc::new(Nothing), value, &[])
    }

    /// Puts the stages that run together side by side, and has what only they use take the place of a piece.
    fn take_chains(&mut self) -> Vec<Chain> {
        if self.threads.is_none() {
            return Vec::new();
        }
        let mut chains = chains::find(&self.drafts, &self.values, &self.buffers);
        let order = chains::order(self.drafts.len(), &chains);
        let mut drafts: Vec<Option<Draft>> = std::mem::take(&mut self.drafts).into_iter().map(Some).collect();
        self.drafts = order.iter().filter_map(|&stage| drafts[stage].take()).collect();
        let mut numbers = vec![0; order.len()];
        order.iter().enumerate().for_each(|(number, &stage)| numbers[stage] = number);
        for chain in &mut chains {
            chain.stages.iter_mut().for_each(|stage| *stage = numbers[*stage]);
            chain.inside.iter().for_each(|array| self.buffers[array.buffer].home = Home::Piece(0));
        }
        chains
    }

    /// From the stage that writes a buffer to the last one that reads it; those that run together count as the first of them.
    fn find_lives(&mut self, chains: &[Chain]) {
        let mut turns: Vec<usize> = (0..self.drafts.len()).collect();
        for Chain { stages, .. } in chains {
            for &stage in stages {
                turns[stage] = stages[0];
            }
        }
        for (draft, stage) in self.drafts.iter().zip(turns) {
            for value in &draft.outputs {
                self.buffers[self.values[value.0].buffer].life = stage..stage + 1;
            }
            for value in draft.inputs.iter().chain(&draft.begins_as) {
                let life = &mut self.buffers[self.values[value.0].buffer].life;
                life.end = life.end.max(stage + 1);
            }
        }
    }

    /// Gives what begins as another array the memory of that one, where nobody reads it from then on. Last stages come first:
    /// so an array that is updated several times is the output from the beginning.
    fn merge(&mut self) -> Vec<(usize, usize)> {
        let mut donated: Vec<(usize, usize)> = Vec::new();
        for (stage, draft) in self.drafts.iter().enumerate().rev() {
            let Some(target) = draft.begins_as else { continue };
            let target = &self.values[target.0];
            let (old, new) = (target.buffer, self.values[draft.outputs[0].0].buffer);
            let reads = draft.inputs.iter().any(|input| self.values[input.0].buffer == old);
            let whole = target.aval.nbytes() == self.buffers[old].bytes;
            if reads || !whole || self.buffers[old].life.end > stage + 1 {
                continue;
            }
            let root = root(&self.buffers, new);
            match (self.buffers[old].home, self.buffers[root].home) {
                (Home::Arena(_), _) => {
                    self.buffers[old].home = Home::Of(root);
                    self.buffers[root].life.start = self.buffers[old].life.start;
                }
                (Home::Input(input), Home::Output(output)) if donated.iter().all(|&(_, given)| given != input) => {
                    donated.push((output, input));
                }
                _ => {}
            }
        }
        donated
    }

    /// Finds a place for each array that is left to later stages, and gives the bytes of all.
    fn place_in_arena(&mut self) -> Result<usize, BoxError> {
        let of_arena = |buffer: &Buffer| matches!(buffer.home, Home::Arena(_)) && buffer.bytes > 0;
        let mut order: Vec<usize> = (0..self.buffers.len()).filter(|&at| of_arena(&self.buffers[at])).collect();
        order.sort_by_key(|&at| (self.buffers[at].life.start, at));
        let mut gaps = Gaps::default();
        for at in order {
            let Buffer { bytes, life, .. } = &self.buffers[at];
            let bytes = bytes.checked_next_multiple_of(ALIGNMENT);
            let offset = bytes.and_then(|bytes| gaps.take(bytes, life));
            let offset = offset.ok_or(TOO_LARGE)?;
            self.buffers[at].home = Home::Arena(offset);
        }
        Ok(gaps.end)
    }

    /// Finds places for a piece of what only the stages of a chain use, and makes a buffer of these for each thread.
    fn place_inside(&mut self, chain: &Chain) -> Option<Scratch> {
        let mut gaps = Gaps::default();
        for array in &chain.inside {
            let offset = gaps.take(array.bytes.checked_next_multiple_of(ALIGNMENT)?, &array.steps)?;
            self.buffers[array.buffer].home = Home::Piece(offset);
        }
        let (threads, first) = (self.threads?, *chain.stages.first()?);
        let slots = chain.workers((threads.count)());
        let (bytes, life) = (gaps.end.checked_mul(slots)?, first..first + 1);
        self.buffers.push(Buffer { bytes, home: Home::Arena(0), life });
        Some(Scratch { buffer: self.buffers.len() - 1, bytes: gaps.end, slots, threads })
    }

    /// The stages of a chain, with the pieces of their arrays.
    fn pieced(&mut self, chain: &Chain, scratch: &Scratch) -> Pieced {
        let (elements, piece) = (chain.elements, chain.piece());
        let steps = chain.stages.iter().filter_map(|&stage| {
            let Pieces { unit, inputs, outputs, eval, .. } = self.drafts[stage].pieces.take()?;
            let part = |value: PlanValue, bytes: Option<usize>| {
                self.part(value, bytes.map(|bytes| bytes * (piece / unit)), chain.pieces(), scratch)
            };
            let draft = &self.drafts[stage];
            let inputs = draft.inputs.iter().zip(inputs).map(|(&value, bytes)| part(value, bytes)).collect();
            let outputs = draft.outputs.iter().zip(outputs).map(|(&value, bytes)| part(value, Some(bytes))).collect();
            Some(Step { eval, inputs, outputs })
        });
        let steps: Vec<Step> = steps.collect();
        let first = chain.stages.first().copied().unwrap_or_default();
        let Scratch { slots, threads, .. } = *scratch;
        Pieced { stages: first..first + steps.len(), steps, elements, piece, threads, slots }
    }

    /// Where the pieces of a value lie, of so many bytes each, or all of it where each piece takes that.
    fn part(&self, value: PlanValue, step: Option<usize>, pieces: usize, scratch: &Scratch) -> Part {
        let Value { buffer, aval, .. } = &self.values[value.0];
        let Some(step) = step else {
            return Part { first: self.place(value), last: Dense::new(aval.clone()), step: 0, slot: 0 };
        };
        let piece = |bytes: usize| Dense::new(Aval::new(&[(bytes / aval.item_size()) as i32], aval.dtype));
        let last = piece(aval.nbytes() - step * (pieces - 1));
        match (self.buffers[*buffer].home, self.buffers[scratch.buffer].home) {
            (Home::Piece(offset), Home::Arena(base)) => {
                let first = Place { memory: Memory::Arena, offset: base + offset, array: piece(step) };
                Part { first, last, step: 0, slot: scratch.bytes }
            }
            _ => Part { first: Place { array: piece(step), ..self.place(value) }, last, step, slot: 0 },
        }
    }

    fn place(&self, value: PlanValue) -> Place {
        let Value { buffer, offset, aval } = &self.values[value.0];
        let (memory, base) = match self.buffers[root(&self.buffers, *buffer)].home {
            Home::Input(at) => (Memory::Input(at), 0),
            Home::Output(at) => (Memory::Output(at), 0),
            Home::Arena(base) => (Memory::Arena, base),
            Home::Of(_) | Home::Piece(_) => unreachable!("a root has a place of its own, and a piece is a part"),
        };
        Place { memory, offset: base + offset, array: Dense::new(aval.clone()) }
    }
}

/// Why arrays have no places.
const TOO_LARGE: &str =
    "the arrays of a plan need more memory than there can be\nhelp: compile smaller steps, or set `Passes::Off`";

/// What threads have for what the stages of a chain leave to each other.
struct Scratch {
    /// The buffer of all threads.
    buffer: usize,
    /// The bytes of each.
    bytes: usize,
    slots: usize,
    threads: Threads,
}

/// Leaves its output as it begins.
struct Nothing;

impl Kernel for Nothing {
    fn name(&self) -> &'static str {
        "Copy"
    }

    fn output_avals(&self, _: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        Err("a copy is an update".into())
    }

    fn eval_cpu(&self, _: &[Input<'_>], _: &mut [Output<'_>]) -> Result<(), BoxError> {
        Ok(())
    }

    fn decompose(&self, _: &[mlx_rs::Array]) -> Result<Vec<mlx_rs::Array>, BoxError> {
        Err("a copy is within a plan".into())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use mlx_rs::{Array, Dtype};

    use super::{Nothing, PlanBuilder};
    use crate::Aval;
    use crate::error::BoxError;
    use crate::kernel::{Input, Kernel, Output};

    /// Notes what its first input begins with, and leaves one more.
    struct Count(Arc<Mutex<Vec<f32>>>);

    impl Kernel for Count {
        fn name(&self) -> &'static str {
            "Count"
        }

        fn output_avals(&self, inputs: &[Aval]) -> Result<Vec<Aval>, BoxError> {
            Ok(inputs[..1].to_vec())
        }

        fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
            let from = inputs[0].elements::<f32>()?;
            self.0.lock().expect("no panic").push(from[0]);
            for (to, from) in outputs[0].elements::<f32>()?.iter_mut().zip(from) {
                *to = from + 1.0;
            }
            Ok(())
        }

        fn decompose(&self, inputs: &[Array]) -> Result<Vec<Array>, BoxError> {
            Ok(vec![inputs[0].add(Array::from_f32(1.0))?])
        }
    }

    fn floats(extent: i32) -> Aval {
        Aval::new(&[extent], Dtype::Float32)
    }

    #[test]
    fn a_chain_needs_the_memory_of_two() {
        let count = Arc::new(Count(Arc::default()));
        let mut plan = PlanBuilder::default();
        let mut value = plan.input(floats(16));
        for _ in 0..50 {
            value = plan.stage(count.clone(), &[value]).expect("a stage")[0];
        }
        let plan = plan.finish(&[value]).expect("a plan");
        assert_eq!((plan.stages.len(), plan.arena), (50, 2 * 64));
        let x = Array::from_slice(&[0.5f32; 16], &[16]);
        let y = plan.apply(&[x]).expect("a node").swap_remove(0);
        assert_eq!(y.as_slice::<f32>(), [50.5; 16]);
        assert_eq!(*count.0.lock().expect("no panic"), (0..50).map(|i| i as f32 + 0.5).collect::<Vec<_>>());
    }

    #[test]
    fn what_several_updates_write_is_the_output_from_the_beginning() {
        let count = Arc::new(Count(Arc::default()));
        let mut plan = PlanBuilder::default();
        let x = plan.input(floats(16));
        let mut value = plan.stage(count.clone(), &[x]).expect("a stage")[0];
        for _ in 0..3 {
            value = plan.update(Arc::new(Nothing), value, &[]);
        }
        let of_input = plan.update(Arc::new(Nothing), x, &[]);
        let plan = plan.finish(&[value, of_input]).expect("a plan");
        assert_eq!((plan.arena, &plan.donated[..]), (0, &[(1, 0)][..]));
    }

    #[test]
    fn what_is_read_later_or_twice_an_output_is_copied() {
        let count = Arc::new(Count(Arc::default()));
        let mut plan = PlanBuilder::default();
        let x = plan.input(floats(4));
        let incremented = plan.stage(count.clone(), &[x]).expect("a stage")[0];
        let updated = plan.update(count.clone(), incremented, &[incremented]);
        let later = plan.stage(count.clone(), &[incremented]).expect("a stage")[0];
        let part = plan.view(incremented, 4, floats(2)).expect("a view");
        assert!(plan.view(part, 4, floats(2)).is_err());
        let plan = plan.finish(&[incremented, updated, later, part, incremented, x]).expect("a plan");
        assert!(plan.donated.iter().all(|&(output, input)| (output, input) == (5, 0)), "{:?}", plan.donated);
        let results = plan.apply(&[Array::from_slice(&[1f32, 2.0, 3.0, 4.0], &[4])]).expect("a node");
        mlx_rs::transforms::eval(&results).expect("an eval");
        let found: Vec<&[f32]> = results.iter().map(Array::as_slice::<f32>).collect();
        let (incremented, later) = (&[2.0, 3.0, 4.0, 5.0][..], &[3.0, 4.0, 5.0, 6.0][..]);
        assert_eq!(found, [incremented, later, later, &[3.0, 4.0], incremented, &[1.0, 2.0, 3.0, 4.0]]);
    }
}
