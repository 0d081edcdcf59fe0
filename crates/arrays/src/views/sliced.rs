//! A part of an array.

use std::ops::Range;

use mlx_rs::{Array, Dtype};
use tacit_core::primitives::Slice;
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, handler, implicit};

use crate::avals::axes::ranges;
use crate::avals::checks::{check_made, decline_if};
use crate::families::cut::{self, Cut, slice};
use crate::families::linear::{Linear, Product, dense_operand};

/// A range along each axis of any array, for types that cannot cut their own codes.
///
/// A product with it computes that of the whole array and cuts the result, where the range covers the axis that is
/// summed over and at least half of the other one. What is smaller is cheaper to materialize.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::{Nf4Array, Sliced};
/// use tacit_core::implicit;
///
/// let w = Sliced::new(Nf4Array::quantize(&ops::ones::<f32>(&[8, 32])?, 64)?, &[2, 0], &[7, 32])?;
/// let x = ops::ones::<f32>(&[2, 32])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(y.to_string(), "f32[2,5]");
/// # Ok(())
/// # }
/// ```
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Sliced", family(Linear, Cut))]
pub struct Sliced {
    /// The array that this is a part of.
    #[implicit(get)]
    inner: Value,
    #[implicit(aux)]
    start: Vec<i32>,
    #[implicit(aux)]
    stop: Vec<i32>,
    #[implicit(aux)]
    aval: Aval,
}

impl Sliced {
    /// The elements of `inner` from `start` to before `stop`, one number of each for each axis.
    ///
    /// # Errors
    ///
    /// There are more or fewer numbers than axes, or a range is empty or reaches outside its axis.
    pub fn new(inner: impl Into<Value>, start: &[i32], stop: &[i32]) -> Result<Self> {
        let inner = inner.into();
        let aval = inner.aval()?;
        let within = |((&start, &stop), &extent): ((&i32, &i32), &i32)| 0 <= start && start < stop && stop <= extent;
        if [start.len(), stop.len()] != [aval.shape.len(); 2] || !start.iter().zip(stop).zip(&aval.shape).all(within) {
            return Err(Error::invalid(
                format!("{aval} has no slice from {start:?} to {stop:?}"),
                "give a range that is not empty, counted from zero, for each axis",
            ));
        }
        let shape: Vec<i32> = start.iter().zip(stop).map(|(start, stop)| stop - start).collect();
        Ok(Self { inner, start: start.to_vec(), stop: stop.to_vec(), aval: Aval::new(&shape, aval.dtype) })
    }

    /// The slice as a view where there is something to view.
    pub(crate) fn view(inner: Value, start: &[i32], stop: &[i32]) -> Result<Value> {
        if let Some(view) = inner.downcast::<Self>() {
            let from_start =
                |indices: &[i32]| indices.iter().zip(&view.start).map(|(index, start)| index + start).collect();
            let (start, stop): (Vec<i32>, Vec<i32>) = (from_start(start), from_start(stop));
            return Self::view(view.inner.clone(), &start, &stop);
        }
        match inner {
            Value::Dense(array) => Ok(slice(&array, start, stop)?.into()),
            inner @ Value::Implicit(_) => {
                let view = Self::new(inner, start, stop)?;
                if view.inner.aval()? == view.aval { Ok(view.inner) } else { Ok(view.into()) }
            }
        }
    }

    /// The range along the axis `kept`, counted from the end; declines unless it is the only one that is cut, by at
    /// most half.
    fn half(&self, kept: usize) -> Result<[i32; 2]> {
        let whole = self.inner.aval()?.shape;
        let rank = whole.len();
        let is_cut = |axis: usize| axis + kept != rank && self.aval.shape[axis] != whole[axis];
        decline_if(rank < 2 || (0..rank).any(is_cut), "another axis than that of the output is cut")?;
        let axis = rank - kept;
        let extent = self.aval.shape[axis];
        decline_if(extent < whole[axis] - extent, "less than half of the product is wanted")?;
        Ok([self.start[axis], self.stop[axis]])
    }

    /// Rows of the whole array, cut to the slice's columns.
    fn rows(&self, rows: &Array) -> Result<Value> {
        let counted = rows.add(Array::from_slice(&[self.start[0] as u32], &[]))?;
        let taken = implicit((&self.inner, counted), |(w, rows)| w.take_axis(rows, 0))?;
        let start = [&vec![0; rows.ndim()], &self.start[1..]].concat();
        let stop = [rows.shape(), &self.stop[1..]].concat();
        decline_if(stop.iter().zip(&start).any(|(stop, start)| stop <= start), "nothing is gathered")?;
        implicit(taken, |taken| slice(&taken, &start, &stop))
    }
}

impl Materialize for Sliced {
    fn materialize(&self) -> Result<Value> {
        Self::view(self.inner.opened()?, &self.start, &self.stop)
    }

    fn check(&self) -> Result<()> {
        check_made(self, &Self::new(&self.inner, &self.start, &self.stop)?)
    }
}

impl Cut for Sliced {
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
        let from = self.start[axis];
        let inner = cut::cut(&self.inner, axis as i32, from + range.start..from + range.end)?;
        let (mut start, mut stop) = (self.start.clone(), self.stop.clone());
        (start[axis], stop[axis]) = (0, range.end - range.start);
        Self::view(inner, &start, &stop)
    }
}

impl Linear for Sliced {
    fn product(&self, product: Product, x: &Value) -> Result<Value> {
        let x = dense_operand(x)?;
        if product == Product::Rows {
            return self.rows(x);
        }
        let axis = product.axis();
        let range = self.half(-axis as usize)?;
        implicit((x, &self.inner), |(x, w)| {
            Ok::<_, Error>(product.apply(&x, &w)?.split_at_indices(&range, axis)?.swap_remove(1))
        })
    }

    fn transposed(&self, axes: &[i32]) -> Result<Value> {
        let permuted = |ends: &[i32]| axes.iter().map(|&axis| ends[axis as usize]).collect::<Vec<i32>>();
        let inner = implicit(&self.inner, |w| w.transpose_axes(axes))?;
        Self::view(inner, &permuted(&self.start), &permuted(&self.stop))
    }

    fn cast(&self, dtype: Dtype) -> Result<Value> {
        Self::view(implicit(&self.inner, |w| w.as_dtype(dtype))?, &self.start, &self.stop)
    }
}

/// The slice of a slice.
#[handler]
pub(crate) fn sliced_slice(op: &Slice, w: &Sliced, results: &[Aval]) -> Result<Value> {
    ranges(op, &results[0])?;
    Sliced::view(w.clone().into(), &op.start_indices, &op.end_indices)
}
