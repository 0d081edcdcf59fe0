//! The family of arrays that are cut into parts of their own type, such as shards, and never quantized again.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::ops::indexing::{ArrayIndex, ArrayIndexOp, TryIndexOp};
use tacit_core::extra_ops::copied;
use tacit_core::primitives::Slice;
use tacit_core::tree::{self, Open};
use tacit_core::{Aval, Error, ImplicitArray, Result, Value, array_id, handler};

use crate::avals::axes::{axis_of, divisors, ranges};
use crate::families::packed::Packed;
use crate::families::structural::itself;

/// The family of arrays that are cut into parts of the same kind, which hold only what they need.
///
/// A member says what its elements in a range along one axis are: the same type of the parts of its children. What a slice
/// of it materializes to, the part does: of stored codes bit for bit, as they are moved and not made; of a sum that is
/// computed, to rounding. A type of your own joins by `#[implicit(family(Cut))]`.
///
/// ```
/// # extern crate tacit_core as tacit;
/// # fn main() -> tacit_core::Result<()> {
/// use std::ops::Range;
///
/// use mlx_rs::{Array, ops};
/// use tacit_arrays::{Cut, cut, shard};
/// use tacit_core::{ImplicitArray, Materialize, Result, Value};
///
/// /// Twice another array.
/// #[derive(ImplicitArray, Clone, Debug)]
/// #[implicit(name = "docs.Twice", family(Cut))]
/// struct Twice {
///     half: Value,
/// }
///
/// impl Materialize for Twice {
///     fn materialize(&self) -> Result<Value> {
///         Ok(self.half.dense()?.multiply(Array::from_f32(2.0))?.into())
///     }
/// }
///
/// impl Cut for Twice {
///     fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
///         Ok(Twice { half: cut(&self.half, axis as i32, range)? }.into())
///     }
/// }
///
/// let whole = Value::from(Twice { half: ops::ones::<f32>(&[8, 6])?.into() });
/// assert_eq!(shard(&whole, -1, 0, 2)?.to_string(), "Twice(f32[8,3])");
/// # Ok(())
/// # }
/// ```
pub trait Cut: ImplicitArray {
    /// The elements of `range` along `axis`, which is one of the array's; the range is not empty and within it.
    ///
    /// # Errors
    ///
    /// There is no such part of the same kind: codes or scales would be divided that cannot be.
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value>;
}

/// The elements of `range` along `axis` as a value of the same kind.
///
/// A dense array is sliced, and MLX may keep the memory of the whole for it. A stored one is cut between its blocks; inside a
/// block both sides keep the scale of the block, so that a block of 64 that is cut in the middle becomes blocks of 32. Nothing is
/// quantized anew: the part materializes to what the slice of the whole does, bit for bit. An adapter is cut with its base: along
/// the outputs its left factor is, along the inputs its right one, and what is not cut is in all parts.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::{AffineArray, cut, format::Affine};
/// use tacit_core::Value;
///
/// let w = AffineArray::quantize(&ops::ones::<f32>(&[8, 256])?, Affine { bits: 4, group: 128 })?;
/// let part = cut(&w.into(), 1, 64..128)?;
/// let found = part.downcast::<AffineArray>().expect("it is of the same type");
/// assert_eq!(*found.format(), Affine { bits: 4, group: 64 });
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// There is no such axis or range; the type is not of the family [`Cut`], or has no such part. A stored array names the
/// multiples at which it is cut.
pub fn cut(value: &Value, axis: i32, range: Range<i32>) -> Result<Value> {
    let aval = value.aval()?;
    let counted = axis_of(&aval, axis, "to be cut along")?;
    let extent = aval.shape[counted];
    if !(0 <= range.start && range.start < range.end && range.end <= extent) {
        return Err(Error::invalid(
            format!("{value} has no part from {} to {} along axis {axis}", range.start, range.end),
            format!("give a range that is not empty, from 0 to at most {extent}"),
        ));
    }
    if range == (0..extent) {
        return Ok(value.clone());
    }
    match value {
        Value::Dense(array) => {
            let (mut start, mut stop) = (vec![0; aval.shape.len()], aval.shape);
            (start[counted], stop[counted]) = (range.start, range.end);
            Ok(slice(array, &start, &stop)?.into())
        }
        Value::Implicit(array) => match array.family::<dyn Cut>() {
            Some(array) => array.cut(counted, range),
            None => Err(Error::invalid(
                format!("{value} is not cut into parts"),
                "keep it whole in each process, materialize it first, or let its type join the family `Cut`",
            )),
        },
    }
}

