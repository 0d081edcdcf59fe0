//! The strides, axes and sizes of row-major arrays.

use tacit_kernels::Axis;

/// The steps from element to element along each axis, in elements.
pub(super) fn steps(shape: &[i32]) -> Vec<usize> {
    let mut steps = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        steps[axis - 1] = steps[axis] * shape[axis] as usize;
    }
    steps
}

/// The axes of a copy of so many elements, with their steps in both arrays.
pub(super) fn axes(
    shape: &[i32],
    from: impl IntoIterator<Item = isize>,
    to: impl IntoIterator<Item = usize>,
) -> Vec<Axis> {
    let steps = from.into_iter().zip(to);
    shape.iter().zip(steps).map(|(&extent, (from, to))| Axis { extent: extent as usize, from, to }).collect()
}

/// The elements of an array of this shape.
pub(super) fn size(shape: &[i32]) -> usize {
    shape.iter().map(|&extent| extent as usize).product()
}
