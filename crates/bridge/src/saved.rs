//! The arrays that vjps of a recorded graph read, held in another form until the vjps run.

use mlx_rs::Array;

use crate::custom_function::{CalledAgain, Calls, apply};
use crate::error::{BoxError, BridgeError, check};
use crate::ffi::{self, EndsView, Span};
use crate::typed::{Class, Derivative};
use crate::{NameId, arrays};

/// The ends of a part of a graph.
#[derive(Default)]
pub struct Ends {
    /// What goes in: arrays of the graph's own, as [`apart`] makes them, or results of nodes.
    pub inputs: Vec<Array>,
    /// What comes out, likewise.
    pub outputs: Vec<Array>,
    /// Results of other parts. What depends on an input by way of these alone does not belong to this part.
    pub beyond: Vec<Array>,
}

/// Has the vjps between the inputs and the outputs of each part read of the float arrays there what `hold` makes of them.
///
/// The forward pass and its tangents stay what they are. `hold` is called while a gradient is taken, once for each array
/// that one reads, with the array and the cotangents that are there by then. It gives the array as the vjp is to see it,
/// which it computes [`after`] the cotangents, and what this is computed from: that is computed as soon as the array is, and
/// held in its place. Masks and other whole numbers that a vjp computes are computed in the forward pass from the arrays
/// themselves.
pub fn saved(
    hold: impl Fn(&[Array]) -> Result<Vec<Array>, BoxError> + Send + Sync + 'static,
    parts: &[Ends],
) -> Result<(), BridgeError> {
    let handles = parts.iter().map(|part| [&part.inputs, &part.outputs, &part.beyond].map(arrays::handles));
    let handles: Vec<_> = handles.collect();
    let views: Vec<EndsView> = handles
        .iter()
        .map(|[inputs, outputs, beyond]| EndsView {
            inputs: Span::new(inputs),
            outputs: Span::new(outputs),
            beyond: Span::new(beyond),
        })
        .collect();
    let hold = CalledAgain { name: "saved", function: hold };
    apply(hold, Calls::Any, &[], |table, held, _, _| {
        // SAFETY: as `apply` says of a call; the views and what they point to are live for it.
        unsafe { ffi::tacit_saved(table, held, kind, Span::new(&views)) }
    })
    .map(drop)
}

/// What the table says of a primitive: 1, its vjp reads no operand and no result; 2, the result has the elements of one
/// operand, each with its place, sign or dtype; 4, its vjp divides by something of what it reads, which must not become 0.
extern "C" fn kind(name: u32) -> u8 {
    let Some(row) = NameId(name).description() else { return 0 };
    let is_linear = row.derivative == Derivative::Linear;
    let is_view = is_linear && matches!(row.class, Class::Unary | Class::Moving | Class::Reshaping);
    u8::from(is_linear) | u8::from(is_view) << 1 | u8::from(row.derivative == Derivative::Divides) << 2
}

/// Takes out of the graph of `outputs`, which nothing differentiates any more, what [`saved`] put there for vjps that were not
/// taken.
pub fn settle(outputs: &[Array]) -> Result<(), BridgeError> {
    let handles = arrays::handles(outputs);
    // SAFETY: the handles are live for the call.
    check(unsafe { ffi::tacit_settle(Span::new(&handles)) })
}

/// The same arrays as nodes of their own.
pub fn apart(values: &[Array]) -> Result<Vec<Array>, BridgeError> {
    let handles = arrays::handles(values);
    // SAFETY: everything is live for the call.
    arrays::collected(|sink| unsafe { ffi::tacit_apart(Span::new(&handles), sink) })
}

/// The same values, from which no eval computes before `before` is computed.
pub fn after(values: &[Array], before: &[Array]) -> Result<Vec<Array>, BridgeError> {
    let (values, before) = (arrays::handles(values), arrays::handles(before));
    // SAFETY: everything is live for the call.
    arrays::collected(|sink| unsafe { ffi::tacit_after(Span::new(&values), Span::new(&before), sink) })
}