/// Ranges along the axes, one after the other, where each is a part of the same kind.
#[handler]
pub(crate) fn cut_slice(op: &Slice, array: &dyn Cut, results: &[Aval]) -> Result<Value> {
    ranges(op, &results[0])?;
    let ranges = op.start_indices.iter().zip(&op.end_indices).map(|(&start, &stop)| start..stop);
    let mut part = itself(array);
    for (axis, range) in ranges.enumerate() {
        part = cut(&part, axis as i32, range).map_err(|error| match error {
            Error::Invalid { message, .. } => Error::decline(message),
            error => error,
        })?;
    }
    // Inside blocks there are smaller ones with scales of their own, down to one for each element.
    if array.array_type().joins::<dyn Packed>() && part.nbytes() > results[0].nbytes() {
        return Err(Error::decline("the part takes more bytes than its elements"));
    }
    Ok(part)
}

/// The part `index` of `count` equal parts along `axis`, as [`cut`] makes it: what one of several processes holds.
///
/// All parts are of one structure, with equal static fields, wherever the value itself has one. The part keeps no memory of
/// the others alive once it is evaluated.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::{Nf4Array, shard};
/// use tacit_core::Value;
///
/// let w = Value::from(Nf4Array::quantize(&ops::ones::<f32>(&[8, 192])?, 64)?);
/// assert_eq!(shard(&w, 1, 1, 2)?.to_string(), "Nf4(f32[8,96])");
/// let error = shard(&w, 1, 1, 4).expect_err("48 is no multiple of 32").to_string();
/// assert!(error.contains("help: divide it into 2, 3 or 6 parts"), "{error}");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// There is no such axis or part, the parts would not be equal, or [`cut`] makes no such part; the numbers of parts that
/// there are are named.
pub fn shard(value: &Value, axis: i32, index: usize, count: usize) -> Result<Value> {
    let aval = value.aval()?;
    let extent = aval.shape[axis_of(&aval, axis, "to be cut along")?].max(0) as usize;
    if index >= count {
        return Err(Error::invalid(
            format!("there is no part {index} of {count}"),
            "number the parts from 0, as the ranks of a group",
        ));
    }
    let part = |index: usize, count: usize| {
        let length = extent / count;
        cut(value, axis, (index * length) as i32..((index + 1) * length) as i32)
    };
    // Where one part fails all do, so that no process goes on alone.
    let parts_of = |count: usize| (0..count).map(|other| part(other, count)).collect::<Result<Vec<_>>>();
    let result = if extent.is_multiple_of(count) && extent > 0 {
        parts_of(count).and_then(|mut parts| apart(&parts.swap_remove(index), value))
    } else {
        Err(Error::invalid(
            format!("{value} is not divided into {count} equal parts along axis {axis}"),
            "keep it whole in each process",
        ))
    };
    result.map_err(|error| {
        let fits = |count: usize| count > 1 && parts_of(count).is_ok();
        let fitting: Vec<usize> = divisors(extent).into_iter().filter(|&count| fits(count)).take(8).collect();
        let Some((last, others)) = fitting.split_last() else { return error };
        let others: Vec<String> = others.iter().map(ToString::to_string).collect();
        let counts = if others.is_empty() { last.to_string() } else { format!("{} or {last}", others.join(", ")) };
        let message = match error {
            Error::Invalid { message, .. } => message,
            error => error.to_string(),
        };
        Error::invalid(message, format!("divide it into {counts} parts, or keep it whole in each process"))
    })
}

/// The same part, in memory of its own where it is not all of the whole.
fn apart(part: &Value, whole: &Value) -> Result<Value> {
    let (shared, _) = tree::flatten(whole, Open::Fully)?;
    let shared: Vec<usize> = shared.iter().filter_map(Value::as_dense).map(array_id).collect();
    tree::map(part, Open::Fully, |leaf| match leaf {
        Value::Dense(array) if !shared.contains(&array_id(&array)) => Ok(copied(&array)?.into()),
        leaf => Ok(leaf),
    })
}

pub(crate) fn slice(array: &Array, start: &[i32], stop: &[i32]) -> Result<Array> {
    let ranges: Vec<ArrayIndexOp<'_>> =
        start.iter().zip(stop).map(|(&start, &stop)| (start..stop).index_op()).collect();
    Ok(array.try_index(ranges.as_slice())?)
}
