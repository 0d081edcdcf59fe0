//! Parts of arrays that are written, taken and joined.

use mlx_rs::{Array, Dtype};
use tacit_core::Aval;
use tacit_core::kernel::{Input, Kernel, Output};
use tacit_kernels::{Axis, StridedCopy};

use super::refused::{BoxError, only_in_plans};
use super::steps::{item, steps};

/// A copy of all of `block` to the elements of `whole` from `first` on, with these strides.
fn into(whole: &[i32], block: &[i32], first: usize, strides: &[i32]) -> StridedCopy {
    let axes = block.iter().zip(steps(block)).zip(steps(whole).into_iter().zip(strides));
    let axes: Vec<Axis> = axes
        .map(|((&extent, from), (to, &stride))| Axis {
            extent: extent as usize,
            from: from as isize,
            to: to * stride as usize,
        })
        .collect();
    StridedCopy::new(&axes, 0, first)
}

/// Arrays one after the other along an axis.
pub(super) struct Joined {
    copies: Vec<StridedCopy>,
    result: Aval,
}

impl Joined {
    pub(super) fn new(parts: &[Aval], axis: usize, result: Aval) -> Self {
        let step = steps(&result.shape)[axis];
        let ones = vec![1; result.shape.len()];
        let mut first = 0;
        let mut copy = |part: &Aval| {
            let copy = into(&result.shape, &part.shape, first, &ones);
            first += part.shape[axis] as usize * step;
            copy
        };
        Self { copies: parts.iter().map(&mut copy).collect(), result }
    }
}

impl Kernel for Joined {
    fn name(&self) -> &'static str {
        "Concatenate"
    }

    fn output_avals(&self, _: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        Ok(vec![self.result.clone()])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
        for (copy, input) in self.copies.iter().zip(inputs) {
            copy.run(item(&self.result), input.bytes(), outputs[0].bytes())?;
        }
        Ok(())
    }

    fn decompose(&self, _: &[Array]) -> Result<Vec<Array>, BoxError> {
        Err(only_in_plans())
    }
}

/// A part that is written where the graph says.
pub(super) struct Placed {
    copy: StridedCopy,
    result: Aval,
}

impl Placed {
    pub(super) fn new(update: &Aval, starts: &[i32], strides: &[i32], result: Aval) -> Option<Self> {
        let all = update.shape.len() == result.shape.len() && strides.iter().all(|&stride| stride > 0);
        if !all {
            return None;
        }
        let first = starts.iter().zip(steps(&result.shape)).map(|(&start, step)| start as usize * step).sum();
        Some(Self { copy: into(&result.shape, &update.shape, first, strides), result })
    }
}

impl Kernel for Placed {
    fn name(&self) -> &'static str {
        "SliceUpdate"
    }

    fn output_avals(&self, _: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        Ok(vec![self.result.clone()])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
        Ok(self.copy.run(item(&self.result), inputs[0].bytes(), outputs[0].bytes())?)
    }

    fn decompose(&self, _: &[Array]) -> Result<Vec<Array>, BoxError> {
        Err(only_in_plans())
    }
}

/// Where a part begins that an array says: the extents along its axes, in the whole and of the part.
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
pub(super) struct PlacedAt {
    start: Start,
    update: Vec<i32>,
    result: Aval,
}

impl PlacedAt {
    pub(super) fn new(update: &Aval, start: &Aval, axes: &[i32], result: Aval) -> Option<Self> {
        let start = Start::new(&result.shape, &update.shape, start, axes)?;
        Some(Self { start, update: update.shape.clone(), result })
    }
}

impl Kernel for PlacedAt {
    fn name(&self) -> &'static str {
        "DynamicSliceUpdate"
    }

    fn output_avals(&self, _: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        Ok(vec![self.result.clone()])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
        let first = self.start.read(&inputs[1])?;
        let ones = vec![1; self.update.len()];
        let copy = into(&self.result.shape, &self.update, first, &ones);
        Ok(copy.run(item(&self.result), inputs[0].bytes(), outputs[0].bytes())?)
    }

    fn decompose(&self, _: &[Array]) -> Result<Vec<Array>, BoxError> {
        Err(only_in_plans())
    }
}

/// A part that begins where an array says.
pub(super) struct TakenAt {
    start: Start,
    whole: Vec<i32>,
    result: Aval,
}

impl TakenAt {
    pub(super) fn new(whole: &Aval, start: &Aval, axes: &[i32], result: Aval) -> Option<Self> {
        let start = Start::new(&whole.shape, &result.shape, start, axes)?;
        Some(Self { start, whole: whole.shape.clone(), result })
    }
}

impl Kernel for TakenAt {
    fn name(&self) -> &'static str {
        "DynamicSlice"
    }

    fn output_avals(&self, _: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        Ok(vec![self.result.clone()])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
        let first = self.start.read(&inputs[1])?;
        let axes = self.result.shape.iter().zip(steps(&self.whole)).zip(steps(&self.result.shape));
        let axes: Vec<Axis> =
            axes.map(|((&extent, from), to)| Axis { extent: extent as usize, from: from as isize, to }).collect();
        let copy = StridedCopy::new(&axes, first, 0);
        Ok(copy.run(item(&self.result), inputs[0].bytes(), outputs[0].bytes())?)
    }

    fn decompose(&self, _: &[Array]) -> Result<Vec<Array>, BoxError> {
        Err(only_in_plans())
    }
}
