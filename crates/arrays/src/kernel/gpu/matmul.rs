//! Products with stored matrices, on a GPU.

use tacit_core::Aval;
use tacit_kernels::Orientation;

use super::product::{Product, Selection};
use super::source::{Parts, Target};
use crate::kernel::host::rows_of;
use crate::kernel::{Groups, Layout, StackLayout};

/// The launch of [`matmul`](crate::kernel::matmul), of `x` and the children. None where there is nothing to compute.
pub(crate) fn matmul(layout: &Layout, orientation: Orientation, inputs: &[Aval], target: Target) -> Option<Parts> {
    only(layout, orientation, None, inputs)?.parts("matmul", target)
}

/// The launch of [`int8_matmul`](crate::kernel::int8_matmul), of `x` and the children, whose codes stand for integers, each worth
/// `unit` in units of its scale.
///
/// The integers of `x` are the CPU's, bit for bit. The sums of products with them are rounded in other places than the CPU's. None where
/// there is nothing to compute.
pub(crate) fn int8_matmul(layout: &Layout, unit: f32, inputs: &[Aval], target: Target) -> Option<Parts> {
    only(layout, Orientation::Transposed, Some(unit), inputs)?.parts("int8_matmul", target)
}

fn only<'a>(
    layout: &'a Layout,
    orientation: Orientation,
    unit: Option<f32>,
    inputs: &'a [Aval],
) -> Option<Product<'a>> {
    let (x, children) = inputs.split_first()?;
    let (n, m) = (layout.n, rows_of(&x.shape));
    Some(Product { layout, n, orientation, m, entries: 1, x, children, selection: Selection::Only, unit })
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
    let (entries, selection) = (matrices.len(), Selection::Matrices(&matrices));
    Product { layout, n, orientation, m, entries, x, children, selection, unit: None }.parts("grouped_matmul", target)
}

/// The launch of [`gather_matmul`](crate::kernel::gather_matmul), of `x`, both indices and the children. The product of an index
/// outside of what it chooses from is NaN. None where there is nothing to compute.
pub(crate) fn gather_matmul(stack: &StackLayout, inputs: &[Aval], target: Target) -> Option<Parts> {
    let [x, left, right, children @ ..] = inputs else { return None };
    let layout = &stack.rows;
    let (groups, m, count) = (*x.shape.first()? as usize, *x.shape.get(1)? as usize, stack.count);
    let n = layout.n.checked_div(count)?;
    let (orientation, entries) = (stack.orientation, left.size());
    let selection = Selection::Indices { groups, count, inputs: [left, right] };
    Product { layout, n, orientation, m, entries, x, children, selection, unit: None }.parts("gather_matmul", target)
}
