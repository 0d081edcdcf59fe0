//! Whether two recorded graphs are the same program.

use std::ffi::c_int;
use std::fmt;

use mlx_rs::Array;

use crate::error::{BridgeError, check};
use crate::ffi::{self, Span};
use crate::{Aval, Primitive, arrays, is_traced};

/// Where two recorded graphs differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The primitive of the first graph with its parameters, such as `reshape[shape=(6,10)]`; the aval of a constant,
    /// with its value if it is one number.
    pub node: String,
    /// What the second graph has in its place.
    pub other: String,
    /// What differs, as a clause: `the static parameters of a node differ`.
    pub text: &'static str,
}

/// Compares two recorded graphs, of which `a_inputs[i]` corresponds to `b_inputs[i]`.
///
/// The graphs are the same program if corresponding nodes have the same primitive with the same static parameters, as many
/// operands, and equal constants. Extents may differ: this tells whether a function recorded on other shapes is still
/// the program that was compiled. A node whose parameters are unknown, such as a custom vjp, counts as different.
pub fn difference(
    a_outputs: &[Array],
    a_inputs: &[Array],
    b_outputs: &[Array],
    b_inputs: &[Array],
) -> Result<Option<Difference>, BridgeError> {
    for (of_a, of_b, text) in
        [(a_outputs, b_outputs, "the numbers of results differ"), (a_inputs, b_inputs, "the numbers of inputs differ")]
    {
        if of_a.len() != of_b.len() {
            return Ok(Some(Difference { node: of_a.len().to_string(), other: of_b.len().to_string(), text }));
        }
    }
    let [a_out, b_out, a_in, b_in] = [a_outputs, b_outputs, a_inputs, b_inputs].map(arrays::handles);
    let mut reason: c_int = 0;
    let mut nodes = [arrays::NONE; 2];
    let [a, b] = &mut nodes;
    // SAFETY: everything is live for the call.
    check(unsafe {
        ffi::tacit_difference(
            Span::new(&a_out),
            Span::new(&b_out),
            Span::new(&a_in),
            Span::new(&b_in),
            &raw mut reason,
            a,
            b,
        )
    })?;
    if reason == 0 {
        return Ok(None);
    }
    // SAFETY: with a reason the call has stored two handles that are ours.
    let [a, b] = nodes.map(|handle| unsafe { arrays::owned(handle) });
    Ok(Some(Difference { node: printed(&a)?, other: printed(&b)?, text: clause(reason) }))
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} became {}", self.text, self.node, self.other)
    }
}

/// The order of the C++ side's `Reason`.
fn clause(reason: c_int) -> &'static str {
    match reason {
        1 => "the graphs use their inputs in different places",
        2 => "the primitives of a node differ",
        3 => "the numbers of a node's operands differ",
        4 => "the results of a node differ",
        5 => "the static parameters of a node differ",
        _ => "the constants differ",
    }
}

/// The primitive that makes `array`, or its aval, with the value of a single number.
fn printed(array: &Array) -> Result<String, BridgeError> {
    if let Some(primitive) = Primitive::making(array)? {
        return Ok(primitive.to_string());
    }
    let aval = Aval::from(array);
    let number = array.size() == 1 && !is_traced(array);
    Ok(match number.then(|| array.try_item_cast::<f32>()) {
        Some(Ok(value)) => format!("{value} {aval}"),
        _ => aval.to_string(),
    })
}
