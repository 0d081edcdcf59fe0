//! Nodes that only say how an array lies: transposes, slices, broadcasts, reshapes.

use mlx_rs::Array;
use tacit_core::Aval;
use tacit_core::kernel::{Input, Kernel, Output};
use tacit_kernels::{Axis, StridedCopy};

use super::refused::{BoxError, only_in_plans};
use super::steps::{item, steps};

/// The elements of an operand in another order, or some of them.
#[derive(Clone)]
pub(super) struct Lay {
    name: &'static str,
    /// None where the elements stay as they are.
    copy: Option<StridedCopy>,
    pub(super) result: Aval,
    /// Whether it is the transpose of each matrix.
    pub(super) turns: bool,
}

impl Lay {
    /// All elements in the same order.
    pub(super) fn same(result: &Aval) -> Self {
        Self { name: "Reshape", copy: None, result: result.clone(), turns: false }
    }

    fn strided(name: &'static str, from: &[isize], first: usize, result: &Aval) -> Self {
        let to = steps(&result.shape);
        let axes = result.shape.iter().zip(from).zip(to);
        let axes: Vec<Axis> = axes.map(|((&extent, &from), to)| Axis { extent: extent as usize, from, to }).collect();
        Self { name, copy: Some(StridedCopy::new(&axes, first, 0)), result: result.clone(), turns: false }
    }

    pub(super) fn transpose(operand: &Aval, axes: &[i32]) -> Self {
        let from = steps(&operand.shape);
        let shape: Vec<i32> = axes.iter().map(|&axis| operand.shape[axis as usize]).collect();
        let from: Vec<isize> = axes.iter().map(|&axis| from[axis as usize] as isize).collect();
        let mut turned: Vec<i32> = (0..axes.len() as i32).collect();
        if let [.., a, b] = &mut turned[..] {
            std::mem::swap(a, b);
        }
        let turns = axes.len() >= 2 && turned == axes;
        Self { turns, ..Self::strided("Transpose", &from, 0, &Aval::new(&shape, operand.dtype)) }
    }

    pub(super) fn slice(operand: &Aval, starts: &[i32], strides: &[i32], result: &Aval) -> Self {
        // MLX leaves any start to what has no elements.
        if result.size() == 0 {
            return Self::same(result);
        }
        let own = steps(&operand.shape);
        let first = starts.iter().zip(&own).map(|(&start, &step)| start as usize * step).sum();
        let from: Vec<isize> =
            strides.iter().zip(&own).map(|(&stride, &step)| stride as isize * step as isize).collect();
        Self::strided("Slice", &from, first, result)
    }

    pub(super) fn broadcast(operand: &Aval, result: &Aval) -> Self {
        let own = steps(&operand.shape);
        let padding = result.shape.len() - operand.shape.len();
        let mut from = vec![0; padding];
        from.extend(operand.shape.iter().zip(own).map(|(&extent, step)| if extent == 1 { 0 } else { step as isize }));
        Self::strided("Broadcast", &from, 0, result)
    }

    /// The byte at which the elements begin in the operand, where they lie there one after the other.
    pub(super) fn view(&self) -> Option<usize> {
        match &self.copy {
            None => Some(0),
            Some(_) if self.result.size() == 0 => Some(0),
            Some(copy) => Some(copy.as_slice()? * item(&self.result)),
        }
    }
}

/// As a kernel it copies.
impl Kernel for Lay {
    fn name(&self) -> &'static str {
        self.name
    }

    fn output_avals(&self, _: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        Ok(vec![self.result.clone()])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
        match &self.copy {
            Some(copy) => copy.run(item(&self.result), inputs[0].bytes(), outputs[0].bytes())?,
            None => outputs[0].bytes().copy_from_slice(inputs[0].bytes()),
        }
        Ok(())
    }

    fn decompose(&self, _: &[Array]) -> Result<Vec<Array>, BoxError> {
        Err(only_in_plans())
    }
}
