//! `implicit(f)`: plain code on implicit arrays.

use mlx_rs::Array;

use crate::tree::{self, Flattened, Open, TreeDef, Visitor};
use crate::{Error, Explanation, Result, Tree, Value, trace};

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
        let call = Call::of(&args)?;
        drop(args);
        let mut made = None;
        let results = trace::run(&call.args, |arrays| call.made(&mut f, arrays, &mut made))?;
        tree::unflatten(&made.ok_or_else(never_called)?, results)
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
    let call = Call::of(&args)?;
    drop(args);
    let (_, explanation) = trace::run_explained(&call.args, |arrays| call.made(&mut f, arrays, &mut None))?;
    Ok(explanation)
}

/// The arguments of a traced function: values, and the structure that its closure sees them in.
pub(crate) struct Call {
    pub(crate) args: Vec<Value>,
    def: TreeDef,
}

impl Call {
    pub(crate) fn of(args: &impl Tree) -> Result<Self> {
        let (args, def) = tree::flatten(args, Open::Closed)?;
        Ok(Self { args, def })
    }

    /// Calls `f` on the arrays that stand for the arguments; the arrays of its results, whose structure goes to `made`.
    pub(crate) fn made<A, O, E>(
        &self,
        f: &mut impl FnMut(A) -> Result<O, E>,
        arrays: Vec<Array>,
        made: &mut Option<TreeDef>,
    ) -> Result<Vec<Array>>
    where
        A: Tree,
        O: Tree,
        E: Into<Error>,
    {
        let args = tree::unflatten(&self.def, arrays.into_iter().map(Value::from).collect())?;
        let results = f(args).map_err(Into::into)?;
        arrays_of(|visitor| results.flatten(visitor), made)
    }
}

/// The arrays of what a traced function returned, and its structure.
pub(crate) fn arrays_of<'a>(
    show: impl FnOnce(&mut dyn Visitor<'a>) -> Result<()>,
    made: &mut Option<TreeDef>,
) -> Result<Vec<Array>> {
    let (leaves, def) = Flattened::shown(Open::Closed, show)?;
    *made = Some(def);
    leaves
        .into_iter()
        .map(|leaf| match leaf {
            Value::Dense(array) => Ok(array),
            implicit @ Value::Implicit(_) => Err(Error::invalid(
                format!("the function returns {implicit}, and inside it every array is dense"),
                "return the implicit array beside the function, or open it with `implicit` inside",
            )),
        })
        .collect()
}

/// A trace that ends well has called its function.
pub(crate) fn never_called() -> Error {
    Error::invalid("the function was not called", "let the transform call it once")
}
