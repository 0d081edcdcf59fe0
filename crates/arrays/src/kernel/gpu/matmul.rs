//! Products with stored matrices, on a GPU.

use tacit_core::Aval;
use tacit_kernels::Orientation;

use super::product::{Chosen, Product};
use super::source::{Parts, Target};
use crate::kernel::host::rows_of;
use crate::kernel::{Groups, Layout, StackLayout};

/// The launch of [`matmul`](crate::kernel::matmul), of `x` and the children. None where there is nothing to compute.
pub(crate) fn matmul(layout: &Layout, orientation: Orientation, inputs: &[Aval], target: Target) -> Option<Parts> {
    let (x, children) = inputs.split_first()?;
    let (n, m) = (layout.n, rows_of(&x.shape));
    Product { layout, n, orientation, m, entries: 1, x, children, chosen: Chosen::Only }.parts("matmul", target)
}

/// The launch of [`grouped_matmul`](crate::kernel::grouped_matmul), of `x` and the children. None where there is nothing to
/// compute.
pub(crate) fn grouped_matmul(
    layout: &Layout,
    orientation: Orientation,
    groups: &Groups,
    inputs: &[Aval],
    target: Target,
) -> Option<Parts> {
    let (x, children) = inputs.split_first()?;
    let (Groups { matrices, rows: n }, m) = groups.over(&x.shape);
    let (entries, chosen) = (matrices.len(), Chosen::Matrices(&matrices));
    Product { layout, n, orientation, m, entries, x, children, chosen }.parts("grouped_matmul", target)
}

/// The launch of [`gather_matmul`](crate::kernel::gather_matmul), of `x`, both indices and the children. The product of an index
/// outside of what it chooses from is NaN. None where there is nothing to compute.
pub(crate) fn gather_matmul(stack: &StackLayout, inputs: &[Aval], target: Target) -> Option<Parts> {
    let [x, left, right, children @ ..] = inputs else { return None };
    let layout = &stack.rows;
    let (groups, m, count) = (*x.shape.first()? as usize, *x.shape.get(1)? as usize, stack.count);
    let n = layout.n.checked_div(count)?;
    let (orientation, entries) = (stack.orientation, left.size());
    let chosen = Chosen::Indices { groups, count, inputs: [left, right] };
    Product { layout, n, orientation, m, entries, x, children, chosen }.parts("gather_matmul", target)
}
