//! The lines of an array along one of its axes.

use super::steps::size;

/// An array of these extents, which is gone through along the middle one.
#[derive(Clone, Copy)]
pub(super) struct Along {
    extent: usize,
    inner: usize,
}

impl Along {
    pub(super) fn new(shape: &[i32], axis: i32) -> Option<Self> {
        let axis = usize::try_from(axis).ok().filter(|&axis| axis < shape.len())?;
        Some(Self { extent: shape[axis] as usize, inner: size(&shape[axis + 1..]) })
    }

    pub(super) fn extent(self) -> usize {
        self.extent
    }

    /// Calls `f` with each line, and with where what it makes of that goes.
    pub(super) fn map<T: Copy, U: Copy + Default, E>(
        self,
        from: &[T],
        to: &mut [U],
        mut f: impl FnMut(&[T], &mut [U]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Self { extent, inner } = self;
        if to.is_empty() {
            return Ok(());
        }
        if inner == 1 {
            return from.chunks(extent).zip(to.chunks_mut(extent)).try_for_each(|(from, to)| f(from, to));
        }
        let (mut line, mut results) = (Vec::with_capacity(extent), vec![U::default(); extent]);
        for (from, to) in from.chunks(extent * inner).zip(to.chunks_mut(extent * inner)) {
            for column in 0..inner {
                line.clear();
                line.extend(from[column..].iter().step_by(inner));
                f(&line, &mut results)?;
                to[column..].iter_mut().step_by(inner).zip(&results).for_each(|(to, result)| *to = *result);
            }
        }
        Ok(())
    }
}
