//! Reductions along any axes that lie side by side.

use std::borrow::Cow;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use mlx_rs::Dtype;
use tacit_core::Aval;
use tacit_core::kernel::{Element, Input, Output};
use tacit_kernels::sum;

use super::staged::{BoxError, Stage, of_numbers};
use super::steps::size;

/// An array of these extents, which is reduced along the middle one.
#[derive(Clone, Copy)]
struct Extents([usize; 3]);

impl Extents {
    fn new(shape: &[i32], axes: &[i32]) -> Option<Self> {
        let (&first, &last) = (axes.iter().min()?, axes.iter().max()?);
        let together = last - first + 1 == axes.len() as i32;
        let (first, end) = (first as usize, last as usize + 1);
        together.then(|| Self([size(&shape[..first]), size(&shape[first..end]), size(&shape[end..])]))
    }

    /// Puts all of a line together, from its first number on.
    fn fold<T: Copy>(self, from: &[T], to: &mut [T], f: impl Fn(T, T) -> T) {
        let Self([_, reduced, inner]) = self;
        if to.is_empty() {
            return;
        }
        for (from, to) in from.chunks(reduced * inner).zip(to.chunks_mut(inner)) {
            let (first, rest) = from.split_at(inner);
            to.copy_from_slice(first);
            for row in rest.chunks(inner) {
                to.iter_mut().zip(row).for_each(|(to, from)| *to = f(*to, *from));
            }
        }
    }
}

/// A sum, which of half floats is taken in single precision and rounded once.
pub(super) struct Sum(Extents);

impl Sum {
    pub(super) fn new(operand: &Aval, axes: &[i32], result: &Aval) -> Option<Self> {
        let float = matches!(operand.dtype, Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16);
        Extents::new(&operand.shape, axes).filter(|_| float && result.dtype == operand.dtype).map(Self)
    }

    fn widened<T: Element>(&self, input: &Input<'_>, output: &mut Output<'_>) -> Result<(), BoxError>
    where
        [T]: HalfFloatSliceExt,
    {
        let (mut wide, mut sums) = (vec![0.0; input.aval().size()], vec![0.0; output.aval().size()]);
        input.elements::<T>()?.convert_to_f32_slice(&mut wide);
        sum(&wide, self.0.0, &mut sums)?;
        output.elements::<T>()?.convert_from_f32_slice(&sums);
        Ok(())
    }
}

impl Stage for Sum {
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        match output.aval().dtype {
            Dtype::Float32 => Ok(sum(inputs[0].elements()?, self.0.0, output.elements()?)?),
            Dtype::Float16 => self.widened::<f16>(&inputs[0], output),
            _ => self.widened::<bf16>(&inputs[0], output),
        }
    }
}

/// The greatest or least number; NaN if one is.
pub(super) struct Extreme {
    extents: Extents,
    greatest: bool,
}

impl Extreme {
    pub(super) fn new(operand: &Aval, axes: &[i32], greatest: bool) -> Option<Self> {
        let extents = Extents::new(&operand.shape, axes)?;
        let known =
            matches!(operand.dtype, Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16 | Dtype::Int32 | Dtype::Uint32);
        // Of no numbers there is none.
        (known && extents.0[1] > 0).then_some(Self { extents, greatest })
    }

    fn run<T: Element + PartialOrd>(&self, input: &Input<'_>, output: &mut Output<'_>) -> Result<(), BoxError> {
        let stays = |a: T, better: bool| better || a.partial_cmp(&a).is_none();
        let (from, to) = (input.elements::<T>()?, output.elements::<T>()?);
        if self.greatest {
            self.extents.fold(from, to, |a, b| if stays(a, a >= b) { a } else { b });
        } else {
            self.extents.fold(from, to, |a, b| if stays(a, a <= b) { a } else { b });
        }
        Ok(())
    }
}

impl Stage for Extreme {
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        of_numbers!(output.aval().dtype, self.run(&inputs[0], output))
    }
}

/// Whether all are true, or any is; every number but 0 is true.
pub(super) struct Truth {
    extents: Extents,
    all: bool,
}

impl Truth {
    pub(super) fn new(operand: &Aval, axes: &[i32], all: bool) -> Option<Self> {
        let extents = Extents::new(&operand.shape, axes)?;
        let known = matches!(operand.dtype, Dtype::Bool | Dtype::Float32 | Dtype::Int32 | Dtype::Uint32);
        (known && extents.0[1] > 0).then_some(Self { extents, all })
    }
}

impl Stage for Truth {
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        let together: fn(u8, u8) -> u8 = if self.all { |a, b| a & b } else { |a, b| a | b };
        let words = || inputs[0].bytes().as_chunks::<4>().0.iter();
        let truth: Cow<'_, [u8]> = match inputs[0].aval().dtype {
            Dtype::Bool => Cow::Borrowed(inputs[0].bytes()),
            Dtype::Float32 => words().map(|word| (f32::from_ne_bytes(*word) != 0.0).into()).collect(),
            _ => words().map(|word| (*word != [0; 4]).into()).collect(),
        };
        self.extents.fold(&truth, output.bytes(), together);
        Ok(())
    }
}
