//! Copies between arrays that lie in different orders.

use crate::{
    KernelError,
    machine::threads_for,
    matrix::{check_length, check_size},
    threads,
};

/// One axis of what is copied: its extent, and the steps from element to element in both arrays, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// The number of elements.
    pub extent: usize,
    /// The step in the array that is read: 0 repeats an element, and a negative one goes back.
    pub from: isize,
    /// The step in the array that is written, which is not 0 where there are several elements.
    pub to: usize,
}

/// A copy of some elements of one array to some of another, as they lie in both.
///
/// A transpose, a slice, a broadcast and one part of a concatenation are such copies.
///
/// ```
/// use tacit_kernels::{Axis, StridedCopy};
///
/// // The transpose of [[1, 2, 3], [4, 5, 6]].
/// let axes = [Axis { extent: 3, from: 1, to: 2 }, Axis { extent: 2, from: 3, to: 1 }];
/// let mut transposed = [0; 6];
/// StridedCopy::new(&axes, 0, 0).run(1, &[1, 2, 3, 4, 5, 6], &mut transposed)?;
/// assert_eq!(transposed, [1, 4, 2, 5, 3, 6]);
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StridedCopy {
    axes: Vec<Axis>,
    /// The first element in both arrays.
    from: usize,
    to: usize,
}

/// Whether both arrays go on after an inner axis as the outer one says.
fn goes_on(outer: &Axis, inner: &Axis) -> bool {
    let from = isize::try_from(inner.extent).ok().and_then(|extent| inner.from.checked_mul(extent));
    from == Some(outer.from)
        && inner.to.checked_mul(inner.extent) == Some(outer.to)
        && outer.extent.checked_mul(inner.extent).is_some()
}

/// What an element costs, about.
const CYCLES: f64 = 1.0;

impl StridedCopy {
    /// A copy of the elements along these axes, the outermost first, from those at `from` and `to` on.
    #[must_use]
    pub fn new(axes: &[Axis], from: usize, to: usize) -> Self {
        let mut simple: Vec<Axis> = Vec::with_capacity(axes.len());
        for &axis in axes.iter().filter(|axis| axis.extent != 1) {
            match simple.last_mut() {
                // Both arrays go on after the inner axis where it ends.
                Some(outer) if goes_on(outer, &axis) => *outer = Axis { extent: outer.extent * axis.extent, ..axis },
                _ => simple.push(axis),
            }
        }
        Self { axes: simple, from, to }
    }

    /// Where the elements begin in the array that is read, if they lie there one after the other, as in the one that is written.
    #[must_use]
    pub fn as_slice(&self) -> Option<usize> {
        let plain = match self.axes[..] {
            [] => true,
            [axis] => axis.from == 1 && axis.to == 1,
            _ => false,
        };
        (plain && self.to == 0).then_some(self.from)
    }

    /// Copies elements of `item` bytes: 1, 2, 4 or 8. The other elements of `to` stay.
    ///
    /// # Errors
    /// Items of another size, or elements that are not in the arrays.
    pub fn run(&self, item: usize, from: &[u8], to: &mut [u8]) -> Result<(), KernelError> {
        match item {
            1 => self.run_of::<1>(from, to),
            2 => self.run_of::<2>(from, to),
            4 => self.run_of::<4>(from, to),
            _ => {
                check_size("item", item, 8, "an element of 1, 2, 4 or 8 bytes")?;
                self.run_of::<8>(from, to)
            }
        }
    }

    fn run_of<const N: usize>(&self, from: &[u8], to: &mut [u8]) -> Result<(), KernelError> {
        let ((from, _), (to, _)) = (from.as_chunks::<N>(), to.as_chunks_mut::<N>());
        if self.axes.iter().any(|axis| axis.extent == 0) {
            return Ok(());
        }
        self.check(from.len(), to.len())?;
        let elements: usize = self.axes.iter().map(|axis| axis.extent).product();
        let threads = threads_for(elements as f64 * CYCLES);
        let Some((outer, inner)) = self.axes.split_first() else {
            to[self.to] = from[self.from];
            return Ok(());
        };
        let to = &mut to[self.to..];
        // What an index of the outermost axis writes lies apart from what others do.
        let apart = inner.iter().map(|axis| (axis.extent - 1) * axis.to).sum::<usize>() < outer.to;
        if threads <= 1 || !apart {
            copy(&self.axes, from, self.from as isize, to);
            return Ok(());
        }
        let step = outer.extent.div_ceil(4 * threads);
        let parts = to.chunks_mut(step * outer.to).take(outer.extent.div_ceil(step)).enumerate();
        threads::for_each_part(threads, parts, &|(part, to): (usize, &mut [[u8; N]])| {
            let first = part * step;
            let part_axis = Axis { extent: step.min(outer.extent - first), ..*outer };
            let axes: Vec<Axis> = std::iter::once(part_axis).chain(inner.iter().copied()).collect();
            copy(&axes, from, self.from as isize + first as isize * outer.from, to);
        });
        Ok(())
    }

