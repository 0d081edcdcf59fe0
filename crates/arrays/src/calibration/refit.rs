//! Scales and biases that fit codes best.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Stream, linalg, ops, transforms, with_stream};
use tacit_core::Result;

use crate::format::FloatScales;

/// Numbers of the matrices of rows that are solved together.
const TOGETHER: i32 = 1 << 24;

/// The scales, and biases, of each group for which `coded: f32[n, k]` is nearest to `weight: f32[n, k]` as `gram: f32[k, k]` counts
/// errors, with the codes as they are: those of a row together, by least squares. All are `[n, groups]`.
///
/// What is solved for is by how much each scale is multiplied and each bias raised, and a little less than that is taken, so that
/// groups which hardly count stay where they are.
pub(super) fn refitted(weight: &Array, coded: &Array, scales: &FloatScales, gram: &Array) -> Result<FloatScales> {
    let (n, groups) = (weight.dim(0), scales.scales.dim(1));
    let unknown = groups * if scales.biases.is_some() { 2 } else { 1 };
    let rows = (TOGETHER / (unknown * unknown)).clamp(1, n);
    let mut made = Vec::new();
    for start in (0..n).step_by(rows as usize) {
        let own = |array: &Array| array.try_index(start..(start + rows).min(n));
        let biases = scales.biases.as_ref().map(own).transpose()?;
        let changes = changes(&own(weight)?, &own(coded)?, biases.as_ref(), gram, groups)?;
        transforms::eval([&changes])?;
        made.push(changes);
    }
    let made = ops::concatenate(&made, 0)?;
    let factors = made.try_index((.., ..groups))?.add(Array::from_f32(1.0))?;
    let biases = scales.biases.as_ref().map(|biases| biases.add(made.try_index((.., groups..))?)).transpose()?;
    Ok(FloatScales { scales: scales.scales.multiply(factors)?, biases, ..scales.clone() })
}

/// What is added to factors of 1, and to the biases: `f32[n, groups]`, or twice as many columns.
fn changes(weight: &Array, coded: &Array, biases: Option<&Array>, gram: &Array, groups: i32) -> Result<Array> {
    /// Of the diagonal, which is added to it.
    const DAMPING: f32 = 1e-3;
    let (n, k) = (weight.dim(0), weight.dim(1));
    let width = k / groups;
    let by_groups = |x: &Array| x.reshape(&[x.dim(0), groups, width]);
    let sums = |x: &Array| by_groups(x)?.sum_axis(2, false);
    // What the scales multiply.
    let scaled = match biases {
        None => coded.clone(),
        Some(biases) => by_groups(coded)?.subtract(biases.expand_dims(2)?)?.reshape(&[n, k])?,
    };
    let lost = weight.subtract(coded)?.matmul(gram)?;
    let (mut of_scales, mut of_both) = (Vec::new(), Vec::new());
    for group in 0..groups {
        let own = group * width..(group + 1) * width;
        let moved = scaled.try_index((.., own.clone()))?.matmul(gram.try_index(own)?)?;
        of_scales.push(sums(&moved.multiply(&scaled)?)?);
        if biases.is_some() {
            of_both.push(sums(&moved)?);
        }
    }
    let (mut matrix, mut right) = (ops::stack(&of_scales, 2)?, sums(&lost.multiply(&scaled)?)?);
    if biases.is_some() {
        let both = ops::stack(&of_both, 2)?;
        let of_biases = sums(&sums(gram)?.t())?;
        let of_biases = ops::broadcast_to(of_biases, &[n, groups, groups])?;
        let above = ops::concatenate(&[matrix, both.swap_axes(1, 2)?], 2)?;
        matrix = ops::concatenate(&[above, ops::concatenate(&[both, of_biases], 2)?], 1)?;
        right = ops::concatenate(&[right, sums(&lost)?], 1)?;
    }
    let diagonal = matrix.diagonal(None, Some(1), Some(2))?;
    // A group of zeros has nothing to scale.
    let added = diagonal
        .multiply(Array::from_f32(DAMPING))?
        .add(diagonal.max_axis(1, true)?.multiply(Array::from_f32(1e-6))?)?;
    let unknown = diagonal.dim(1);
    let matrix = matrix.add(ops::eye::<f32>(unknown, None, None)?.multiply(added.expand_dims(1)?)?)?;
    let solved = with_stream(&Stream::cpu(), || linalg::solve(&matrix, right.expand_dims(2)?))?;
    Ok(solved.squeeze_axes(&[2])?)
}
