//! Several arrays, concatenated along an axis without a copy.

use std::ops::Range;

use mlx_rs::{Array, Dtype, ops};
use tacit_core::primitives::{Broadcast, Reshaping, Split, reshaped_axis};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, handler, implicit};

use crate::avals::axes::{axis_of, from_zero};
use crate::avals::checks::{check_made, decline_if};
use crate::avals::dtypes::{accumulator_dtype, in_room};
use crate::families::cut::{Cut, cut};
use crate::families::linear::{Linear, Product, dense_operand};

/// Arrays of any types joined along an axis, such as the query, key and value weights of one projection.
///
/// A product is made of the parts' own products: side by side where the parts are joined along the axis that stays,
/// and summed where along the one that is summed over. So queries attend to stored keys and values and to dense ones behind them.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::{AffineArray, Concat, Nf4Array, format::Affine};
/// use tacit_core::implicit;
///
/// let (q, k) = (ops::ones::<f32>(&[8, 32])?, ops::ones::<f32>(&[4, 32])?);
/// let eight = AffineArray::quantize(&k, Affine { bits: 8, group: 32 })?;
/// let parts = vec![Nf4Array::quantize(&q, 64)?.into(), eight.into()];
/// let w = Concat::new(parts, 0)?;
/// let x = ops::ones::<f32>(&[2, 32])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(y.to_string(), "f32[2,12]");
/// # Ok(())
/// # }
/// ```
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Concat", family(Linear, Cut))]
pub struct Concat {
    /// The arrays that are joined.
    #[implicit(get)]
    parts: Vec<Value>,
    /// Where each part begins along the axis, and where the last one ends.
    #[implicit(aux)]
    bounds: Vec<i32>,
    /// The axis along which they are joined.
    #[implicit(aux, get)]
    axis: usize,
    #[implicit(aux)]
    aval: Aval,
}

impl Concat {
    /// `parts` one after the other along `axis`, which counts from the end if it is negative.
    ///
    /// # Errors
    ///
    /// There are no parts, they have no such axis, they differ in dtype or in another axis, or they are together longer
    /// than MLX counts.
    pub fn new(parts: Vec<Value>, axis: i32) -> Result<Self> {
        let avals = parts.iter().map(Value::aval).collect::<Result<Vec<_>>>()?;
        let Some(first) = avals.first() else {
            return Err(Error::invalid("there are no parts to join", "give at least one array"));
        };
        let counted = axis_of(first, axis, "to be joined along")?;
        let mut bounds = vec![0];
        let mut end = 0;
        for aval in &avals {
            let fits = aval.dtype == first.dtype
                && aval.shape.len() == first.shape.len()
                && (0..first.shape.len()).all(|other| other == counted || aval.shape[other] == first.shape[other]);
            if !fits {
                return Err(Error::invalid(
                    format!("{first} and {aval} are not joined along axis {axis}"),
                    "give parts of one dtype that differ in this axis alone",
                ));
            }
            end = aval.shape[counted].checked_add(end).ok_or_else(|| {
                Error::invalid(
                    format!("the parts are together longer than {} along axis {axis}", i32::MAX),
                    "join fewer parts",
                )
            })?;
            bounds.push(end);
        }
        let mut aval = first.clone();
        aval.shape[counted] = end;
        Ok(Self { parts, bounds, axis: counted, aval })
    }

    /// The joined array as a view where there is something to view.
    ///
    /// What is joined with something again and again, as the keys of a cache are, has few parts: of joined arrays in each other
    /// every call would go as deep as they do, and end the process where the stack does.
    pub(crate) fn view(parts: Vec<Value>, axis: usize) -> Result<Value> {
        let mut parts = flattened(parts, axis)?;
        if let [_] = parts[..] {
            return Ok(parts.swap_remove(0));
        }
        match dense(&parts) {
            Some(arrays) => Ok(ops::concatenate(&arrays, axis as i32)?.into()),
            None => Ok(Self::new(parts, axis as i32)?.into()),
        }
    }

    fn mapped(&self, axis: usize, mut f: impl FnMut(Array) -> Result<Array>) -> Result<Value> {
        let parts = self.parts.iter().map(|part| implicit(part, &mut f)).collect::<Result<_>>()?;
        Self::view(parts, axis)
    }

