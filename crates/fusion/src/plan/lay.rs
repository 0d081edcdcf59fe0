//! Nodes that only say how an array lies: transposes, slices, broadcasts, reshapes.

use std::sync::Arc;

use tacit_core::Aval;
use tacit_core::kernel::Kernel;
use tacit_kernels::StridedCopy;

use super::staged::staged;
use super::steps::{axes, steps};

/// The elements of an operand in another order, or some of them.
pub(super) struct Lay {
    pub(super) elements: Elements,
    pub(super) result: Aval,
    /// Whether it is the transpose of each matrix.
    pub(super) turns: bool,
    /// Whether it is one row of the result, again and again.
    pub(super) repeats: bool,
}

/// Where the elements are.
pub(super) enum Elements {
    /// One after the other in the operand, from this byte on.
    From(usize),
    /// Where a kernel copies them.
    Copied(Arc<dyn Kernel>),
}

impl Lay {
    /// All elements in the same order, or the same bytes as elements of another type.
    pub(super) fn same(result: &Aval) -> Self {
        Self { elements: Elements::From(0), result: result.clone(), turns: false, repeats: false }
    }

    /// The elements from `first` on with these steps in the operand.
    fn strided(name: &'static str, from: Vec<isize>, first: usize, result: &Aval) -> Self {
        let copy = StridedCopy::new(&axes(&result.shape, from, steps(&result.shape)), first, 0);
        let elements = match copy.as_slice() {
            Some(first) => Elements::From(first * result.item_size()),
            None => Elements::Copied(staged(name, copy, result)),
        };
        Self { elements, result: result.clone(), turns: false, repeats: false }
    }

    pub(super) fn transpose(operand: &Aval, axes: &[i32]) -> Self {
        let from = steps(&operand.shape);
        let shape: Vec<i32> = axes.iter().map(|&axis| operand.shape[axis as usize]).collect();
        let from = axes.iter().map(|&axis| from[axis as usize] as isize).collect();
        let mut swapped: Vec<i32> = (0..axes.len() as i32).collect();
        if let [.., a, b] = &mut swapped[..] {
            std::mem::swap(a, b);
        }
        let turns = axes.len() >= 2 && swapped == axes;
        Self { turns, ..Self::strided("Transpose", from, 0, &Aval::new(&shape, operand.dtype)) }
    }

    pub(super) fn slice(operand: &Aval, starts: &[i32], strides: &[i32], result: &Aval) -> Self {
        // MLX leaves any start to what has no elements.
        if result.size() == 0 {
            return Self::same(result);
        }
        let operand_steps = steps(&operand.shape);
        let first = starts.iter().zip(&operand_steps).map(|(&start, &step)| start as usize * step).sum();
        let from = strides.iter().zip(&operand_steps).map(|(&stride, &step)| stride as isize * step as isize).collect();
        Self::strided("Slice", from, first, result)
    }

    pub(super) fn broadcast(operand: &Aval, result: &Aval) -> Self {
        if result.size() == 0 {
            return Self::same(result);
        }
        let operand_steps = steps(&operand.shape);
        let mut from = vec![0; result.shape.len() - operand.shape.len()];
        from.extend(
            operand.shape.iter().zip(operand_steps).map(|(&extent, step)| if extent == 1 { 0 } else { step as isize }),
        );
        let repeats =
            operand.shape.last() == result.shape.last() && operand.shape.last() == Some(&(operand.size() as i32));
        Self { repeats, ..Self::strided("Broadcast", from, 0, result) }
    }
}
