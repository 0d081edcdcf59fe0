//! A loop over a range of numbers.

use std::ops::Range;

use super::carry::Carry;
use crate::tree::Arguments;
use crate::{Error, Result, Tree, Value};

/// Repeats `body` on the carry, once for each number of the range.
///
/// The loop is unrolled: nothing is evaluated, the graph grows with the steps, and it can be differentiated and
/// compiled. An empty range gives `init`.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::control::fori_loop;
///
/// let factorial = fori_loop(1..6, Array::from_int(1), |i, x| x.multiply(Array::from_int(i)))?;
/// assert_eq!(factorial.dense()?.item_exact::<i32>(), 120);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// `body` fails, or gives the carry another structure, shape or dtype; and as for [`implicit`](crate::implicit()).
pub fn fori_loop<C: Arguments, E: Into<Error>>(
    range: Range<i32>,
    init: C,
    mut body: impl FnMut(i32, C::Arrays) -> Result<C::Arrays, E>,
) -> Result<<C::Arrays as Tree>::With<Value>> {
    let mut carry = Carry::new(&init)?;
    drop(init);
    for i in range {
        let next = carry.now.run(|now| body(i, now))?;
        carry.advance(next)?;
    }
    carry.now.into_tree()
}
