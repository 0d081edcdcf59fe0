//! `implicit(args, f)`: plain code on implicit arrays.

use crate::tree::Arguments;
use crate::values::Values;
use crate::{Error, Explanation, Result, Tree, Value};

/// Runs a function on arrays with values, implicit ones included.
///
/// The function is plain mlx-rs code: it is recorded on placeholders, and each primitive on an implicit operand goes to
/// the handler registered for it, or materializes the operand where there is none. It takes the structure of its
/// [`Arguments`] with an array for each value, and returns a [`Tree`] of arrays; outside, that tree holds values.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::implicit;
///
/// let x = Array::from_slice(&[1f32, 2.0], &[1, 2]);
/// let w = Array::from_slice(&[3f32, 4.0], &[1, 2]);
/// // `w` may be any implicit array; a dense one costs nothing.
/// let y = implicit((&x, &w), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(y.to_string(), "f32[1,1]");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// `f` fails, evaluates an array of the trace, or keeps one that is implicit or that its results do not depend on; handlers
/// are ambiguous or give a wrong aval; the policy or a type forbids a materialization.
pub fn implicit<A, O, E>(args: A, f: impl FnOnce(A::Arrays) -> Result<O, E>) -> Result<O::With<Value>>
where
    A: Arguments,
    O: Tree,
    E: Into<Error>,
{
    let given = Values::of(&args)?;
    drop(args);
    given.run(f)?.into_tree()
}

/// Runs a function as [`implicit`] does and tells what happened: each node, who took it, what was built.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::explain;
///
/// let told = explain(Array::from_f32(1.0), |x| x.exp())?;
/// assert_eq!(told.equations[0].primitive, "exp");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As for [`implicit`].
pub fn explain<A, O, E>(args: A, f: impl FnOnce(A::Arrays) -> Result<O, E>) -> Result<Explanation>
where
    A: Arguments,
    O: Tree,
    E: Into<Error>,
{
    let given = Values::of(&args)?;
    drop(args);
    Values::explained(&given.values, |arrays| f(given.with(arrays)?).map_err(Into::into))
}
