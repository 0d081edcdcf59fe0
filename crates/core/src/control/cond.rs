//! One of two branches.

use mlx_rs::{Array, ops};

use super::predicate::{Predicate, read};
use super::structure::Structure;
use crate::tree::Arguments;
use crate::values::Values;
use crate::{Error, Result, Tree, Value, tree};

/// Runs one of two functions on the operands: `on_true` where the predicate holds, `on_false` otherwise.
///
/// Where the predicate is traced, see the [module](super), both run and each array of the results is selected from
/// theirs, so both must give the same structure, shapes and dtypes. Two implicit arrays of one type and equal static
/// fields are selected child by child and stay implicit. Both branches are computed and both are differentiated, the
/// branch that is not chosen with a cotangent of zeros: an infinity in its derivative becomes a NaN.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::control::cond;
///
/// let x = Array::from_f32(-2.0);
/// let negative = x.lt(Array::from_f32(0.0))?;
/// let y = cond(&negative, &x, |x| x.exp(), |x| x.log())?;
/// assert_eq!(y.dense()?.item_exact::<f32>(), (-2f32).exp());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The predicate is not one bool, a branch that runs fails, or the predicate is traced and the results differ in
/// structure, shape or dtype; and as for [`implicit`](crate::implicit()).
pub fn cond<A: Arguments, O: Tree, E: Into<Error>, E2: Into<Error>>(
    predicate: &Array,
    operands: A,
    on_true: impl FnOnce(A::Arrays) -> Result<O, E>,
    on_false: impl FnOnce(A::Arrays) -> Result<O, E2>,
) -> Result<O::With<Value>> {
    let args = Values::from_arguments(&operands)?;
    drop(operands);
    match Predicate::from_array(predicate, "the predicate")? {
        Predicate::Known(predicate) => {
            if read(&predicate)? { args.run(on_true)? } else { args.run(on_false)? }.into_tree()
        }
        Predicate::Traced(predicate) => select(&predicate, args.run(on_true)?, args.run(on_false)?),
    }
}

/// The arrays of `on_true` where the predicate holds, those of `on_false` otherwise.
fn select<T: Tree>(predicate: &Array, on_true: Values, on_false: Values) -> Result<T> {
    let (on_true, structure) = Structure::from_values(&on_true.def, on_true.values)?;
    let (on_false, others) = Structure::from_values(&on_false.def, on_false.values)?;
    if let Some(change) = structure.change(&others) {
        return Err(Error::invalid(
            format!(
                "the predicate is traced and the branches differ: one makes {}, the other {}{}",
                change.from, change.to, change.place
            ),
            "give results of one structure, shape and dtype, or decide outside `compile`, `implicit` and `vmap`",
        ));
    }
    let selected = on_true
        .iter()
        .zip(&on_false)
        .map(|(on_true, on_false)| Ok(ops::select(predicate, on_true, on_false)?.into()))
        .collect::<Result<Vec<Value>>>()?;
    tree::unflatten(&structure.def, selected)
}
