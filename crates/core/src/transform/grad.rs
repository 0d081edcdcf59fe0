//! Gradients of a loss, and of any function for given cotangents.

use mlx_rs::{Array, Dtype};

use super::opened::{Opened, is_differentiable};
use super::{Transformed, Wrt};
use crate::tree::{Arguments, Gradient, check_aval};
use crate::values::{Values, never_called};
use crate::{Error, Result, Tree, Value};

/// The results of a function and the gradients of its arguments.
pub type ValueAndGradient<A, O> = (<O as Tree>::With<Value>, <A as Tree>::With<Gradient>);

/// The gradient of a function with respect to every float array among its arguments that is not frozen.
///
/// The first leaf of the result is the loss: one float element. The arguments may hold implicit arrays, whose gradients
/// have the arrays' own structure: gradients at float children, nothing at the others.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::transform::grad;
///
/// let mut gradient = grad(|(x, y): (Array, Array)| x.multiply(x.clone())?.multiply(y)?.sum(None));
/// let (dx, dy) = gradient.call((Array::from_f32(3.0), Array::from_f32(5.0)))?;
/// assert_eq!(dx.array()?.item_exact::<f32>(), 30.0);
/// assert_eq!(dy.array()?.item_exact::<f32>(), 9.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// A call fails where `f` fails, where the loss is not one float element, and where no argument is float.
pub fn grad<'f, A: Tree, O: Tree, E: Into<Error>>(
    f: impl FnMut(A) -> Result<O, E> + 'f,
) -> Transformed<'f, A, A::With<Gradient>> {
    grad_wrt(Wrt::All, f)
}

/// The value of a function, and its gradient with respect to every float array among its arguments that is not frozen.
///
/// The first leaf of the result is the loss; the others come back as they are, and nothing is differentiated through
/// them.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::transform::value_and_grad;
///
/// let mut step = value_and_grad(|x: Array| Ok::<_, tacit_core::Error>((x.square()?, x.exp()?)));
/// let ((loss, exp), gradient) = step.call(Array::from_f32(3.0))?;
/// assert_eq!(loss.dense()?.item_exact::<f32>(), 9.0);
/// assert_eq!(exp.to_string(), "f32[]");
/// assert_eq!(gradient.array()?.item_exact::<f32>(), 6.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As for [`grad`].
pub fn value_and_grad<'f, A: Tree, O: Tree, E: Into<Error>>(
    f: impl FnMut(A) -> Result<O, E> + 'f,
) -> Transformed<'f, A, ValueAndGradient<A, O>> {
    value_and_grad_wrt(Wrt::All, f)
}

/// [`grad`] with respect to the arrays that `wrt` chooses.
///
/// # Errors
///
/// As for [`grad`]; and `wrt` chooses no float array, or an argument that is not there.
pub fn grad_wrt<'f, A: Tree, O: Tree, E: Into<Error>>(
    wrt: impl Into<Wrt>,
    mut f: impl FnMut(A) -> Result<O, E> + 'f,
) -> Transformed<'f, A, A::With<Gradient>> {
    let wrt = wrt.into();
    Transformed::new(move |arguments| Ok(differentiated(&wrt, arguments, &mut f)?.1))
}

/// [`value_and_grad`] with respect to the arrays that `wrt` chooses.
///
/// # Errors
///
/// As for [`grad_wrt`].
pub fn value_and_grad_wrt<'f, A: Tree, O: Tree, E: Into<Error>>(
    wrt: impl Into<Wrt>,
    mut f: impl FnMut(A) -> Result<O, E> + 'f,
) -> Transformed<'f, A, ValueAndGradient<A, O>> {
    let wrt = wrt.into();
    Transformed::new(move |arguments| differentiated(&wrt, arguments, &mut f))
}