    /// Whether every element is in both arrays.
    fn check(&self, from: usize, to: usize) -> Result<(), KernelError> {
        // Wider than what memory has.
        let (mut least, mut most, mut last) = (self.from as i128, self.from as i128, self.to as i128);
        for axis in &self.axes {
            // Elements that are written one over the other.
            check_size("axis.to", axis.to.min(1), 1, "a step to each element that is written")?;
            let reach = (axis.extent as i128 - 1).saturating_mul(axis.from as i128);
            least = least.saturating_add(reach.min(0));
            most = most.saturating_add(reach.max(0));
            last = last.saturating_add((axis.extent as i128 - 1).saturating_mul(axis.to as i128));
        }
        let help = "as many elements as the copy reaches";
        let length = |places: i128| usize::try_from(places).unwrap_or(usize::MAX);
        let before = length(least.min(0).saturating_neg());
        check_size(
            "from",
            self.from,
            self.from.saturating_add(before),
            "a place from which no step back leaves the array",
        )?;
        let (read, written) = (length(most + 1), length(last + 1));
        check_length("from", from.min(read), read, help)?;
        check_length("to", to.min(written), written, help)
    }
}

/// Copies what the axes reach from `first` on to the beginning of `to`.
fn copy<T: Copy>(axes: &[Axis], from: &[T], first: isize, to: &mut [T]) {
    let Some((axis, inner)) = axes.split_first() else {
        to[0] = from[first as usize];
        return;
    };
    if !inner.is_empty() {
        for i in 0..axis.extent {
            copy(inner, from, first + i as isize * axis.from, &mut to[i * axis.to..]);
        }
        return;
    }
    match (axis.from, axis.to) {
        (1, 1) => to[..axis.extent].copy_from_slice(&from[first as usize..][..axis.extent]),
        (0, 1) => to[..axis.extent].fill(from[first as usize]),
        (step, to_step) => {
            for (i, to) in to.iter_mut().step_by(to_step.max(1)).take(axis.extent).enumerate() {
                *to = from[(first + i as isize * step) as usize];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Axis, StridedCopy};

    /// The same, an element at a time.
    fn plainly(axes: &[Axis], from_first: usize, to_first: usize, from: &[u32], to: &mut [u32]) {
        let total: usize = axes.iter().map(|axis| axis.extent).product();
        for index in 0..total {
            let (mut rest, mut at, mut place) = (index, from_first as isize, to_first);
            for axis in axes.iter().rev() {
                let i = rest % axis.extent;
                rest /= axis.extent;
                at += i as isize * axis.from;
                place += i * axis.to;
            }
            to[place] = from[at as usize];
        }
    }

    #[test]
    fn copies_go_where_each_element_does() {
        let axis = |extent, from, to| Axis { extent, from, to };
        // Long enough for threads.
        let (rows, columns) = if cfg!(miri) { (20, 30) } else { (300, 700) };
        let all = rows * columns;
        let cases: [(&[Axis], usize, usize); 8] = [
            (&[], 3, 1),
            (&[axis(5, 1, 1)], 2, 0),
            (&[axis(3, 4, 4), axis(4, 1, 1)], 0, 0),
            (&[axis(6, 1, 5), axis(5, 6, 1)], 0, 0),
            (&[axis(4, -1, 1)], 9, 2),
            (&[axis(3, 0, 7), axis(7, 1, 1)], 5, 0),
            (&[axis(2, 30, 40), axis(3, 10, 10), axis(5, 2, 1)], 1, 4),
            (&[axis(rows, 1, columns), axis(columns, rows as isize, 1)], 0, 0),
        ];
        let from: Vec<u32> = (0..all as u32).collect();
        for (axes, from_first, to_first) in cases {
            let (mut expected, mut found) = (vec![7_u32; all], vec![7_u32; all]);
            plainly(axes, from_first, to_first, &from, &mut expected);
            let bytes: Vec<u8> = from.iter().flat_map(|value| value.to_ne_bytes()).collect();
            let mut written: Vec<u8> = found.iter().flat_map(|value| value.to_ne_bytes()).collect();
            StridedCopy::new(axes, from_first, to_first).run(4, &bytes, &mut written).expect("it fits");
            for (value, bytes) in found.iter_mut().zip(written.as_chunks::<4>().0) {
                *value = u32::from_ne_bytes(*bytes);
            }
            assert_eq!(found, expected, "{axes:?}");
        }
    }

    #[test]
    fn what_is_outside_is_an_error() {
        let axes = [Axis { extent: 3, from: 1, to: 1 }];
        assert!(StridedCopy::new(&axes, 2, 0).run(1, &[0; 4], &mut [0; 3]).is_err());
        assert!(StridedCopy::new(&axes, 0, 1).run(1, &[0; 4], &mut [0; 3]).is_err());
        assert!(StridedCopy::new(&[Axis { extent: 3, from: 1, to: 0 }], 0, 0).run(1, &[0; 4], &mut [0; 3]).is_err());
        assert!(StridedCopy::new(&[Axis { extent: 3, from: -1, to: 1 }], 1, 0).run(1, &[0; 4], &mut [0; 3]).is_err());
        assert!(StridedCopy::new(&axes, 0, 0).run(3, &[0; 9], &mut [0; 9]).is_err());
    }
}
