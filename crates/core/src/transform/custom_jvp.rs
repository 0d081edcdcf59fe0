//! Functions over trees with a jvp of their own.

use mlx_rs::{Array, ops};
use tacit_bridge::{BoxError, BridgeError, TangentError};

use super::Transformed;
use super::opened::{Opened, is_differentiable};
use super::rule::{InGraph, Rule, fitting, with_rule};
use crate::materialize::built;
use crate::tree;
use crate::values::Values;
use crate::{Aval, Error, Result, Tree, Value, trace};

/// Gives `f` a jvp of its own: `forward` takes the arguments and their tangents, and returns the tangents of the results,
/// of their shapes and dtypes.
///
/// A tangent of an argument without one, or of one that is not float, is zero. The tangent of an implicit argument is
/// that of the dense array it stands for. Both functions are intercepted.
///
/// A gradient is that of `forward` too, transposed, as in JAX: so `forward` must be linear in the tangents, of ops that have
/// a gradient. [`custom_vjp`](super::custom_vjp()) takes a gradient that is written down instead.
///
/// What `f` captures is a constant to every gradient: pass as an argument what is to have one. Pass also what a `vmap` around this maps:
/// where `f` captures that, the `vmap` is an error, and where `forward` does, the eval of the derivative is one.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::transform::{custom_jvp, jvp};
///
/// let mut rounded = custom_jvp(|x: Array| mlx_rs::ops::round(&x, None), |_: Array, tangent: Array| {
///     Ok::<_, tacit_core::Error>(tangent)
/// });
/// let (x, tangent) = (Array::from_f32(2.4), Array::from_f32(3.0));
/// let (_, change) = jvp(&x, &tangent, |x| rounded.call(x)?.dense())?;
/// assert_eq!(change.dense()?.item_exact::<f32>(), 3.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// A call fails where `f` fails. Where a derivative is taken, `forward` fails, or gives another
/// structure than that of the results or a tangent of another aval.
pub fn custom_jvp<A, O, E, B, F, G>(f: F, forward: G) -> Transformed<'static, A, O::With<Value>>
where
    A: Tree + 'static,
    O: Tree + 'static,
    E: Into<Error> + 'static,
    B: Into<Error> + 'static,
    F: Fn(A) -> Result<O, E> + 'static,
    G: Fn(A, A) -> Result<O, B> + 'static,
{
    with_rule::<A, O, _, _, fn(A, E, B) -> O>(f, forward, tacit_bridge::custom_function)
}

impl<A, O, E, B, F, G> Rule<F, G, fn(A, E, B) -> O>
where
    A: Tree,
    O: Tree,
    B: Into<Error>,
    G: Fn(A, A) -> Result<O, B>,
{
    fn tangents(&self, primals: &[Array], tangents: &[Array], argnums: &[usize]) -> Result<Vec<Array>> {
        let Values { values: args, def } = self.function.arguments::<A>(primals)?;
        let mut leaf_tangents = vec![None; primals.len()];
        for (&argnum, tangent) in argnums.iter().zip(tangents) {
            leaf_tangents[argnum] = Some(tangent.clone());
        }
        let mut leaf_tangents = leaf_tangents.into_iter();
        let mut operands = args.clone();
        for arg in &args {
            operands.push(tangent_of(arg, &mut leaf_tangents)?.into());
        }
        let structure = self.function.structure()?;
        let result_tangents = trace::run(&operands, |arrays| {
            let mut arrays = arrays.into_iter().map(Value::from);
            let primals = tree::unflatten(&def, arrays.by_ref().take(args.len()).collect())?;
            let tangents = (self.transform)(primals, tree::unflatten(&def, arrays.collect())?);
            fitting(
                tangents,
                &structure,
                [
                    "the tangents of a custom jvp do not fit the results",
                    "return the structure of the results with a tangent at each leaf",
                ],
            )
        })?;
        result_tangents.iter().map(Value::dense).collect()
    }

    /// The gradients of the primals: the vjp of the tangents, which are linear in those of the primals.
    fn transposed(&self, primals: &[Array], cotangents: &[Array], outputs: &[Array]) -> Result<Vec<Array>> {
        let chosen: Vec<usize> =
            (0..primals.len()).filter(|&i| is_differentiable(&primals[i]) && tacit_bridge::is_wanted(i)).collect();
        let zeros = primals.iter().map(|primal| Ok(ops::zeros_like(primal)?)).collect::<Result<Vec<Array>>>()?;
        let at: Vec<Value> = chosen.iter().map(|&i| Value::from(&zeros[i])).collect();
        let (float_cotangents, results): (Vec<Array>, Vec<usize>) = cotangents
            .iter()
            .zip(0..)
            .filter(|(_, result)| is_differentiable(&outputs[*result]))
            .map(|(cotangent, result)| (cotangent.clone(), result))
            .unzip();
        // What is linear has the same vjp everywhere, at zeros as well.
        let positions: Vec<usize> = (0..at.len()).collect();
        let transposed = Opened::from_values(&Values::from_arguments(&at)?)?.vjp(
            &positions,
            &float_cotangents,
            |tangents: Vec<Array>| {
                let changes = self.tangents(primals, &tangents, &chosen)?;
                results.iter().map(|&result| checked(result, &outputs[result], &changes[result])).collect()
            },
        )?;
        let mut gradients = zeros;
        for (&primal, gradient) in chosen.iter().zip(transposed) {
            gradients[primal] = gradient;
        }
        Ok(gradients)
    }
}

