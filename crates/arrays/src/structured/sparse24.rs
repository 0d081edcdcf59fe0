//! Structured sparsity: two of each four elements.

use std::ops::Range;

use mlx_rs::{Array, Dtype, ops};
use tacit_core::primitives::{AsType, Gather, Multiply, Squeeze, Sum, Transpose};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, handler};

use crate::avals::axes::with_last;
use crate::avals::checks::{check_float, check_made, check_transposed, decline_if, stored_shape};
use crate::avals::dtypes::in_accumulator_dtype;
use crate::families::cut::{Cut, cut};
use crate::families::linear::{scalar, whole_rows};

/// An array that keeps two of each four neighbors along its last axis; the others are zero.
///
/// The kept elements of a group stand in `values`, in their order. Their places are two 2-bit numbers, the first in the
/// lower bits; a byte of `indices` holds two groups, the first in the lower four bits. A product with it needs the array
/// built: MLX has no sparse one, and to gather columns of the other side costs more than it saves.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_arrays::Sparse24;
/// use tacit_core::{Materialize, Value};
///
/// let w = Sparse24::prune(&Array::from_slice(&[1f32, -4.0, 3.0, 0.5], &[4]))?;
/// assert_eq!(w.materialize()?.dense()?.as_slice::<f32>(), [0.0, -4.0, 3.0, 0.0]);
/// # Ok(())
/// # }
/// ```
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Sparse24", family(Cut))]
pub struct Sparse24 {
    /// The kept elements, `[.., k / 2]`.
    #[implicit(get)]
    values: Array,
    /// Their places, `u8[.., ceil(k / 8)]`.
    #[implicit(get)]
    indices: Array,
    #[implicit(aux)]
    transposed: bool,
    #[implicit(aux)]
    aval: Aval,
}

impl Sparse24 {
    /// Keeps the two elements of largest magnitude of each four along the last axis of `x: [.., k]`.
    ///
    /// Of equal magnitudes the earlier one is kept. A NaN counts as infinite, so that it is not lost. It is lazy, and the
    /// gradient goes to the kept elements.
    ///
    /// # Errors
    ///
    /// `x` is not float or has no elements, or `k` is not a multiple of 4.
    pub fn prune(x: &Array) -> Result<Self> {
        let aval = Aval::from(x);
        check(&aval)?;
        let groups = with_last(&aval.shape, &[aval.shape[aval.shape.len() - 1] / 4, 4]);
        let x = x.reshape(&groups)?;
        let infinite = Array::from_f32(f32::INFINITY).as_dtype(x.dtype())?;
        let magnitude = mlx_rs::stop_gradient(ops::select(x.is_nan()?, infinite, x.abs()?)?)?;
        // An element is beaten by greater ones, and by equal ones before it.
        let (own, other) = (magnitude.expand_dims(-1)?, magnitude.expand_dims(-2)?);
        let place = places();
        let before = place.reshape(&[1, 4])?.lt(place.reshape(&[4, 1])?)?;
        let beaten = other.gt(&own)?.logical_or(other.eq(&own)?.logical_and(before)?)?;
        let rank = beaten.as_dtype(Dtype::Int32)?.sum_axes(&[-1], false)?;
        let is_kept = rank.lt(Array::from_int(2))?;
        let sentinel = |array: i32| ops::select(&is_kept, &place, Array::from_int(array));
        let first = sentinel(4)?.min_axes(&[-1], true)?;
        let second = sentinel(-1)?.max_axes(&[-1], true)?;
        let chosen = ops::concatenate(&[&first, &second], -1)?;
        let values = x.take_along_axis(&chosen, -1)?.flatten(-2, -1)?;
        let codes = first.add(second.multiply(Array::from_int(4))?)?.squeeze_axes(&[-1])?;
        Ok(Self { values, indices: packed(&codes)?, transposed: false, aval })
    }

