//! Gradients for the scales and biases of a stored matrix whose own gradient is a product that is never built, on a
//! GPU.

use std::slice;

use mlx_rs::Dtype;
use tacit_core::Aval;

use super::encode::{LONGEST, THREADS};
use super::source::{Parts, Target, size};
use super::weight::Weight;
use crate::kernel::Layout;

/// Rows of a matrix whose blocks share what is read of the right side.
const ROWS: usize = 8;

/// Elements of a longer block are a group's, and of others a warp's at most.
const LONG: usize = 1024;

/// The launch of the kernel that `product_scale_gradients` runs, of the left and the right side of the products, the matrix of each,
/// and the codes of `count` matrices.
///
/// Each element of a gradient is a sum of `f32` in the order of the products; those of blocks have more digits than floats, as of
/// doubles on the CPU. None for blocks so long that plain ops are faster, where there is nothing to sum, and where the decomposition
/// says what is wrong.
pub(crate) fn product_scale_gradients(rows: &Layout, count: usize, inputs: &[Aval], target: Target) -> Option<Parts> {
    let [left, right, matrices, codes] = inputs else { return None };
    let &[_, depth, n] = left.shape.as_slice() else { return None };
    let [depth, n] = [depth, n].map(|extent| extent as usize);
    let (k, block, entries) = (rows.k, rows.block, matrices.size());
    let (elements, products) = (rows.n * k, entries * depth);
    let has_dtypes = [left, right].iter().all(|side| side.dtype == Dtype::Float32) && matrices.dtype == Dtype::Uint32;
    let has_sizes = n * count == rows.n && [left.size(), right.size()] == [products * n, products * k];
    if !has_dtypes || !has_sizes || elements == 0 || products == 0 || block == 0 || block > LONGEST {
        return None;
    }
    let weight = Weight::new(&rows.unscaled(), slice::from_ref(codes))?;
    let blocks = elements.div_ceil(block);
    let team = if block > LONG { THREADS } else { block.next_power_of_two().min(32) };
    let below = if k.is_multiple_of(block) && n.is_multiple_of(ROWS) { ROWS } else { 1 };
    let groups = (blocks / below).div_ceil(THREADS / team);
    size(groups * THREADS)?;
    let float = "TACIT_DEVICE float*";
    let body = format!(
        "  enum {{ THREADS = {THREADS} }};\n{}  TACIT_GROUP_ARRAY(float, tacit_meeting, {});\n  \
         tacit::product_scale_gradients<{team}, {below}>(w, (const {float})left, (const {float})right, (const TACIT_DEVICE \
         tacit::u32*)matrices, ({float})of_scales, ({float})of_biases, sizes_shape[0], sizes_shape[1], sizes_shape[2], \
         sizes_shape[3], sizes_shape[4], sizes_shape[5], sizes_shape[6], at, THREADS, tacit_meeting);\n",
        weight.bind,
        2 * THREADS / 32,
    );
    let sizes = [entries, depth, n, k, count, blocks, block, weight.block];
    Some(Parts {
        label: format!("product_scale_gradients_{}_r{below}", weight.label),
        common: vec![include_str!("source/twofold.h"), include_str!("source/product_scale_gradients.h")],
        description: weight.text,
        body,
        inputs: ["left", "right", "matrices"].into_iter().map(str::to_owned).chain(weight.inputs).collect(),
        outputs: vec!["of_scales".to_owned(), "of_biases".to_owned()],
        sizes: sizes.into_iter().map(size).collect::<Option<_>>()?,
        groups: [groups, 1, 1],
        threads: THREADS,
        memory: 0,
        target,
    })
}
