//! MLX's derivatives, with those corrected or added that MLX has wrong or lacks.

use mlx_rs::Array;

use crate::arrays;
use crate::depth::checked;
use crate::error::{BoxError, BridgeError};
use crate::ffi::{self, Span};
use crate::function::Borrowed;

/// The gradients of `primals`, which are inexact: the products of `cotangents`, one for each result of `function`, with its Jacobian.
///
/// As MLX's own, but for what that differentiates wrongly, which `cpp/differentiable.cpp` writes as other ops; for results that are
/// there twice, or that a `stop_gradient` made; and for what a transform around this one goes on with, which has its derivative still.
///
/// # Errors
///
/// `function` fails or panics, or the cotangents do not fit its results.
pub fn vjp(
    primals: &[Array],
    cotangents: &[Array],
    function: &mut dyn FnMut(Vec<Array>) -> Result<Vec<Array>, BoxError>,
) -> Result<Vec<Array>, BridgeError> {
    let (primals, cotangents) = (arrays::handles(primals), arrays::handles(cotangents));
    let mut checked = checked(function);
    let mut function = Borrowed::new(&mut checked);
    // SAFETY: everything is live for the call.
    arrays::collected(|gradients| unsafe {
        ffi::tacit_vjp(Span::new(&primals), Span::new(&cotangents), function.table(), gradients)
    })
}

/// The tangents of the results of `function`, where `primals`, which are inexact, have these `tangents`.
///
/// What MLX has no rule for has the tangent that its gradient says, and so has what it has a wrong one for: `addmm` with factors,
/// and the greatest and the least of equal elements.
///
/// # Errors
///
/// `function` fails or panics, or the tangents do not fit the primals.
pub fn jvp(
    primals: &[Array],
    tangents: &[Array],
    function: &mut dyn FnMut(Vec<Array>) -> Result<Vec<Array>, BoxError>,
) -> Result<Vec<Array>, BridgeError> {
    let count = primals.len().min(tangents.len());
    let (primals, tangents) = (arrays::handles(&primals[..count]), arrays::handles(&tangents[..count]));
    let mut checked = checked(function);
    let mut function = Borrowed::new(&mut checked);
    // SAFETY: everything is live for the call, and there is a tangent for each primal.
    arrays::collected(|changes| unsafe {
        ffi::tacit_jvp(Span::new(&primals), Span::new(&tangents), function.table(), changes)
    })
}
