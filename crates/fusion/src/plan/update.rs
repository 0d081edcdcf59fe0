//! Slices, updates of slices, and concatenations.

use mlx_rs::Dtype;
use tacit_core::Aval;
use tacit_core::kernel::{Input, Output};
use tacit_kernels::StridedCopy;

use super::staged::{BoxError, Stage};
use super::steps::{axes, steps};

/// A copy of all of `block` to the elements of `whole` from `first` on, with these strides.
fn into(whole: &[i32], block: &[i32], first: usize, strides: &[i32]) -> StridedCopy {
    let from = steps(block).into_iter().map(|step| step as isize);
    let to = steps(whole).into_iter().zip(strides).map(|(step, &stride)| step * stride as usize);
    StridedCopy::new(&axes(block, from, to), 0, first)
}

/// Arrays one after the other along an axis: the copy of each.
pub(super) struct Joined(Vec<StridedCopy>);

impl Joined {
    pub(super) fn new(parts: &[Aval], axis: usize, result: &Aval) -> Self {
        let step = steps(&result.shape)[axis];
        let ones = vec![1; result.shape.len()];
        let mut first = 0;
        let mut copy = |part: &Aval| {
            let copy = into(&result.shape, &part.shape, first, &ones);
            first += part.shape[axis] as usize * step;
            copy
        };
        Self(parts.iter().map(&mut copy).collect())
    }
}

impl Stage for Joined {
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        let item = output.aval().item_size();
        for (copy, input) in self.0.iter().zip(inputs) {
            copy.run(item, input.bytes(), output.bytes())?;
        }
        Ok(())
    }
}

/// A part that is written where the graph says.
pub(super) fn placed(update: &Aval, starts: &[i32], strides: &[i32], result: &Aval) -> Option<StridedCopy> {
    let fits = update.shape.len() == result.shape.len() && strides.iter().all(|&stride| stride > 0);
    if !fits {
        return None;
    }
    let first = starts.iter().zip(steps(&result.shape)).map(|(&start, step)| start as usize * step).sum();
    Some(into(&result.shape, &update.shape, first, strides))
}

impl Stage for StridedCopy {
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        Ok(self.run(output.aval().item_size(), inputs[0].bytes(), output.bytes())?)
    }
}

/// Where a part begins that an array says.
struct Start {
    /// The step, and the greatest start, of each axis.
    axes: Vec<(usize, i64)>,
}

impl Start {
    fn new(whole: &[i32], part: &[i32], start: &Aval, axes: &[i32]) -> Option<Self> {
        let known = matches!(start.dtype, Dtype::Int32 | Dtype::Uint32) && start.size() == axes.len();
        if !known || whole.len() != part.len() {
            return None;
        }
        let whole_steps = steps(whole);
        let axis = |&axis: &i32| {
            let axis = axis as usize;
            (whole_steps[axis], i64::from(whole[axis] - part[axis]))
        };
        Some(Self { axes: axes.iter().map(axis).collect() })
    }

    /// The byte that the part begins with, where elements have so many.
    fn read(&self, start: &Input<'_>, item: usize) -> Result<usize, BoxError> {
        let first = if start.aval().dtype == Dtype::Int32 {
            self.first(start.elements::<i32>()?.iter().copied().map(i64::from))
        } else {
            self.first(start.elements::<u32>()?.iter().copied().map(i64::from))
        };
        Ok(first? * item)
    }

    fn first(&self, starts: impl Iterator<Item = i64>) -> Result<usize, BoxError> {
        let mut first = 0;
        for (at, &(step, most)) in starts.zip(&self.axes) {
            let inside = usize::try_from(at).ok().filter(|_| at <= most);
            let Some(at) = inside else {
                return Err(format!(
                    "a part that begins at {at} is not within the array\nhelp: begin from 0 to {most}"
                )
                .into());
            };
            first += at * step;
        }
        Ok(first)
    }
}

/// A part that is written where an array says.
pub(super) struct PlacedAt {
    start: Start,
    /// From the first element on.
    copy: StridedCopy,
}

impl PlacedAt {
    pub(super) fn new(update: &Aval, start: &Aval, along: &[i32], result: &Aval) -> Option<Self> {
        let start = Start::new(&result.shape, &update.shape, start, along)?;
        let copy = into(&result.shape, &update.shape, 0, &vec![1; update.shape.len()]);
        Some(Self { start, copy })
    }
}

impl Stage for PlacedAt {
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        let item = output.aval().item_size();
        let first = self.start.read(&inputs[1], item)?;
        // A part without elements may begin behind the last one.
        let to = output.bytes().get_mut(first..).unwrap_or_default();
        Ok(self.copy.run(item, inputs[0].bytes(), to)?)
    }
}

/// A part that begins where an array says.
pub(super) struct TakenAt {
    start: Start,
    /// From the first element on.
    copy: StridedCopy,
}

impl TakenAt {
    pub(super) fn new(whole: &Aval, start: &Aval, along: &[i32], result: &Aval) -> Option<Self> {
        let start = Start::new(&whole.shape, &result.shape, start, along)?;
        let from = steps(&whole.shape).into_iter().map(|step| step as isize);
        let copy = StridedCopy::new(&axes(&result.shape, from, steps(&result.shape)), 0, 0);
        Some(Self { start, copy })
    }
}

impl Stage for TakenAt {
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        let item = output.aval().item_size();
        let first = self.start.read(&inputs[1], item)?;
        let from = inputs[0].bytes().get(first..).unwrap_or_default();
        Ok(self.copy.run(item, from, output.bytes())?)
    }
}
