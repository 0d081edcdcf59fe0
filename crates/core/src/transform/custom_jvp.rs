//! Functions over trees with a jvp of their own.

use mlx_rs::{Array, ops};
use tacit_bridge::BoxError;

use super::Transformed;
use super::custom_vjp::built;
use super::opened::{Opened, is_differentiable};
use super::rule::{InGraph, Rule, fitting, with_rule};
use crate::tree;
use crate::values::Values;
use crate::{Error, Result, Tree, Value, trace};

/// Gives `f` a jvp of its own: `forward` takes the arguments and their tangents, and returns the tangents of the results,
/// of their shapes and dtypes.
///
/// A tangent of an argument without one, or of one that is not float, is zero. The tangent of an implicit argument is
/// that of the dense array it stands for. Both functions are intercepted. A gradient is that of `f`: see
/// [`custom_vjp`](super::custom_vjp()) for one of its own.
///
/// What `f` captures is a constant to every gradient: pass as an argument what is to have one.
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
/// A call fails where `f` fails. Where a jvp is taken, `forward` fails, or gives another structure than
/// that of the results or a tangent of another aval.
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
        let mut given = vec![None; primals.len()];
        for (&argnum, tangent) in argnums.iter().zip(tangents) {
            given[argnum] = Some(tangent.clone());
        }
        let mut given = given.into_iter();
        let mut operands = args.clone();
        for arg in &args {
            operands.push(tangent_of(arg, &mut given)?.into());
        }
        let made = self.function.made()?;
        let found = trace::run(&operands, |arrays| {
            let mut arrays = arrays.into_iter().map(Value::from);
            let primals = tree::unflatten(&def, arrays.by_ref().take(args.len()).collect())?;
            let tangents = (self.own)(primals, tree::unflatten(&def, arrays.collect())?);
            fitting(
                tangents,
                &made,
                [
                    "the tangents of a custom jvp do not fit the results",
                    "return the structure of the results with a tangent at each leaf",
                ],
            )
        })?;
        found.iter().map(Value::dense).collect()
    }
}

/// The tangent of the dense array that a value stands for, given those of its leaves.
fn tangent_of(value: &Value, given: &mut impl Iterator<Item = Option<Array>>) -> Result<Array> {
    let opened = Opened::of(&Values::of(value)?)?;
    let (mut chosen, mut tangents) = (Vec::new(), Vec::new());
    for (position, leaf) in opened.leaves.iter().enumerate() {
        if let Some(tangent) = given.next().flatten().filter(|_| is_differentiable(leaf)) {
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
        "the function"
    }

    fn forward(&self, args: &[Array]) -> Result<Vec<Array>, BoxError> {
        Ok(self.0.get()?.function.call(args)?)
    }

    fn jvp(&self, primals: &[Array], tangents: &[Array], argnums: &[usize]) -> Option<Result<Vec<Array>, BoxError>> {
        let rule = self.0.get();
        Some(rule.and_then(|rule| rule.tangents(primals, tangents, argnums)).map_err(Into::into))
    }
}
