//! Directional derivatives.

use mlx_rs::{Array, ops};

use super::opened::{Opened, is_differentiable, with_zeros};
use crate::tree::{self, Arguments, beside};
use crate::values::{Values, never_called};
use crate::{Error, Result, Tree, Value};

/// The value of `f`, and its derivative in the direction of `tangents`.
///
/// `tangents` has the structure of the gradients of `primals`: arrays of the primals' shapes and dtypes, or
/// [`Gradient::Nothing`](crate::tree::Gradient::Nothing) for no change. Those of leaves that are not float are ignored. The derivative has the structure
/// of the results, with dense leaves. A primitive that MLX has no rule for has the derivative that its gradient says.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::transform::jvp;
/// use tacit_core::tree::Gradient;
///
/// let (x, y) = (Array::from_f32(3.0), Array::from_f32(5.0));
/// let tangents = (Array::from_f32(1.0), Gradient::Nothing);
/// let (value, change) = jvp((&x, &y), tangents, |(x, y)| x.multiply(y))?;
/// assert_eq!(value.dense()?.item_exact::<f32>(), 15.0);
/// assert_eq!(change.dense()?.item_exact::<f32>(), 5.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// `f` fails, no argument is float, or the tangents do not fit the primals.
pub fn jvp<A: Arguments, O: Tree, E: Into<Error>>(
    primals: A,
    tangents: impl Arguments,
    mut f: impl FnMut(A::Arrays) -> Result<O, E>,
) -> Result<(O::With<Value>, O::With<Value>)> {
    let opened = Opened::from_values(&Values::from_arguments(&primals)?)?;
    let (chosen, directions) = directions(&tangents, &opened)?;
    drop((primals, tangents));
    let mut result = None;
    let changes = opened.jvp(&chosen, &directions, |args: <A::Arrays as Tree>::With<Value>| {
        let results = Values::from_arguments(&args)?.run(&mut f)?;
        let dense = results.dense()?;
        result = Some((results, dense.clone()));
        Ok(dense.into_iter().filter(is_differentiable).collect())
    })?;
    let (results, dense) = result.ok_or_else(never_called)?;
    let changes = with_zeros(&dense, changes)?.into_iter().map(Value::from).collect();
    let changes = tree::unflatten(&results.def, changes)?;
    Ok((results.into_tree()?, changes))
}

/// The leaves that have a tangent, and the tangents.
fn directions(tangents: &impl Arguments, opened: &Opened) -> Result<(Vec<usize>, Vec<Array>)> {
    let leaves: Vec<Value> = opened.leaves.iter().map(Value::from).collect();
    let words = [
        "the tangents do not fit the primals",
        "tangent",
        "give one tangent for each leaf, of its shape and dtype, or `Gradient::Nothing`",
    ];
    let found = beside((&leaves, &opened.def), tangents, words)?;
    let (chosen, given): (Vec<usize>, Vec<Array>) = (0..)
        .zip(found)
        .filter_map(|(position, tangent)| Some((position, tangent?)))
        .filter(|(position, _)| is_differentiable(&opened.leaves[*position]))
        .unzip();
    if chosen.is_empty() {
        // MLX wants one primal at least.
        let Some(position) = opened.leaves.iter().position(is_differentiable) else {
            return Err(Error::invalid("no argument is float", "differentiate with respect to a float array"));
        };
        return Ok((vec![position], vec![ops::zeros_like(&opened.leaves[position])?]));
    }
    Ok((chosen, given))
}
