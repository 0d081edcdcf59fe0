//! Parts of arrays that are written, taken and joined.

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
    let all = update.shape.len() == result.shape.len() && strides.iter().all(|&stride| stride > 0);
    if !all {
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
        let own = steps(whole);
        let axis = |&axis: &i32| {
            let axis = axis as usize;
            (own[axis], i64::from(whole[axis] - part[axis]))
        };
        Some(Self { axes: axes.iter().map(axis).collect() })
    }

    /// The first element.
    fn read(&self, start: &Input<'_>) -> Result<usize, BoxError> {
        let at: Vec<i64> = if start.aval().dtype == Dtype::Int32 {
            start.elements::<i32>()?.iter().map(|&at| at.into()).collect()
        } else {
            start.elements::<u32>()?.iter().map(|&at| at.into()).collect()
        };
        let mut first = 0;
        for (at, &(step, most)) in at.into_iter().zip(&self.axes) {
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
pub(super) struct PlacedAt(Start);

impl PlacedAt {
    pub(super) fn new(update: &Aval, start: &Aval, axes: &[i32], result: &Aval) -> Option<Self> {
        Start::new(&result.shape, &update.shape, start, axes).map(Self)
    }
}

impl Stage for PlacedAt {
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        let (first, part) = (self.0.read(&inputs[1])?, &inputs[0].aval().shape);
        let copy = into(&output.aval().shape, part, first, &vec![1; part.len()]);
        Ok(copy.run(output.aval().item_size(), inputs[0].bytes(), output.bytes())?)
    }
}

/// A part that begins where an array says.
pub(super) struct TakenAt(Start);

impl TakenAt {
    pub(super) fn new(whole: &Aval, start: &Aval, axes: &[i32], result: &Aval) -> Option<Self> {
        Start::new(&whole.shape, &result.shape, start, axes).map(Self)
    }
}

impl Stage for TakenAt {
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        let (first, part) = (self.0.read(&inputs[1])?, &output.aval().shape);
        let from = steps(&inputs[0].aval().shape).into_iter().map(|step| step as isize);
        let copy = StridedCopy::new(&axes(part, from, steps(part)), first, 0);
        Ok(copy.run(output.aval().item_size(), inputs[0].bytes(), output.bytes())?)
    }
}
