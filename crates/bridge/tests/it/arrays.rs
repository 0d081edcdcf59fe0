//! What the tests share: arrays and their numbers.

use mlx_rs::{Array, Dtype};
use tacit_bridge::{Aval, Scope, Tape};

pub(crate) fn aval(shape: &[i32]) -> Aval {
    Aval::new(shape, Dtype::Float32)
}

pub(crate) fn vector(values: &[f32]) -> Array {
    Array::from_slice(values, &[values.len() as i32])
}

/// `1, 2, 3, ..` in a matrix.
pub(crate) fn matrix(rows: i32, columns: i32) -> Array {
    let values: Vec<f32> = (1..=rows * columns).map(|i| i as f32).collect();
    Array::from_slice(&values, &[rows, columns])
}

pub(crate) fn numbers(array: &Array) -> Vec<f32> {
    let array = array.contiguous().expect("makes rows");
    array.eval().expect("evaluates");
    array.as_slice::<f32>().to_vec()
}

/// The placeholders of a scope, one of each shape.
pub(crate) fn placeholders<const N: usize>(scope: &Scope, shapes: [&[i32]; N]) -> [Array; N] {
    shapes.map(|shape| scope.placeholder(&aval(shape)).expect("a shape"))
}

/// The names of the nodes in order.
pub(crate) fn names(tape: &Tape) -> Vec<&'static str> {
    (0..tape.len()).map(|node| tape.name(node).text()).collect()
}

/// The slots of a node's operands as numbers.
pub(crate) fn operands(tape: &Tape, node: usize) -> Vec<Option<usize>> {
    tape.operands(node).map(|slot| slot.map(tacit_bridge::Slot::index)).collect()
}

/// The slots of a node's results as numbers.
pub(crate) fn results(tape: &Tape, node: usize) -> Vec<usize> {
    tape.results(node).map(tacit_bridge::Slot::index).collect()
}
