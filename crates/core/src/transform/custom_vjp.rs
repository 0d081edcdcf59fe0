//! Functions over trees with a vjp of their own.

use mlx_rs::{Array, ops};
use tacit_bridge::BoxError;

use super::Transformed;
use super::opened::{Opened, is_differentiable, with_zeros};
use super::rule::{InGraph, Rule, fitting, with_rule};
use crate::materialize::built;
use crate::tree::{self, Open};
use crate::values::Values;
use crate::{Aval, Error, Result, Tree, Value, trace};

/// Gives `f` a vjp of its own: `backward` takes the arguments, the results and the cotangents of the results, and
/// returns one gradient for each argument, of its shape and dtype. Those of arguments that are not float are ignored.
///
/// Inside both functions every leaf is a dense array, and both are intercepted, so that a product with an implicit
/// argument uses its handlers in either pass. The gradient that `backward` returns for an implicit argument is that of
/// the dense array it stands for; it goes on to the float children through the array's own materialization, which
/// nothing builds unless the gradient of a child is asked for.
///
/// What `f` captures is a constant to every gradient: pass as an argument what is to have one. Pass also what a `vmap` around this maps:
/// where `f` captures that, the `vmap` is an error, and where `backward` does, the eval of the gradient is one.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::transform::{custom_vjp, grad};
///
/// // The identity, whose gradient is cut at one.
/// let mut clipped = custom_vjp(
///     |x: Array| Ok::<_, tacit_core::Error>(x),
///     |_: Array, _: Array, cotangent: Array| mlx_rs::ops::clip(&cotangent, (-1.0, 1.0)),
/// );
/// let mut gradient = grad(move |x: Array| -> tacit_core::Result<Array> {
///     Ok(clipped.call(x)?.dense()?.multiply(Array::from_f32(5.0))?)
/// });
/// assert_eq!(gradient.call(Array::from_f32(2.0))?.array()?.item_exact::<f32>(), 1.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// A call fails where `f` fails. Where a gradient is taken, `backward` fails, gives another structure
/// than that of the arguments or a gradient of another aval, or an implicit argument with float children refuses to be
/// materialized.
pub fn custom_vjp<A, O, E, B, F, G>(f: F, backward: G) -> Transformed<'static, A, O::With<Value>>
where
    A: Tree + 'static,
    O: Tree + 'static,
    E: Into<Error> + 'static,
    B: Into<Error> + 'static,
    F: Fn(A) -> Result<O, E> + 'static,
    G: Fn(A, O, O) -> Result<A, B> + 'static,
{
    with_rule::<A, O, _, _, fn(A, E, B) -> O>(f, backward, tacit_bridge::custom_vjp)
}

impl<A, O, E, B, F, G> Rule<F, G, fn(A, E, B) -> O>
where
    A: Tree,
    O: Tree,
    E: Into<Error>,
    B: Into<Error>,
    F: Fn(A) -> Result<O, E>,
    G: Fn(A, O, O) -> Result<A, B>,
{
    fn backward(&self, primals: &[Array], cotangents: &[Array], outputs: &[Array]) -> Result<Vec<Array>> {
        let Values { values: args, def } = self.function.arguments::<A>(primals)?;
        let structure = self.function.structure()?;
        let operands: Vec<Value> =
            args.iter().cloned().chain(outputs.iter().chain(cotangents).map(Value::from)).collect();
        let gradients = trace::run(&operands, |arrays| {
            let mut arrays = arrays.into_iter().map(Value::from);
            let primals = tree::unflatten(&def, arrays.by_ref().take(args.len()).collect())?;
            let outputs = tree::unflatten(&structure, arrays.by_ref().take(outputs.len()).collect())?;
            let gradients = (self.transform)(primals, outputs, tree::unflatten(&structure, arrays.collect())?);
            fitting(
                gradients,
                &def,
                [
                    "the gradients of a custom vjp do not fit the arguments",
                    "return the structure of the arguments with a gradient at each leaf",
                ],
            )
        })?;
        let mut opened = Vec::with_capacity(primals.len());
        for ((path, arg), gradient) in def.paths().iter().zip(&args).zip(gradients) {
            let gradient = gradient.dense()?;
            if !differentiable(arg) {
                for leaf in tree::leaves(arg, Open::Fully)? {
                    opened.push(ops::zeros_like(&leaf.dense()?)?);
                }
                continue;
            }
            let found = Aval::from(&gradient);
            if found != arg.aval()? {
                return Err(Error::invalid(
                    format!("a custom vjp gave {found} as the gradient of {}, which is {arg}", path.shown()),
                    "return a gradient of the argument's shape and dtype, zeros where there is none",
                ));
            }
            match arg {
                Value::Dense(_) => opened.push(gradient),
                Value::Implicit(_) => opened.extend(through_children(arg, gradient)?),
            }
        }
        Ok(opened)
    }
}

/// Whether a value has a float array in it.
fn differentiable(value: &Value) -> bool {
    match value {
        Value::Dense(array) => is_differentiable(array),
        Value::Implicit(array) => array.children().iter().any(|(_, child)| differentiable(child)),
    }
}

/// The gradients of an implicit array's leaves, given that of the array it stands for.
fn through_children(value: &Value, gradient: Array) -> Result<Vec<Array>> {
    let opened = Opened::from_values(&Values::from_arguments(value)?)?;
    let chosen: Vec<usize> = (0..opened.leaves.len()).filter(|&i| is_differentiable(&opened.leaves[i])).collect();
    // The policy is not asked, since the gradient is as large.
    let found = opened.vjp(&chosen, &[gradient], |value: Value| Ok(vec![built(value)?]))?;
    with_zeros(&opened.leaves, found)
}

impl<A, O, E, B, F, G> tacit_bridge::Differentiable for InGraph<F, G, fn(A, E, B) -> O>
where
    A: Tree + 'static,
    O: Tree + 'static,
    E: Into<Error> + 'static,
    B: Into<Error> + 'static,
    F: Fn(A) -> Result<O, E> + 'static,
    G: Fn(A, O, O) -> Result<A, B> + 'static,
{
    fn name(&self) -> &'static str {
        "the function"
    }

    fn forward(&self, args: &[Array]) -> Result<Vec<Array>, BoxError> {
        Ok(self.0.get()?.function.call(args)?)
    }

    fn backward(&self, primals: &[Array], cotangents: &[Array], outputs: &[Array]) -> Result<Vec<Array>, BoxError> {
        Ok(self.0.get()?.backward(primals, cotangents, outputs)?)
    }
}