/// The results of `f`, and the gradients of the arguments that `wrt` chooses.
fn differentiated<A: Tree, O: Tree, E: Into<Error>>(
    wrt: &Wrt,
    arguments: Values,
    f: &mut impl FnMut(A) -> Result<O, E>,
) -> Result<ValueAndGradient<A, O>> {
    let opened = Opened::from_values(&arguments)?;
    let chosen = wrt.choose(&arguments, &opened)?;
    drop(arguments);
    let mut result = None;
    // The results stay beside the transform: through what it returns no outer transform could differentiate.
    let gradients = opened.vjp(&chosen, &[Array::from_f32(1.0)], |args: A::With<Value>| {
        let results = Values::from_arguments(&args)?.run(&mut *f)?;
        let loss = loss(&results)?;
        result = Some(results);
        Ok(vec![loss])
    })?;
    Ok((result.ok_or_else(never_called)?.into_tree()?, opened.gradients(&chosen, gradients)?))
}

/// The value of `f`, and the product of `cotangents` with its Jacobian.
///
/// `cotangents` has the structure of the results, with an array for each; those of results that are not float are
/// ignored. An implicit result has the cotangent of the dense array that it stands for.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::transform::vjp;
///
/// let x = Array::from_slice(&[1f32, 2.0], &[2]);
/// let cotangent = Array::from_slice(&[1f32, 10.0], &[2]);
/// let (_, gradient) = vjp(&x, &cotangent, |x| x.square())?;
/// assert_eq!(gradient.array()?.as_slice::<f32>(), [2.0, 40.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// `f` fails, no argument or no result is float, or the cotangents do not fit the results.
pub fn vjp<A: Arguments, C: Arguments<Arrays: Tree<With<Value> = O::With<Value>>>, O: Tree, E: Into<Error>>(
    args: A,
    cotangents: C,
    mut f: impl FnMut(A::Arrays) -> Result<O, E>,
) -> Result<ValueAndGradient<A::Arrays, O>> {
    let arguments = Values::from_arguments(&args)?;
    let opened = Opened::from_values(&arguments)?;
    let chosen = Wrt::All.choose(&arguments, &opened)?;
    let Values { values, def: cotangents_def } = Values::from_arguments(&cotangents)?;
    drop((args, arguments, cotangents));
    let cotangents = values.iter().map(Value::dense).collect::<Result<Vec<_>>>()?;
    let float: Vec<Array> = cotangents.iter().filter(|cotangent| is_differentiable(cotangent)).cloned().collect();
    let mut outputs = None;
    let gradients = opened.vjp(&chosen, &float, |args: <A::Arrays as Tree>::With<Value>| {
        let results = Values::from_arguments(&args)?.run(&mut f)?;
        if let Some(difference) = results.def.difference(&cotangents_def) {
            return Err(Error::invalid(
                format!("the cotangents do not fit the results: {difference}"),
                "give one cotangent for each result, in the structure of the results",
            ));
        }
        let dense = results.dense()?;
        for ((path, result), cotangent) in results.def.paths().iter().zip(&dense).zip(&cotangents) {
            check_aval(
                "cotangent",
                path,
                &result.into(),
                cotangent,
                "give each cotangent the shape and dtype of its result",
            )?;
        }
        outputs = Some(results);
        let float: Vec<Array> = dense.into_iter().filter(is_differentiable).collect();
        if float.is_empty() {
            return Err(Error::invalid("no result is float", "differentiate a function with float results"));
        }
        Ok(float)
    })?;
    Ok((outputs.ok_or_else(never_called)?.into_tree()?, opened.gradients(&chosen, gradients)?))
}

/// The first leaf, which must be one float element, as the scalar that MLX differentiates.
fn loss(results: &Values) -> Result<Array> {
    let Some(first) = results.values.first() else {
        return Err(Error::invalid("the function returns no loss", "return one float element first"));
    };
    let loss = first.dense()?;
    if loss.size() != 1 || !loss.dtype().is_float() {
        return Err(Error::invalid(
            format!("the loss is {first}, which is not one float element"),
            "sum or average it, or use `vjp` with a cotangent of its shape",
        ));
    }
    // The cotangent is given before the loss and its dtype are known.
    Ok(loss.reshape(&[])?.as_dtype(Dtype::Float32)?)
}
