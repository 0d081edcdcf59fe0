//! Products with packed matrices, and gathers of their rows, from the codes.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::{Error, Result};
use tacit_kernels::Orientation;

use crate::avals::checks::decline_if;
use crate::families::packed::Packed;
use crate::kernel::{self, StackLayout};

/// `x M` for `x: [.., rows]`, where `M` is the matrix or, if `transposed`, its transpose; of several matrices each with its own
/// part of `x`.
pub(crate) fn product(x: &Array, array: &dyn Packed, transposed: bool) -> Result<Array> {
    let stored = array.stored();
    let orientation = if stored.transposed == transposed { Orientation::Plain } else { Orientation::Transposed };
    let n = match *stored.shape() {
        [n, _] => n,
        [count, _, _] if x.ndim() == 3 && x.dim(0) == count => {
            let matrices = ops::arange::<_, u32>(None, count, None)?;
            return products_by_index(x, array, orientation, [&matrices, &matrices]);
        }
        _ => return Err(Error::decline(format!("{} is not a matrix, nor a stack of them", stored.aval))),
    };
    let (layout, children) = stored.kernel(n)?;
    if array.int8_activations() && orientation == Orientation::Transposed {
        kernel::int8_matmul(x, layout, &children)
    } else {
        kernel::matmul(x, layout, &children, orientation)
    }
}

/// The products of chosen matrices of `x: [.., m, depth]` with chosen ones of a packed stack: `[.., m, columns]`, the axes
/// before the last two being those of the indices.
pub(crate) fn products_by_index(
    x: &Array,
    array: &dyn Packed,
    orientation: Orientation,
    indices: [&Array; 2],
) -> Result<Array> {
    let stored = array.stored();
    let shape = stored.shape();
    let ([stack @ .., n, k], [groups @ .., m, depth]) = (shape.as_slice(), x.shape()) else {
        return Err(Error::decline("vectors have no products to choose from"));
    };
    let count = stack.iter().product::<i32>();
    let (rows, children) = stored.kernel(count * n)?;
    let [left, right] = indices.map(|index| index.flatten(None, None)?.as_dtype(Dtype::Uint32));
    let x = x.reshape(&[groups.iter().product(), *m, *depth])?;
    let stack = StackLayout { rows, count: count as usize, orientation };
    let y = kernel::gather_matmul([&x, &left?, &right?], stack, &children)?;
    let columns = if orientation == Orientation::Transposed { *n } else { *k };
    Ok(y.reshape(&[indices[0].shape(), &[*m, columns]].concat())?)
}

/// Whole rows along the first axis.
pub(crate) fn gathered(array: &dyn Packed, rows: &Array) -> Result<Array> {
    let stored = array.stored();
    let shape = stored.shape();
    decline_if(stored.transposed || shape.len() < 2, "only whole rows are gathered from packed codes")?;
    let (layout, children) = stored.kernel(shape[0])?;
    let taken = kernel::gather_rows(layout, &rows.as_dtype(Dtype::Uint32)?, &children, stored.aval.dtype)?;
    // The extents of `rows` are not written down, which a function without shapes would refuse.
    Ok(ops::unflatten(taken, -1, &shape[1..])?)
}
