//! The leading rows of a function's results, computed from the leading rows of its inputs alone.
//!
//! The function is recorded on placeholders of the full extent, so that it sees the shapes that it was written for. Its
//! graph is then built again on the cut inputs, node by node, while [`rule`] follows the axis on which the rows lie.
//! Constants that the function made for the full extent are cut with the rest. What comes out is therefore the leading
//! rows of the full results, or an error that names the node at which rows mix.

mod reshape;
mod rule;

use mlx_rs::Array;
use mlx_rs::ops::indexing::{ArrayIndex, ArrayIndexOp, TryIndexOp};
use tacit_bridge::{Scope, Tape};

use crate::trace::Recording;
use crate::{Aval, Error, Primitive, Result};

/// How many of the rows are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) actual: i32,
    pub(super) upper: i32,
}

impl Extent {
    /// Whether an input of this aval has the rows.
    pub(super) fn is_of(self, aval: &Aval) -> bool {
        aval.shape.first() == Some(&self.upper)
    }

    /// The aval of an input as it is cut.
    pub(super) fn of(self, aval: &Aval) -> Aval {
        let mut cut = aval.clone();
        if self.is_of(aval) {
            cut.shape[0] = self.actual;
        }
        cut
    }

    /// The leading rows of an input.
    pub(super) fn rows(self, array: &Array) -> Result<Array> {
        leading_part(array, 0, self.actual)
    }
}

/// Where the rows of an array lie: each takes `inner` successive indices of `axis`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    axis: usize,
    inner: i32,
}

/// An array of the graph that is built: the leading rows, or the whole where it has none.
#[derive(Clone)]
struct Held {
    array: Array,
    place: Option<Place>,
}

/// Calls `f` on inputs of the full extent and gives the leading rows of its results, built on `inputs`, whose rows are
/// cut. `others` are what `f` uses beside its arguments.
pub(super) fn leading(
    extent: Extent,
    described: &[&Aval],
    inputs: Vec<Array>,
    others: &[Array],
    f: impl FnOnce(&[Array]) -> Result<Vec<Array>>,
) -> Result<Vec<Array>> {
    let scope = Scope::new()?;
    let mut boundaries = others.to_vec();
    let mut placeholders = Vec::new();
    let mut held = Vec::new();
    let mut full = Vec::with_capacity(inputs.len());
    for (input, aval) in inputs.into_iter().zip(described) {
        if extent.is_of(aval) {
            let placeholder = scope.placeholder(aval)?;
            full.push(placeholder.clone());
            placeholders.push(placeholder);
            held.push(Some(Held { array: input, place: Some(Place { axis: 0, inner: 1 }) }));
        } else {
            full.push(input.clone());
            boundaries.push(input);
        }
    }
    let outputs = {
        let _recording = Recording::enter();
        f(&full)?
    };
    let avals = placeholders.iter().map(Aval::from).collect();
    let tape = Tape::walk(&outputs, &placeholders, &boundaries)?;
    drop((full, placeholders));
    held.resize_with(tape.slots(), || None);
    for node in 0..tape.len() {
        let made = cut_node(extent, &tape, node, &held)?;
        for (slot, result) in tape.results(node).zip(made) {
            held[slot.index()] = Some(result);
        }
    }
    let slots: Vec<_> = tape.outputs().collect();
    drop(tape);
    // One array may be returned twice, and has one slot then.
    let cut = outputs.into_iter().zip(slots).map(|(output, slot)| {
        slot.and_then(|slot| held[slot.index()].as_ref()).map_or(output, |held| held.array.clone())
    });
    let cut = cut.collect();
    drop(held);
    match scope.live() {
        0 => Ok(cut),
        count => Err(Error::PlaceholderLeaked { count, avals }),
    }
}

fn cut_node(extent: Extent, tape: &Tape, node: usize, held: &[Option<Held>]) -> Result<Vec<Held>> {
    let primitive = Primitive::new(tape.primitive(node)?);
    let mut operands = Vec::with_capacity(tape.arity(node));
    let mut recorded = Vec::with_capacity(tape.arity(node));
    for (operand, slot) in tape.operands(node).enumerate() {
        let array = tape.operand(node, operand)?;
        recorded.push(Aval::from(&array));
        operands.push(match slot.and_then(|slot| held[slot.index()].clone()) {
            Some(held) => held,
            None => Held { array, place: None },
        });
    }
    let results = (0..tape.results(node).len()).map(|i| Ok(Aval::from(&tape.result(node, i)?)));
    let node =
        rule::Node { extent, primitive: &primitive, operands, recorded, results: results.collect::<Result<_>>()? };
    node.cut()?.ok_or_else(|| node.mixes())
}

/// The first `count` indices along an axis.
fn leading_part(array: &Array, axis: usize, count: i32) -> Result<Array> {
    if array.shape()[axis] == count {
        return Ok(array.clone());
    }
    let mut indices: Vec<ArrayIndexOp<'_>> = (0..axis).map(|_| (..).index_op()).collect();
    indices.push((..count).index_op());
    Ok(array.try_index(indices.as_slice())?)
}