    /// The array of kept elements and their places that were made elsewhere.
    ///
    /// The places of a group must differ; elements of one place are added.
    ///
    /// # Errors
    ///
    /// The shapes and dtypes do not belong to one array.
    pub fn from_parts(values: Array, indices: Array) -> Result<Self> {
        let mut shape = values.shape().to_vec();
        if let Some(last) = shape.last_mut() {
            *last = last.saturating_mul(2);
        }
        let aval = Aval::new(&shape, values.dtype());
        check(&aval)?;
        let last = shape[shape.len() - 1];
        let bytes = last / 8 + i32::from(last % 8 != 0);
        let (expected, found) = (Aval::new(&with_last(&shape, &[bytes]), Dtype::Uint8), Aval::from(&indices));
        if expected != found {
            return Err(Error::invalid(
                format!("the indices are {found}, and those of a sparse {aval} are {expected}"),
                "pack the places of two groups of four to a byte",
            ));
        }
        Ok(Self { values, indices, transposed: false, aval })
    }

    fn with(&self, values: Array) -> Value {
        Self { aval: Aval::new(&self.aval.shape, values.dtype()), values, ..self.clone() }.into()
    }
}

fn check(aval: &Aval) -> Result<()> {
    check_float("the array", aval)?;
    if aval.shape.last().is_none_or(|last| last % 4 != 0) {
        return Err(Error::invalid(
            format!("{aval} has no whole groups of four along its last axis"),
            "pad the last axis to a multiple of 4",
        ));
    }
    Ok(())
}

fn places() -> Array {
    Array::from_slice(&[0i32, 1, 2, 3], &[4])
}

/// Codes of four bits, `[.., groups]`, two to a byte, the first in the lower bits.
fn packed(codes: &Array) -> Result<Array> {
    let groups = codes.dim(-1);
    let codes = if groups % 2 == 0 {
        codes.clone()
    } else {
        let none = ops::zeros_dtype(&with_last(codes.shape(), &[1]), codes.dtype())?;
        ops::concatenate(&[codes, &none], -1)?
    };
    let pairs = codes.reshape(&with_last(codes.shape(), &[(groups + 1) / 2, 2]))?;
    let weights = Array::from_slice(&[1i32, 16], &[2]);
    Ok(pairs.multiply(weights)?.sum_axes(&[-1], false)?.as_dtype(Dtype::Uint8)?)
}

impl Materialize for Sparse24 {
    fn materialize(&self) -> Result<Value> {
        let groups = self.values.dim(-1) / 2;
        let bytes = self.indices.as_dtype(Dtype::Int32)?.expand_dims(-1)?;
        // Each byte as its four places, from the lowest bits on.
        let scales = Array::from_slice(&[1i32, 4, 16, 64], &[4]);
        let chosen = bytes.floor_divide(scales)?.remainder(Array::from_int(4))?;
        let chosen = chosen.flatten(-2, -1)?;
        let width = 4 * self.indices.dim(-1);
        let chosen =
            if width == 2 * groups { chosen } else { chosen.split_at_indices(&[2 * groups], -1)?.swap_remove(0) };
        let pairs = |array: &Array| ops::unflatten(array, -1, &[groups, 2, 1]);
        let zero = Array::from_f32(0.0).as_dtype(self.values.dtype())?;
        let placed = ops::select(pairs(&chosen)?.eq(places())?, pairs(&self.values)?, zero)?;
        let dense = placed.sum_axes(&[-2], false)?.flatten(-2, -1)?;
        Ok(if self.transposed { dense.t() } else { dense }.into())
    }

    fn check(&self) -> Result<()> {
        let plain = Self::from_parts(self.values.clone(), self.indices.clone())?;
        check_transposed(&plain.aval, self.transposed)?;
        let aval = Aval::new(&stored_shape(&plain.aval, self.transposed)?, plain.aval.dtype);
        check_made(self, &Self { transposed: self.transposed, aval, ..plain })
    }
}

