//! What of a replicated array a rank computes with.

use mlx_rs::{Array, ops};
use tacit_arrays::cut;
use tacit_core::tree::{self, Open};
use tacit_core::{Aval, Error, Result, Value, broadcast_source};

use crate::Group;

/// The own part along `axis` of a replicated array, with the gradients of all ranks.
///
/// What is broadcast along the axis is not cut, but broadcast to less.
pub(crate) fn own_part(array: &Array, axis: usize, group: &Group) -> Result<Array> {
    let (size, rank) = (group.size() as i32, group.rank() as i32);
    let extent = array.shape()[axis];
    if extent % size != 0 {
        return Err(Error::decline(format!("axis {axis} of {} has no equal parts", Aval::from(array))));
    }
    let mut shape = array.shape().to_vec();
    shape[axis] = extent / size;
    let source = broadcast_source(array)?;
    let behind = array.ndim() - axis;
    if source.ndim() < behind || source.shape()[source.ndim() - behind] == 1 {
        return Ok(ops::broadcast_to(&group.enter(&source)?, &shape)?);
    }
    let own = rank * shape[axis]..(rank + 1) * shape[axis];
    cut(&group.enter(array)?.into(), axis as i32, own)?.dense()
}

/// The leaves of a rank's part that are the whole's, which every rank has: the numbers of the float ones.
pub(super) fn shared_leaves(whole: &Value, part: &Value) -> Result<Vec<usize>> {
    let avals =
        |value: &Value| -> Result<Vec<Aval>> { tree::leaves(value, Open::Fully)?.iter().map(Value::aval).collect() };
    let (whole, part) = (avals(whole)?, avals(part)?);
    let same = |(_, (whole, part)): &(usize, (&Aval, &Aval))| whole == part && part.dtype.is_float();
    Ok(whole.iter().zip(&part).enumerate().filter(same).map(|(number, _)| number).collect())
}
