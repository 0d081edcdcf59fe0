//! `implicit(f)`: plain code on implicit arrays.

use crate::values::Values;
use crate::{Error, Explanation, Result, Tree, Value};

/// Makes a function on arrays take and return values, implicit ones included.
///
/// The function is plain mlx-rs code: it is recorded on placeholders, and each primitive on an implicit operand goes to
/// the handler registered for it, or materializes the operand where there is none. Its arguments are a [`Tree`] of
/// arrays, such as one array or a tuple, and so are its results; outside, the same trees hold values.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::{Value, implicit};
///
/// let x = Array::from_slice(&[1f32, 2.0], &[1, 2]);
/// let w = Array::from_slice(&[3f32, 4.0], &[1, 2]);
/// // `w` may be any implicit array; a dense one costs nothing.
/// let y = implicit(|[x, w]: [Array; 2]| x.matmul(w.t()))([x.into(), w.into()])?;
/// assert_eq!(y.to_string(), "f32[1,1]");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The returned function fails where `f` fails, where `f` evaluates or keeps an array of the trace, where handlers are
/// ambiguous or give a wrong aval, and where the policy or a type forbids a materialization.
pub fn implicit<A, O, E, F>(mut f: F) -> impl FnMut(A::With<Value>) -> Result<O::With<Value>>
where
    A: Tree,
    O: Tree,
    E: Into<Error>,
    F: FnMut(A) -> Result<O, E>,
{
    move |args| {
        let given = Values::of(&args)?;
        drop(args);
        given.run(&mut f)?.into_tree()
    }
}

/// Runs `f` on `args` and tells what happened: each node, who took it, what was built.
///
/// # Errors
///
/// As for [`implicit`].
pub fn explain<A, O, E, F>(mut f: F, args: A::With<Value>) -> Result<Explanation>
where
    A: Tree,
    O: Tree,
    E: Into<Error>,
    F: FnMut(A) -> Result<O, E>,
{
    let given = Values::of(&args)?;
    drop(args);
    Values::explained(&given.values, |arrays| f(given.with(arrays)?).map_err(Into::into))
}