impl Cut for Sparse24 {
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
        let along = if self.transposed { 1 - axis } else { axis };
        let last = self.values.ndim() - 1;
        let (mut places, mut bytes) = (range.clone(), range.clone());
        if along == last {
            // A byte has the places of two groups, of which the last one may be alone.
            if range.start % 8 != 0 || range.end % 8 != 0 && range.end != self.aval.shape[axis] {
                return Err(Error::invalid(
                    format!("a Sparse24 of {} is not cut from {} to {}", self.aval, range.start, range.end),
                    "cut it at multiples of 8, where the bytes of its places end",
                ));
            }
            (places, bytes) = (range.start / 2..range.end / 2, range.start / 8..(range.end + 7) / 8);
        }
        let values = cut(&(&self.values).into(), along as i32, places)?.dense()?;
        let indices = cut(&(&self.indices).into(), along as i32, bytes)?.dense()?;
        let mut aval = self.aval.clone();
        aval.shape[axis] = range.end - range.start;
        Ok(Self { values, indices, transposed: self.transposed, aval }.into())
    }
}

/// A matrix the other way round, as a view.
#[handler]
pub(crate) fn sparse24_transpose(op: &Transpose, w: &Sparse24) -> Result<Value> {
    match (op.axes.as_slice(), w.aval.shape.as_slice()) {
        ([1, 0], &[rows, columns]) => {
            let aval = Aval::new(&[columns, rows], w.aval.dtype);
            Ok(Sparse24 { transposed: !w.transposed, aval, ..w.clone() }.into())
        }
        (axes, _) if axes.is_sorted() => Ok(w.clone().into()),
        _ => Err(Error::decline("only matrices are transposed as a view")),
    }
}

/// The kept elements in another float type.
#[handler]
pub(crate) fn sparse24_astype(op: &AsType, w: &Sparse24) -> Result<Value> {
    decline_if(!op.dtype.is_float(), "only float arrays are sparse")?;
    Ok(w.with(w.values.as_dtype(op.dtype)?))
}

/// A scalar as the other operand: zero elements stay zero, even if it is infinite or NaN.
#[handler]
pub(crate) fn sparse24_multiply(_op: &Multiply, w: &Sparse24, x: &Array) -> Result<Value> {
    Ok(w.with(w.values.multiply(scalar(x)?)?))
}

/// Rows, which are built, as an embedding takes them.
#[handler]
pub(crate) fn sparse24_gather(op: &Gather, w: &Sparse24, rows: &Array) -> Result<Array> {
    decline_if(w.transposed || w.aval.shape.len() < 2, "elements of groups are not gathered from the parts")?;
    whole_rows(op, &w.aval)?;
    let (values, indices) = (w.values.take_axis(rows, 0)?, w.indices.take_axis(rows, 0)?);
    let aval = Aval::new(&[rows.shape(), &w.aval.shape[1..]].concat(), w.aval.dtype);
    let taken = Sparse24 { values, indices, transposed: false, aval }.materialize()?.dense()?;
    Ok(taken.expand_dims(rows.ndim() as i32)?)
}

/// Fewer axes, but for the one of the groups.
#[handler]
pub(crate) fn sparse24_squeeze(op: &Squeeze, w: &Sparse24) -> Result<Value> {
    // An axis of size 1 holds no group, so that only a transposed matrix has one in the place of another.
    decline_if(w.transposed, "the matrix is transposed")?;
    let (values, indices) = (w.values.squeeze_axes(&op.axes)?, w.indices.squeeze_axes(&op.axes)?);
    let extents = w.aval.shape.iter().zip(0..).filter(|(_, axis)| !op.axes.contains(axis));
    let shape: Vec<i32> = extents.map(|(&extent, _)| extent).collect();
    Ok(Sparse24 { values, indices, transposed: false, aval: Aval::new(&shape, w.aval.dtype) }.into())
}

/// The sum along the axis of the groups, of the kept elements alone; others decline.
#[handler]
pub(crate) fn sparse24_sum(op: &Sum, w: &Sparse24) -> Result<Array> {
    let group_axis = if w.transposed { 0 } else { w.aval.shape.len() as i32 - 1 };
    decline_if(!op.axes.contains(&group_axis), "a group is not summed as a whole")?;
    let values = if w.transposed { w.values.t() } else { w.values.clone() };
    in_accumulator_dtype(&values, |values| Ok(values.sum_axes(&op.axes, true)?))
}
