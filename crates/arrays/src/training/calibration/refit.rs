//! Scales and biases that fit given codes best.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, Stream, linalg, ops, transforms, with_stream};
use tacit_core::{Error, Result};

use crate::format::FloatScales;

/// Numbers of the matrices of rows that are solved together.
const TOGETHER: i32 = 1 << 24;

/// The scales, and biases, of each group for which `coded: f32[n, k]` is nearest to `weight: f32[n, k]` as `gram: f32[k, k]` counts
/// errors, with the codes as they are: those of a row together, by least squares; and the numbers of the codes by them. The scales that
/// are given are `[n, groups]`, and those that are found have their dtype.
///
/// What is solved for is by how much each scale is multiplied, and by how many scales each bias is raised; a little less than that is
/// taken, so that groups which hardly count stay where they are.
pub(super) fn refitted(
    weight: &Array,
    coded: &Array,
    scales: &FloatScales,
    gram: &Array,
) -> Result<(FloatScales, Array)> {
    let (n, k, groups) = (weight.dim(0), weight.dim(1), scales.scales.dim(1));
    let dtype = scales.scales.dtype();
    let wide = |array: &Array| array.as_dtype(Dtype::Float32);
    let (own_scales, own_biases) = (wide(&scales.scales)?, scales.biases.as_ref().map(wide).transpose()?);
    let spread = |of_groups: &Array| Ok::<_, Error>(ops::repeat_axis::<f32>(of_groups.clone(), k / groups, 1)?);
    // What the scales multiply.
    let scaled = match &own_biases {
        None => coded.clone(),
        Some(biases) => coded.subtract(spread(biases)?)?,
    };
    let unknown = groups * if own_biases.is_some() { 2 } else { 1 };
    let rows = (TOGETHER / (unknown * unknown)).clamp(1, n);
    let mut parts = Vec::new();
    for start in (0..n).step_by(rows as usize) {
        let rows_of = |array: &Array| array.try_index(start..(start + rows).min(n));
        let units = own_biases.as_ref().map(|_| rows_of(&own_scales)).transpose()?;
        let changes = changes(&rows_of(&weight.subtract(coded)?)?, &rows_of(&scaled)?, units.as_ref(), gram, groups)?;
        transforms::eval([&changes])?;
        parts.push(changes);
    }
    let joined = ops::concatenate(&parts, 0)?;
    let factors = joined.try_index((.., ..groups))?.add(Array::from_f32(1.0))?;
    let raised = own_biases.as_ref().map(|biases| {
        let by = joined.try_index((.., groups..))?.multiply(&own_scales)?;
        Ok::<_, Error>(biases.add(by)?)
    });
    let raised = raised.transpose()?;
    let numbers = scaled.multiply(spread(&factors)?)?;
    let numbers =
        raised.as_ref().map_or(Ok(numbers.clone()), |raised| Ok::<_, Error>(numbers.add(spread(raised)?)?))?;
    let scales = FloatScales {
        scales: own_scales.multiply(factors)?.as_dtype(dtype)?,
        biases: raised.map(|raised| raised.as_dtype(dtype)).transpose()?,
        ..scales.clone()
    };
    Ok((scales, numbers))
}

/// What is added to factors of 1, and to biases in `units`, where there are some: `f32[n, groups]`, or twice as many columns.
/// `lost: f32[n, k]` is what the codes lose, and `scaled: f32[n, k]` what the scales multiply.
fn changes(lost: &Array, scaled: &Array, units: Option<&Array>, gram: &Array, groups: i32) -> Result<Array> {
    /// The part of the diagonal that is added to it.
    const DAMPING: f32 = 1e-3;
    let (n, k) = (scaled.dim(0), scaled.dim(1));
    let sums = |x: &Array| x.reshape(&[x.dim(0), groups, k / groups])?.sum_axis(2, false);
    let lost = lost.matmul(gram)?;
    let (mut of_scales, mut of_both) = (Vec::new(), Vec::new());
    for group in 0..groups {
        let columns = group * (k / groups)..(group + 1) * (k / groups);
        let moved = scaled.try_index((.., columns.clone()))?.matmul(gram.try_index(columns)?)?;
        of_scales.push(sums(&moved.multiply(scaled)?)?);
        if units.is_some() {
            of_both.push(sums(&moved)?);
        }
    }
    let (mut matrix, mut right) = (ops::stack(&of_scales, 2)?, sums(&lost.multiply(scaled)?)?);
    if let Some(units) = units {
        let (rows, columns) = (units.expand_dims(2)?, units.expand_dims(1)?);
        let both = ops::stack(&of_both, 2)?.multiply(&rows)?;
        let of_biases = ops::broadcast_to(sums(&sums(gram)?.t())?, &[n, groups, groups])?;
        let of_biases = of_biases.multiply(rows)?.multiply(columns)?;
        let above = ops::concatenate(&[matrix, both.swap_axes(1, 2)?], 2)?;
        matrix = ops::concatenate(&[above, ops::concatenate(&[both, of_biases], 2)?], 1)?;
        right = ops::concatenate(&[right, sums(&lost)?.multiply(units)?], 1)?;
    }
    let diagonal = matrix.diagonal(None, Some(1), Some(2))?;
    // A group of zeros has nothing to scale, nor has a row of them.
    let least = ops::maximum(diagonal.max_axis(1, true)?.multiply(Array::from_f32(1e-6))?, Array::from_f32(1e-30))?;
    let added = diagonal.multiply(Array::from_f32(DAMPING))?.add(least)?;
    let unit = ops::eye::<f32>(diagonal.dim(1), None, None)?;
    let matrix = matrix.add(unit.multiply(added.expand_dims(1)?)?)?;
    let solved = with_stream(&Stream::cpu(), || linalg::solve(&matrix, right.expand_dims(2)?))?;
    Ok(solved.squeeze_axes(&[2])?)
}
