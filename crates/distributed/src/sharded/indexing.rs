//! Tables that are split, by rows or by columns.

use mlx_rs::{Array, ops};
use tacit_core::primitives::{Gather, GatherAxis};
use tacit_core::{Error, Result, Value, handler, implicit};

use super::Sharded;
use super::part::sum_identity;

/// Rows of a table: where its rows are split, each rank gives those that it has, and zeros for the others, to a sum.
#[handler(precedence = 3)]
pub(crate) fn sharded_gather(op: &Gather, table: &Sharded, rows: &Array) -> Result<Value> {
    let whole = op.axes == [0] && op.slice_sizes.first() == Some(&1) && op.slice_sizes[1..] == table.aval.shape[1..];
    if !whole {
        return Err(Error::decline("only whole rows are gathered from the parts"));
    }
    if table.axis > 0 {
        return table.mapped(rows.ndim() + table.axis - 1, |part| Ok(part.take_axis(rows, 0)?)).and_then(|taken| {
            // `Gather` keeps the axis that it takes from, one long.
            implicit(taken, |taken| kept(&taken, rows.ndim()))
        });
    }
    implicit(table.entered_part()?, |part| {
        let (local, there) = own_rows(table, rows)?;
        let taken = part.take_axis(local, 0)?;
        let mut shape = rows.shape().to_vec();
        shape.resize(taken.ndim(), 1);
        let zero = sum_identity(taken.dtype())?;
        let sum = table.group.all_sum(&ops::select(there.reshape(&shape)?, taken, zero)?)?;
        kept(&sum, rows.ndim())
    })
}

fn kept(taken: &Array, at: usize) -> Result<Array> {
    Ok(taken.expand_dims(at as i32)?)
}

/// The rows of the own part, where they are in it, and whether they are.
pub(super) fn own_rows(table: &Sharded, rows: &Array) -> Result<(Array, Array)> {
    let extent = table.aval.shape[table.axis];
    let rows_of_each = extent / table.group.size() as i32;
    let first = table.group.rank() as i32 * rows_of_each;
    let rows = rows.as_dtype(mlx_rs::Dtype::Int32)?.subtract(Array::from_int(first))?;
    let there = rows.ge(Array::from_int(0))?.logical_and(rows.lt(Array::from_int(rows_of_each))?)?;
    Ok((ops::clip(&rows, (&Array::from_int(0), &Array::from_int(rows_of_each - 1)))?, there))
}

/// Elements along an axis, such as the logits of the targets: along the axis that is split, each rank gives those that it
/// has, and zeros for the others, to a sum.
#[handler(precedence = 3)]
pub(crate) fn sharded_gather_axis(op: &GatherAxis, x: &Sharded, places: &Value) -> Result<Value> {
    if op.axis as usize != x.axis {
        let places = x.places(places, x.aval.shape[op.axis as usize])?;
        let part = implicit((x.entered_part()?, places), |(part, places)| part.take_along_axis(places, op.axis))?;
        return x.with(part, x.axis);
    }
    let places = places.as_dense().ok_or_else(|| Error::decline("the places are not dense"))?;
    implicit(x.entered_part()?, |part| {
        let (local, there) = own_rows(x, places)?;
        let taken = part.take_along_axis(local, op.axis)?;
        let zero = sum_identity(taken.dtype())?;
        x.group.all_sum(&ops::select(there, taken, zero)?)
    })
}

#[cfg(test)]
mod tests {
    use mlx_rs::Array;
    use tacit_core::implicit;

    use crate::{Group, Sharded};

    /// Logits and targets that are both split along the batch: one target is no class.
    #[test]
    fn indices_that_are_split_themselves_are_checked_as_well() {
        let group = Group::alone();
        let logits = Array::from_slice(&[0f32, 1.0, 2.0, 3.0, 4.0, 5.0], &[2, 3]);
        for outside in [7, -100] {
            let targets = Array::from_slice(&[1i32, outside], &[2, 1]);
            let taken = |split: bool| {
                let x = Sharded::split(&logits, 0, &group)?;
                if split {
                    let places = Sharded::split(&targets, 0, &group)?;
                    implicit((x, places), |(x, places)| x.take_along_axis(places, 1))
                } else {
                    implicit((x, &targets), |(x, places)| x.take_along_axis(places, 1))
                }
            };
            for split in [false, true] {
                let read = taken(split).and_then(|taken| Ok(taken.dense()?.eval()?));
                let error = read.expect_err("there is no such class").to_string();
                assert!(error.contains(&format!("index {outside}")), "{error}");
            }
        }
    }
}
