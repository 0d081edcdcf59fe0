//! `implicit(args, f)`: plain code on implicit arrays.

use crate::state::{CALL, Lent, MADE, Step, show};
use crate::tree::{self, Arguments, Reader};
use crate::values::{Values, arrays_of, never_called};
use crate::{Argument, Error, Explanation, Result, Tree, Value, trace};

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
pub fn implicit<A: Arguments, O: Tree, E: Into<Error>>(
    args: A,
    f: impl FnOnce(A::Arrays) -> Result<O, E>,
) -> Result<O::With<Value>> {
    let arguments = Values::from_arguments(&args)?;
    drop(args);
    arguments.run(f)?.into_tree()
}

/// Runs a function of a state that it changes as [`implicit`] does.
///
/// The state is a tree whose values may be implicit, such as the cache of a decoder. Inside the function they are plain
/// arrays that stand for them; what the function leaves in their place is what the state holds afterwards, an implicit array
/// where a handler made one. Where the function fails or panics, the state is what it was.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::{Value, implicit_with_state};
///
/// let mut total = Value::from(Array::from_f32(2.0));
/// let square = implicit_with_state(&mut total, Array::from_f32(1.0), |total, x| {
///     let sum = total.dense()?.add(x)?;
///     *total = sum.clone().into();
///     sum.square()
/// })?;
/// assert_eq!((total.dense()?.item_exact::<f32>(), square.dense()?.item_exact::<f32>()), (3.0, 9.0));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As for [`implicit`]; or the function puts an implicit array of its own into the state, in place of a plain one.
pub fn implicit_with_state<S: Tree, A: Arguments, O: Tree, E: Into<Error>>(
    state: &mut S,
    args: A,
    f: impl FnOnce(&mut S, A::Arrays) -> Result<O, E>,
) -> Result<O::With<Value>> {
    let arguments = Values::from_arguments(&args)?;
    drop(args);
    let before = Values::from_arguments(&*state)?;
    let inputs: Vec<Value> = before.values.iter().chain(&arguments.values).cloned().collect();
    let mut structure = None;
    let results = trace::run(&inputs, |mut arrays| {
        let arguments = arguments.with(arrays.split_off(before.values.len()))?;
        let _step = Step::enter();
        // The trace ends with the state as it was: what is left in it is no longer a placeholder of that.
        let lent = Lent::new(&mut *state, before.clone());
        tree::assign(&mut *lent.state, &before.def, arrays.into_iter().map(Value::from).collect())?;
        let results = f(&mut *lent.state, arguments).map_err(Into::into)?;
        arrays_of(|visitor| show(MADE, &results, &*lent.state, visitor), &mut structure)
    });
    // The leaves of the state come before the arguments.
    let state_leaves = before.values.len();
    let named = |error: Error| error.with_arguments(|number| number.checked_sub(state_leaves).map(Argument::Number));
    let results = match results {
        Ok(results) => results,
        Err(error) => return Err(Lent::new(state, before).failed(named(error))),
    };
    let structure = structure.ok_or_else(never_called)?;
    let mut reader = Reader::new(&structure, results)?.made(None);
    reader.enter(CALL)?;
    let results = O::With::<Value>::unflatten(&mut reader)?;
    let lent = Lent::new(state, before);
    match lent.state.assign(&mut reader) {
        Ok(()) => lent.keep(),
        Err(error) => return Err(lent.failed(error)),
    }
    Ok(results)
}

/// Runs a function as [`implicit`] does and returns what happened: each node, who took it, what was
/// built.
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
pub fn explain<A: Arguments, O: Tree, E: Into<Error>>(
    args: A,
    f: impl FnOnce(A::Arrays) -> Result<O, E>,
) -> Result<Explanation> {
    let arguments = Values::from_arguments(&args)?;
    drop(args);
    Values::explained(&arguments.values, |arrays| f(arguments.with(arrays)?).map_err(Into::into))
}