/// A tangent, which must be of its result's aval.
fn checked(result: usize, output: &Array, tangent: &Array) -> Result<Array> {
    let (expected, found) = (Aval::from(output), Aval::from(tangent));
    if expected == found {
        return Ok(tangent.clone());
    }
    let error = TangentError::Aval { function: NAME.to_owned(), result, expected, found };
    Err(BridgeError::Callback(Box::new(error)).into())
}

const NAME: &str = "the function";

/// The tangent of the dense array that a value stands for, given those of its leaves.
fn tangent_of(value: &Value, leaf_tangents: &mut impl Iterator<Item = Option<Array>>) -> Result<Array> {
    let opened = Opened::from_values(&Values::from_arguments(value)?)?;
    let (mut chosen, mut tangents) = (Vec::new(), Vec::new());
    for (position, leaf) in opened.leaves.iter().enumerate() {
        if let Some(tangent) = leaf_tangents.next().flatten().filter(|_| is_differentiable(leaf)) {
            chosen.push(position);
            tangents.push(tangent);
        }
    }
    match value {
        Value::Dense(_) if !chosen.is_empty() => Ok(tangents.swap_remove(0)),
        Value::Implicit(_) if !chosen.is_empty() => {
            let mut found = opened.jvp(&chosen, &tangents, |value: Value| Ok(vec![built(value)?]))?;
            Ok(found.swap_remove(0))
        }
        _ => {
            let aval = value.aval()?;
            Ok(ops::zeros_dtype(&aval.shape, aval.dtype)?)
        }
    }
}

impl<A, O, E, B, F, G> tacit_bridge::CustomFunction for InGraph<F, G, fn(A, E, B) -> O>
where
    A: Tree + 'static,
    O: Tree + 'static,
    E: Into<Error> + 'static,
    B: Into<Error> + 'static,
    F: Fn(A) -> Result<O, E> + 'static,
    G: Fn(A, A) -> Result<O, B> + 'static,
{
    fn name(&self) -> &'static str {
        NAME
    }

    fn forward(&self, args: &[Array]) -> Result<Vec<Array>, BoxError> {
        Ok(self.0.get()?.function.call(args)?)
    }

    fn vjp(&self, primals: &[Array], cotangents: &[Array], outputs: &[Array]) -> Option<Result<Vec<Array>, BoxError>> {
        let rule = self.0.get();
        Some(rule.and_then(|rule| rule.transposed(primals, cotangents, outputs)).map_err(Into::into))
    }

    fn jvp(&self, primals: &[Array], tangents: &[Array], argnums: &[usize]) -> Option<Result<Vec<Array>, BoxError>> {
        let rule = self.0.get();
        Some(rule.and_then(|rule| rule.tangents(primals, tangents, argnums)).map_err(Into::into))
    }
}