    /// What plain code makes of each part for a result of this shape, in which `axis` is that of the parts.
    fn shaped(&self, axis: usize, shape: &[i32], f: impl Fn(Array, &[i32]) -> Result<Array>) -> Result<Value> {
        let mut shape = shape.to_vec();
        self.mapped(axis, |part| {
            shape[axis] = part.dim(self.axis as i32);
            f(part, &shape)
        })
    }

    /// The parts between two places along the axis; declines where one that is not dense would be cut.
    fn between(&self, start: i32, stop: i32) -> Result<Value> {
        let places = [start, stop].map(|at| self.bounds.binary_search(&at));
        if let [Ok(first), Ok(last)] = places
            && first < last
        {
            return Self::view(self.parts[first..last].to_vec(), self.axis);
        }
        let is_dense = |at: usize| self.parts.get(at).is_some_and(|part| part.as_dense().is_some());
        let cuts_dense = places.into_iter().all(|place| match place {
            Ok(_) => true,
            Err(behind) => behind.checked_sub(1).is_some_and(is_dense),
        });
        decline_if(start >= stop || !cuts_dense, "a part would be cut")?;
        self.cut(self.axis, start..stop)
    }

    /// The products of `x` and each part: joined along the axis that is the matrix' own, or summed over the parts of `x`.
    fn multiplied(&self, product: Product, x: &Array) -> Result<Value> {
        let (axis, rank) = (product.axis(), self.aval.shape.len() as i32);
        let joined = self.axis as i32 - rank == axis;
        decline_if(self.axis as i32 + 2 < rank, "the parts are not joined along an axis of the matrices")?;
        let inner = &self.bounds[1..self.bounds.len() - 1];
        implicit((x, &self.parts), |(x, parts)| {
            if joined {
                let products = parts.iter().map(|part| product.apply(&x, part)).collect::<Result<Vec<_>>>()?;
                return Ok(ops::concatenate(&products, axis)?);
            }
            let pieces = x.split_at_indices(inner, axis)?;
            let accumulator = accumulator_dtype(self.aval.dtype);
            let of_part = |(x, part)| Ok(product.apply(&in_room(x)?, part)?.as_dtype(accumulator)?);
            let products = pieces.iter().zip(&parts).map(of_part);
            let sum = products.reduce(|sum, product| Ok(sum?.add(product?)?));
            let sum = sum.unwrap_or_else(|| Err(Error::decline("there are no parts")))?;
            Ok::<_, Error>(sum.as_dtype(self.aval.dtype)?)
        })
    }

    /// Rows: of each part, side by side where the parts are columns, and otherwise of the part that holds each.
    ///
    /// Of rows joined one above the other each part is asked for as many as are wanted.
    fn rows(&self, rows: &Array) -> Result<Value> {
        if self.axis > 0 {
            let axis = (rows.ndim() + self.axis - 1) as i32;
            return implicit((rows, &self.parts), |(rows, parts)| {
                let taken = parts.iter().map(|part| part.take_axis(&rows, 0));
                ops::concatenate(&taken.collect::<Result<Vec<_>, _>>()?, axis)
            });
        }
        let rows = rows.as_dtype(Dtype::Int32)?;
        implicit((rows, &self.parts), |(rows, parts)| {
            let mut result: Option<Array> = None;
            for (part, start) in parts.iter().zip(&self.bounds).filter(|(part, _)| part.dim(0) > 0) {
                let local = rows.subtract(Array::from_int(*start))?;
                let last = Array::from_int(part.dim(0) - 1);
                let taken = part.take_axis(ops::clip(&local, (&Array::from_int(0), &last))?, 0)?;
                // From the second part on, rows before it stay as they are.
                result = Some(match result {
                    None => taken,
                    Some(before) => {
                        let mut shape = rows.shape().to_vec();
                        shape.resize(taken.ndim(), 1);
                        ops::select(local.ge(Array::from_int(0))?.reshape(&shape)?, taken, before)?
                    }
                });
            }
            result.ok_or_else(|| Error::decline("there are no parts"))
        })
    }
}

