//! `implicit(f)`: plain code on implicit arrays.

use mlx_rs::Array;

use crate::positional::Arrays;
use crate::{Error, Explanation, Result, trace};

/// Makes a function on arrays take and return values, implicit ones included.
///
/// The function is plain mlx-rs code: it is recorded on placeholders, and each primitive on an implicit operand goes to
/// the handler registered for it, or materializes the operand where there is none. Its arguments are one array, an
/// array or a list of arrays, or a tuple of arrays; so are its results.
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
pub fn implicit<A, O, E, F>(mut f: F) -> impl FnMut(A::Values) -> Result<O::Values>
where
    A: Arrays,
    O: Arrays,
    E: Into<Error>,
    F: FnMut(A) -> Result<O, E>,
{
    move |args| {
        let results = trace::run(&A::into_values(args), |arrays| call(&mut f, arrays))?;
        O::from_values(results)
    }
}

/// Runs `f` on `args` and tells what happened: each node, who took it, what was built.
///
/// # Errors
///
/// As for [`implicit`].
pub fn explain<A, O, E, F>(mut f: F, args: A::Values) -> Result<Explanation>
where
    A: Arrays,
    O: Arrays,
    E: Into<Error>,
    F: FnMut(A) -> Result<O, E>,
{
    let (_, explanation) = trace::run_explained(&A::into_values(args), |arrays| call(&mut f, arrays))?;
    Ok(explanation)
}

fn call<A, O, E, F>(f: &mut F, arrays: Vec<Array>) -> Result<Vec<Array>>
where
    A: Arrays,
    O: Arrays,
    E: Into<Error>,
    F: FnMut(A) -> Result<O, E>,
{
    f(A::from_arrays(arrays)?).map(O::into_arrays).map_err(Into::into)
}
