//! A loop that ends when its condition no longer holds.

use mlx_rs::Array;
use mlx_rs::transforms::eval;
use tacit_bridge::is_traced;

use super::carry::Carry;
use super::predicate::{Predicate, read};
use crate::tree::Arguments;
use crate::{Error, Result, Tree, Value};

/// Repeats `body` on the carry while `condition` of it holds.
///
/// Each step evaluates the carry together with the condition, so that the graph stays as small as one step; under
/// `grad`, which needs all of it, it grows. Arrays of the carry that are traced stay as they are. The condition must not
/// be traced, see the [module](super). With no step the result is `init`.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::control::while_loop;
///
/// let x = while_loop(Array::from_f32(3.0), |x| x.lt(Array::from_f32(100.0)), |x| x.add(&x))?;
/// assert_eq!(x.dense()?.item_exact::<f32>(), 192.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The condition is traced or not one bool, `body` gives the carry another structure, shape or dtype, or a closure
/// fails; and as for [`implicit`](crate::implicit()).
pub fn while_loop<C: Arguments, E: Into<Error>, E2: Into<Error>>(
    init: C,
    mut condition: impl FnMut(C::Arrays) -> Result<Array, E>,
    mut body: impl FnMut(C::Arrays) -> Result<C::Arrays, E2>,
) -> Result<<C::Arrays as Tree>::With<Value>> {
    let mut carry = Carry::new(&init)?;
    drop(init);
    let mut results = Vec::new();
    loop {
        let holds: Value = carry.now.run(&mut condition)?.into_tree()?;
        let Predicate::Known(holds) = Predicate::from_array(&holds.dense()?, "the condition")? else {
            return Err(Error::invalid(
                "the condition of the loop is traced: how many steps it takes is not known before it runs",
                "use `fori_loop` with a fixed count, or run the loop outside `compile`, `implicit` and `vmap`",
            ));
        };
        results.retain(|array| !is_traced(array));
        results.push(holds);
        eval(&results)?;
        let go_on = results.pop().map_or(Ok(false), |holds| read(&holds))?;
        // The step may write into the buffers of the carry only if nothing else holds them.
        results.clear();
        if !go_on {
            return carry.now.into_tree();
        }
        let next = carry.now.run(&mut body)?;
        results = carry.advance(next)?;
    }
}
