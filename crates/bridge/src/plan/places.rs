//! Where the arrays of a plan lie.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;
use std::sync::Arc;

use super::arena::ALIGNMENT;
use super::{Memory, Place, Plan, PlanValue, Stage};
use crate::Aval;
use crate::error::BoxError;
use crate::kernel::{Input, Kernel, Output};

/// Makes a [`Plan`]: its inputs, its kernels in the order in which they run, and its outputs.
#[derive(Default)]
pub struct PlanBuilder {
    values: Vec<Value>,
    buffers: Vec<Buffer>,
    drafts: Vec<Draft>,
    inputs: Vec<Aval>,
}

/// A part of a buffer.
struct Value {
    buffer: usize,
    /// In bytes.
    offset: usize,
    aval: Aval,
}

/// What one kernel writes, or an input.
struct Buffer {
    bytes: usize,
    home: Home,
    /// The stages from the one that writes it first to the last one that uses it.
    life: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Input(usize),
    Output(usize),
    /// The memory of another buffer, which begins as this one.
    Of(usize),
    /// At this offset, once that is known.
    Arena(usize),
}

struct Draft {
    kernel: Arc<dyn Kernel>,
    inputs: Vec<PlanValue>,
    outputs: Vec<PlanValue>,
    begins_as: Option<PlanValue>,
}

impl PlanBuilder {
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

    /// The results of a kernel that runs after all others so far.
    ///
    /// # Errors
    ///
    /// The kernel refuses the avals.
    pub fn stage(&mut self, kernel: Arc<dyn Kernel>, inputs: &[PlanValue]) -> Result<Vec<PlanValue>, BoxError> {
        let avals: Vec<Aval> = inputs.iter().map(|&input| self.aval(input).clone()).collect();
        let outputs = kernel.output_avals(&avals)?;
        let outputs = outputs.into_iter().map(|aval| self.buffer(aval, Home::Arena(0))).collect::<Vec<_>>();
        self.drafts.push(Draft { kernel, inputs: inputs.to_vec(), outputs: outputs.clone(), begins_as: None });
        Ok(outputs)
    }