/// The parts of those that are joined along this axis themselves, in their place. A dense part at the end of one of these and the
/// dense arrays beside it become one.
fn flattened(arrays: Vec<Value>, axis: usize) -> Result<Vec<Value>> {
    let mut parts: Vec<Value> = Vec::with_capacity(arrays.len());
    let mut was_joined = false;
    for array in arrays {
        let joined = array.downcast::<Concat>().filter(|joined| joined.axis == axis);
        let mut is_joined = joined.is_some();
        let mut inner = joined.map_or_else(|| vec![array.clone()], |joined| joined.parts.clone());
        if (was_joined || is_joined)
            && let Some(Value::Dense(before)) = parts.last_mut()
            && let Some(Value::Dense(first)) = inner.first()
        {
            *before = ops::concatenate(&[&*before, first], axis as i32)?;
            inner.remove(0);
            is_joined = true;
        }
        parts.extend(inner);
        was_joined = is_joined;
    }
    Ok(parts)
}

pub(crate) fn dense(values: &[Value]) -> Option<Vec<Array>> {
    values.iter().map(|value| value.as_dense().cloned()).collect()
}

impl Materialize for Concat {
    fn materialize(&self) -> Result<Value> {
        Self::view(self.parts.iter().map(Value::opened).collect::<Result<_>>()?, self.axis)
    }

    fn check(&self) -> Result<()> {
        // An axis that is no `i32` does not exist.
        check_made(self, &Self::new(self.parts.clone(), i32::try_from(self.axis).unwrap_or(i32::MAX))?)
    }
}

impl Cut for Concat {
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
        let mut parts = Vec::new();
        for (part, bounds) in self.parts.iter().zip(self.bounds.windows(2)) {
            let local = match bounds {
                &[first, last] if axis == self.axis => range.start.max(first) - first..range.end.min(last) - first,
                _ => range.clone(),
            };
            if local.start < local.end {
                parts.push(cut(part, axis as i32, local)?);
            }
        }
        Self::view(parts, self.axis)
    }
}

impl Linear for Concat {
    fn product(&self, product: Product, x: &Value) -> Result<Value> {
        let x = dense_operand(x)?;
        if product == Product::Rows { self.rows(x) } else { self.multiplied(product, x) }
    }

    /// The transposed parts, joined along the axis that theirs has become.
    fn transposed(&self, axes: &[i32]) -> Result<Value> {
        let axis = axes.iter().position(|&axis| axis as usize == self.axis);
        let axis = axis.ok_or_else(|| Error::decline("the axis of the parts is lost"))?;
        self.mapped(axis, |part| Ok(part.transpose_axes(axes)?))
    }

    fn cast(&self, dtype: Dtype) -> Result<Value> {
        self.mapped(self.axis, |part| Ok(part.as_dtype(dtype)?))
    }
}

/// The parts in another shape, in which their axis is still one.
#[handler]
pub(crate) fn concat_reshape(op: &Reshaping, w: &Concat, results: &[Aval]) -> Result<Value> {
    let (from, shape) = (&w.aval.shape, &results[0].shape);
    let axis = reshaped_axis(from, w.axis, shape, |extent| extent == from[w.axis]);
    let axis = axis.ok_or_else(|| Error::decline("the axis of the parts is lost"))?;
    w.shaped(axis, shape, |part, shape| op.of_part(&part, shape))
}

/// The parts several times, along other axes than theirs.
#[handler]
pub(crate) fn concat_broadcast(_op: &Broadcast, w: &Concat, others: &[&Value], results: &[Aval]) -> Result<Value> {
    // In a function without shapes it would be written down how often.
    decline_if(!others.is_empty(), "the other operands say how often")?;
    let (from, shape) = (&w.aval.shape, &results[0].shape);
    let axis = w.axis + shape.len() - from.len();
    decline_if(shape[axis] != from[w.axis], "the parts would be repeated along their own axis")?;
    w.shaped(axis, shape, |part, shape| Ok(ops::broadcast_to(part, shape)?))
}

/// Whole parts, one or several for each result; a dense one may be cut.
#[handler]
pub(crate) fn concat_split(op: &Split, w: &Concat) -> Result<Vec<Value>> {
    decline_if(from_zero(op.axis, w.aval.shape.len()) != Some(w.axis), "the parts themselves would be split")?;
    let starts = std::iter::once(0).chain(op.indices.iter().copied());
    let stops = op.indices.iter().copied().chain([w.aval.shape[w.axis]]);
    starts.zip(stops).map(|(start, stop)| w.between(start, stop)).collect()
}
