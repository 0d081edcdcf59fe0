//! Where the elements of an array lie that lies row by row.

use tacit_core::Aval;

/// The steps from element to element along each axis, in elements.
pub(super) fn steps(shape: &[i32]) -> Vec<usize> {
    let mut steps = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        steps[axis - 1] = steps[axis] * shape[axis] as usize;
    }
    steps
}

/// The bytes of an element.
pub(super) fn item(aval: &Aval) -> usize {
    Aval::new(&[1], aval.dtype).nbytes()
}