    /// The result of a kernel that is given `target` as its output and writes a part of it: `target` itself, where nothing
    /// needs it any more, or else a copy.
    pub fn update(&mut self, kernel: Arc<dyn Kernel>, target: PlanValue, inputs: &[PlanValue]) -> PlanValue {
        let output = self.buffer(self.aval(target).clone(), Home::Arena(0));
        self.drafts.push(Draft { kernel, inputs: inputs.to_vec(), outputs: vec![output], begins_as: Some(target) });
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
        self.find_lives();
        let donated = self.merge();
        let arena = self.place_in_arena()?;
        let place = |value: &PlanValue| self.place(*value);
        let stages = self.drafts.iter().map(|draft| Stage {
            kernel: Arc::clone(&draft.kernel),
            inputs: draft.inputs.iter().map(place).collect(),
            outputs: draft.outputs.iter().map(place).collect(),
            begins_as: draft.begins_as.as_ref().map(place),
        });
        let stages = stages.collect();
        Ok(Plan { stages, inputs: self.inputs, outputs: avals, arena, donated })
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

    /// From the stage that writes a buffer to the last one that reads it.
    fn find_lives(&mut self) {
        for (stage, draft) in self.drafts.iter().enumerate() {
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
            let root = self.root(new);
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

    /// The buffer whose memory this one has.
    fn root(&self, mut buffer: usize) -> usize {
        while let Home::Of(other) = self.buffers[buffer].home {
            buffer = other;
        }
        buffer
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
            let offset = offset.ok_or("the arrays of a plan need more memory than there can be")?;
            self.buffers[at].home = Home::Arena(offset);
        }
        Ok(gaps.end)
    }

    fn place(&self, value: PlanValue) -> Place {
        let Value { buffer, offset, aval } = &self.values[value.0];
        let (memory, base) = match self.buffers[self.root(*buffer)].home {
            Home::Input(at) => (Memory::Input(at), 0),
            Home::Output(at) => (Memory::Output(at), 0),
            Home::Arena(base) => (Memory::Arena, base),
            Home::Of(_) => unreachable!("a root has a place of its own"),
        };
        Place { memory, offset: base + offset, aval: aval.clone() }
    }
}

/// The parts of an arena that nothing lives in, while stages are gone through in their order.
#[derive(Default)]
struct Gaps {
    /// Their bytes by their offsets, none beside another.
    free: BTreeMap<usize, usize>,
    /// The arrays that live: the stage at which each ends, its offset and its bytes.
    living: BinaryHeap<Reverse<(usize, usize, usize)>>,
    end: usize,
}

impl Gaps {
    /// A place for so many bytes: the smallest gap that is long enough, or else at the end. None where that is too far away.
    fn take(&mut self, bytes: usize, life: &Range<usize>) -> Option<usize> {
        while let Some(&Reverse((end, offset, bytes))) = self.living.peek()
            && end <= life.start
        {
            self.living.pop();
            self.free(offset, bytes);
        }
        let fitting = self.free.iter().filter(|&(_, &gap)| gap >= bytes).min_by_key(|&(_, &gap)| gap);
        let offset = match fitting.or_else(|| self.free.last_key_value().filter(|&(at, gap)| at + gap == self.end)) {
            Some((&offset, _)) => offset,
            None => self.end,
        };
        let gap = self.free.remove(&offset).unwrap_or(0);
        let end = offset.checked_add(bytes).filter(|&end| isize::try_from(end).is_ok())?;
        if gap > bytes {
            self.free.insert(end, gap - bytes);
        }
        self.end = self.end.max(end);
        self.living.push(Reverse((life.end, offset, bytes)));
        Some(offset)
    }

    /// Makes a gap, one with those beside it.
    fn free(&mut self, offset: usize, bytes: usize) {
        let (mut offset, mut end) = (offset, offset + bytes);
        if let Some(after) = self.free.remove(&end) {
            end += after;
        }
        if let Some((&before, &gap)) = self.free.range(..offset).next_back()
            && before + gap == offset
        {
            offset = before;
        }
        self.free.insert(offset, end - offset);
    }
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

    use super::{Gaps, Nothing, PlanBuilder};
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
        let made = plan.stage(count.clone(), &[x]).expect("a stage")[0];
        let updated = plan.update(count.clone(), made, &[made]);
        let later = plan.stage(count.clone(), &[made]).expect("a stage")[0];
        let part = plan.view(made, 4, floats(2)).expect("a view");
        assert!(plan.view(part, 4, floats(2)).is_err());
        let plan = plan.finish(&[made, updated, later, part, made, x]).expect("a plan");
        assert!(plan.donated.iter().all(|&(output, input)| (output, input) == (5, 0)), "{:?}", plan.donated);
        let results = plan.apply(&[Array::from_slice(&[1f32, 2.0, 3.0, 4.0], &[4])]).expect("a node");
        mlx_rs::transforms::eval(&results).expect("an eval");
        let found: Vec<&[f32]> = results.iter().map(Array::as_slice::<f32>).collect();
        let (made, later) = (&[2.0, 3.0, 4.0, 5.0][..], &[3.0, 4.0, 5.0, 6.0][..]);
        assert_eq!(found, [made, later, later, &[3.0, 4.0], made, &[1.0, 2.0, 3.0, 4.0]]);
    }

    #[test]
    fn gaps_are_apart_from_all_that_lives() {
        let mut gaps = Gaps::default();
        let mut taken: Vec<(std::ops::Range<usize>, std::ops::Range<usize>)> = Vec::new();
        let mut seed = 1_usize;
        for stage in 0..2000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (bytes, life) = (64 * (1 + (seed >> 40) % 9), stage..stage + 1 + (seed >> 50) % 20);
            let offset = gaps.take(bytes, &life).expect("a place");
            for (place, other) in &taken {
                let together = other.start < life.end && life.start < other.end;
                assert!(!together || offset + bytes <= place.start || place.end <= offset);
            }
            taken.push((offset..offset + bytes, life));
        }
        assert!(gaps.end < 64 * 9 * 20 * 2, "{}", gaps.end);
        assert_eq!(gaps.take(usize::MAX - 63, &(2000..2001)), None);
    }
}
