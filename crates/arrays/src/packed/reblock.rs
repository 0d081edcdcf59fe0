//! Packed arrays in smaller blocks, each with the scale of its old block, so that a cut may lie inside a block.

use std::ops::Range;

use mlx_rs::Array;
use tacit_core::{Aval, Error, Result, Value, short_name};
use tacit_kernels::gcd;

use crate::avals::axes::{divisors, extent};
use crate::families::cut::Cut;
use crate::families::packed::{Packed, Stored};
use crate::packed::dynamic8::each_repeated;
use crate::packed::slice::between;

impl<T: Packed> Cut for T {
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
        Ok(self.reblocked(cut_stored(self, self.stored(), axis, range)?).into())
    }
}

/// The children of the elements of `range` along an axis of the array: `stored` is what it is made of, perhaps with other
/// scales of the same blocks.
///
/// Where the ends lie inside blocks, it is in the largest blocks that lie between them.
pub(crate) fn cut_stored(array: &dyn Packed, stored: Stored, axis: usize, range: Range<i32>) -> Result<Stored> {
    let (shape, rank) = (stored.shape(), stored.aval.shape.len());
    let along = along(&stored, axis);
    let (mut start, mut stop) = (vec![0; rank], shape.clone());
    (start[along], stop[along]) = (range.start, range.end);
    if range == (0..shape[along]) {
        return Ok(stored);
    }
    let (outer, inner) = (extent(&shape[..along]), extent(&shape[along + 1..]));
    let edges = edges(&shape, along, &range);
    let largest = edges.iter().copied().fold(stored.block, gcd);
    let block = divisors(largest).into_iter().rev().find(|&block| array.has_block(block));
    let inside = block.map(|block| between(reblocked(stored.clone(), block, &edges)?, &start, &stop));
    // The last block of all may be shorter than the others.
    let result = match inside {
        Some(Ok(result)) => Ok(result),
        _ => between(stored.clone(), &start, &stop),
    };
    result.map_err(|_| {
        let smallest = divisors(stored.block).into_iter().find(|&block| array.has_block(block));
        let unit = stored.unit_of(smallest.unwrap_or(stored.block));
        let step = unit / gcd(unit, inner);
        let found = Aval::new(&stored.aval.shape, stored.aval.dtype);
        let message = format!(
            "{}({found}) in blocks of {} is not cut from {} to {} along axis {axis}",
            short_name(array),
            stored.block,
            range.start,
            range.end
        );
        let help = if outer > 1 && !(shape[along] as usize).is_multiple_of(step) {
            "its blocks reach over the ends of that axis: cut it along another one".to_owned()
        } else {
            format!("cut it at multiples of {step}, where codes and scales come apart")
        };
        Error::invalid(message, help)
    })
}

/// Where an axis of an array is in the array of its codes.
pub(crate) fn along(stored: &Stored, axis: usize) -> usize {
    let rank = stored.aval.shape.len();
    if stored.transposed && axis + 2 >= rank { 2 * rank - 3 - axis } else { axis }
}

/// Where parts begin and end in the codes, counted in elements: those of the range, and where each stretch of it ends.
pub(crate) fn edges(shape: &[i32], along: usize, range: &Range<i32>) -> Vec<usize> {
    let (outer, inner) = (extent(&shape[..along]), extent(&shape[along + 1..]));
    let mut edges: Vec<usize> = [range.start, range.end].map(|at| at as usize * inner).to_vec();
    edges.extend((outer > 1).then(|| shape[along] as usize * inner));
    edges
}

/// The same values in smaller blocks, which divide the array's own and end where the edges are.
fn reblocked(mut stored: Stored, block: usize, edges: &[usize]) -> Result<Stored> {
    let times = stored.block / block;
    let (_, shape) = stored.scheme.children(&stored.shape(), block);
    let count = extent(&shape);
    let repeated = |array: &Array| -> Result<Array> { Ok(each_repeated(array, times, count)?.reshape(&shape)?) };
    stored.biases = stored.biases.as_ref().map(repeated).transpose()?;
    stored.scales = match &stored.scales {
        Some(Value::Dense(scales)) => Some(repeated(scales)?.into()),
        Some(_) => match stored.double_quantized() {
            Some(nested) => {
                let [codes, absmax, _] = nested.parts();
                let nested_block = nested.block_size();
                let absmax = each_repeated(&absmax, times, count.div_ceil(nested_block))?;
                let nested = nested.with(repeated(&codes)?, absmax, nested_block);
                let smaller = edges.iter().fold(nested_block, |largest, edge| gcd(largest, edge / block));
                Some(nested.reblocked(smaller)?.into())
            }
            None if times == 1 => stored.scales,
            None => return Err(Error::decline("the scales belong to blocks of this size")),
        },
        None => None,
    };
    stored.block = block;
    Ok(stored)
}
