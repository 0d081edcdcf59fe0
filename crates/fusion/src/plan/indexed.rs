//! Gathers and scatters: elements and rows that an array of indices chooses, replaces or adds to.

use std::ops::Add;

use half::{bf16, f16};
use mlx_rs::Dtype;
use tacit_core::Aval;
use tacit_core::kernel::{Element, Input, Output};

use super::staged::{BoxError, Stage};
use super::steps::size;

/// Which elements of an array `[outer, extent, columns, width]` indices `[outer, chosen, columns]` choose.
pub(super) struct Indexed {
    /// The rows among which each index chooses.
    extent: usize,
    /// The indices for one of `outer`, one after the other.
    indices: usize,
    columns: usize,
    /// The elements that an index chooses.
    width: usize,
}

impl Indexed {
    /// An index for each element of the result along an axis.
    pub(super) fn along(whole: &Aval, indices: &Aval, axis: i32) -> Option<Self> {
        let axis = axis as usize;
        let columns = size(&whole.shape[axis + 1..]);
        let same = whole.shape.len() == indices.shape.len()
            && whole.shape[..axis] == indices.shape[..axis]
            && whole.shape[axis + 1..] == indices.shape[axis + 1..];
        let indexed =
            Self { extent: whole.shape[axis] as usize, indices: size(&indices.shape[axis..]), columns, width: 1 };
        (same && is_index(indices.dtype)).then_some(indexed)
    }

    /// An index for each row along the first axis.
    pub(super) fn rows(whole: &Aval, indices: &Aval, part: &Aval) -> Option<Self> {
        let (&extent, row) = whole.shape.split_first()?;
        let (begin, end) = part.shape.split_at_checked(indices.shape.len())?;
        let same = begin == indices.shape && end.split_first() == Some((&1, row));
        let indexed = Self { extent: extent as usize, indices: indices.size(), columns: 1, width: size(row) };
        (same && is_index(indices.dtype)).then_some(indexed)
    }

    /// Calls `f` with the first element of each chosen part in the whole array and in the part, once all indices are known to
    /// be within the array.
    fn for_each(&self, indices: &Input<'_>, f: impl FnMut(usize, usize)) -> Result<(), BoxError> {
        if indices.aval().dtype == Dtype::Int32 {
            self.for_each_of(indices.elements::<i32>()?, f)
        } else {
            self.for_each_of(indices.elements::<u32>()?, f)
        }
    }

    fn for_each_of<T: Copy + Into<i64>>(&self, indices: &[T], mut f: impl FnMut(usize, usize)) -> Result<(), BoxError> {
        let extent = self.extent as i64;
        if let Some(index) = indices.iter().map(|&index| index.into()).find(|index| !(-extent..extent).contains(index))
        {
            return Err(format!(
                "the index {index} is not among the {extent} along its axis\nhelp: give indices from -{extent} to {}",
                extent - 1
            )
            .into());
        }
        for (at, &index) in indices.iter().enumerate() {
            // As MLX: negative indices count from the end.
            let index = index.into().rem_euclid(extent) as usize;
            let outer = at / self.indices;
            f(((outer * self.extent + index) * self.columns + at % self.columns) * self.width, at * self.width);
        }
        Ok(())
    }
}

fn is_index(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Int32 | Dtype::Uint32)
}

/// What is taken.
pub(super) struct Taken(pub(super) Indexed);

impl Stage for Taken {
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        let item = output.aval().item_size();
        let (from, to, bytes) = (inputs[0].bytes(), output.bytes(), self.0.width * item);
        self.0.for_each(&inputs[1], |whole, part| {
            to[part * item..][..bytes].copy_from_slice(&from[whole * item..][..bytes]);
        })
    }
}

/// What is put in the place of what is there; of several in one place, the last one.
pub(super) struct Put(pub(super) Indexed);

impl Stage for Put {
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        let item = output.aval().item_size();
        let (from, to, bytes) = (inputs[1].bytes(), output.bytes(), self.0.width * item);
        self.0.for_each(&inputs[0], |whole, part| {
            to[whole * item..][..bytes].copy_from_slice(&from[part * item..][..bytes]);
        })
    }
}

/// What is added to the array that is there, each sum rounded.
pub(super) struct Added(Indexed);

impl Added {
    pub(super) fn new(indexed: Indexed, whole: &Aval) -> Option<Self> {
        matches!(whole.dtype, Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16).then_some(Self(indexed))
    }

    fn run<T: Element + Add<Output = T>>(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        let (updates, to, width) = (inputs[1].elements::<T>()?, output.elements::<T>()?, self.0.width);
        self.0.for_each(&inputs[0], |whole, part| {
            let to = to[whole..][..width].iter_mut();
            to.zip(&updates[part..][..width]).for_each(|(to, update)| *to = *to + *update);
        })
    }
}

impl Stage for Added {
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        match output.aval().dtype {
            Dtype::Float32 => self.run::<f32>(inputs, output),
            Dtype::Float16 => self.run::<f16>(inputs, output),
            _ => self.run::<bf16>(inputs, output),
        }
    }
}
