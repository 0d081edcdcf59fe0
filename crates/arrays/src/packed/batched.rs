//! Batches of stored matrices: views of a packed array that say which of its matrices each entry is.

use std::ops::Range;

use mlx_rs::{Array, Dtype};
use tacit_core::primitives::{GatherMM, Reshaping, Slice};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, handler, implicit};
use tacit_kernels::Orientation;

use crate::avals::axes::{broadcast_strides, ranges, strides, swapped, walked};
use crate::avals::checks::{check_made, decline_if};
use crate::avals::dtypes::check_castable;
use crate::families::cut::{Cut, cut};
use crate::families::linear::{Linear, Product, dense_operand};
use crate::families::packed::{Packed, read_in};
use crate::kernel::{Groups, Layout, grouped_matmul};
use crate::packed::products::{product, products_by_index};
use crate::packed::shape::reshaped;
use crate::packed::slice::sliced;

/// The matrices along the last two axes of a packed array as a batch of any shape, each perhaps several times or not at all,
/// and transposed or not.
///
/// It is what keys and values become on their way into attention: heads that are repeated for groups of queries, axes that are
/// inserted, and the transpose of each matrix. Nothing is copied. A product with the matrices is computed from the codes of
/// each; one with their transposes becomes [`Scores`](crate::Scores), which wait for what is done to them.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::{Batched, Nf4Array};
/// use tacit_core::implicit;
///
/// let keys = Nf4Array::quantize(&ops::ones::<f32>(&[1, 2, 5, 64])?, 64)?;
/// let repeated = implicit(keys, |k| {
///     ops::broadcast_to(k.expand_dims(2)?, &[1, 2, 3, 5, 64])?.reshape(&[1, 6, 5, 64])?.swap_axes(-1, -2)
/// })?;
/// assert_eq!(repeated.to_string(), "Batched(f32[1,6,64,5])");
/// assert_eq!(repeated.downcast::<Batched>().map(Batched::matrices), Some(&[0, 0, 0, 1, 1, 1][..]));
/// # Ok(())
/// # }
/// ```
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Batched", family(Linear, Cut))]
pub struct Batched {
    /// The array that the matrices are in.
    #[implicit(get)]
    inner: Value,
    /// The number of each entry's matrix, row-major through the batch.
    #[implicit(aux, get)]
    matrices: Vec<usize>,
    #[implicit(aux)]
    transposed: bool,
    #[implicit(aux)]
    aval: Aval,
}

impl Batched {
    /// A batch of shape `batch` of the matrices along the last two axes of `inner`, entry by entry; of their transposes if
    /// `transposed`.
    ///
    /// # Errors
    ///
    /// `inner` is not packed, has fewer than two axes or blocks that belong to several of its matrices; or `matrices` is not of the
    /// batch's size, or names a matrix that there is not.
    pub fn new(inner: impl Into<Value>, batch: &[i32], matrices: Vec<usize>, transposed: bool) -> Result<Self> {
        let inner = inner.into();
        let Some(Some((count, matrix))) = inner.family::<dyn Packed>().map(stored_matrices) else {
            return Err(Error::invalid(
                format!("{inner} is not stored as several matrices"),
                "give a packed array of two axes or more whose blocks end with its matrices",
            ));
        };
        let entries: usize = batch.iter().map(|&extent| extent.max(0) as usize).product();
        if matrices.len() != entries || matrices.iter().any(|&matrix| matrix >= count) {
            return Err(Error::invalid(
                format!("{} entries of {inner} are no batch of shape {batch:?}", matrices.len()),
                format!("number the matrix of each entry, below {count}"),
            ));
        }
        let matrix = if transposed { [matrix[1], matrix[0]] } else { matrix };
        let aval = Aval::new(&[batch, &matrix].concat(), inner.aval()?.dtype);
        Ok(Self { inner, matrices, transposed, aval })
    }

    /// Whether each is the transpose of the stored matrix.
    #[must_use]
    pub fn is_transposed(&self) -> bool {
        self.transposed
    }

    /// All matrices of a packed array, as they are shown: behind the view they are as they are stored.
    pub(crate) fn whole(array: &dyn Packed) -> Result<Self> {
        let mut stored = array.stored();
        let transposed = std::mem::take(&mut stored.transposed);
        if transposed {
            stored.aval.shape = swapped(&stored.aval.shape);
        }
        let shape = stored.aval.shape.clone();
        let inner = Value::from(array.restored(stored));
        let Some(Some((count, _))) = inner.family::<dyn Packed>().map(stored_matrices) else {
            return Err(Error::decline("a block belongs to several of its matrices"));
        };
        Self::new(inner, &shape[..shape.len() - 2], (0..count).collect(), transposed)
    }

    /// The same codes and scales, read in another float type without the rounding of their own.
    pub(crate) fn read_in(&self, dtype: Dtype) -> Result<Self> {
        let aval = Aval::new(&self.aval.shape, dtype);
        Ok(Self { inner: read_in(self.packed()?, dtype), aval, ..self.clone() })
    }

    /// What a value is as a batch, if it is packed.
    pub(crate) fn from_packed(array: &dyn ImplicitArray) -> Result<Self> {
        if let Some(batched) = array.as_any().downcast_ref::<Self>() {
            return Ok(batched.clone());
        }
        let packed = array.family::<dyn Packed>().ok_or_else(|| Error::decline("it is not packed"))?;
        Self::whole(packed)
    }

    pub(crate) fn batch(&self) -> &[i32] {
        &self.aval.shape[..self.aval.shape.len() - 2]
    }

    /// A batch of entries of this one, from the `first` on by these strides.
    fn with(&self, batch: &[i32], strides: &[usize], first: usize) -> Self {
        let matrices = walked(batch, strides, first).into_iter().map(|at| self.matrices[at]).collect();
        let matrix = &self.aval.shape[self.aval.shape.len() - 2..];
        let aval = Aval::new(&[batch, matrix].concat(), self.aval.dtype);
        Self { inner: self.inner.clone(), matrices, transposed: self.transposed, aval }
    }

    fn packed(&self) -> Result<&dyn Packed> {
        self.inner.family().ok_or_else(|| Error::decline("what is behind the view is not packed"))
    }

    fn stored_matrix(&self) -> [i32; 2] {
        let shape = &self.aval.shape;
        let [a, b] = [shape[shape.len() - 2], shape[shape.len() - 1]];
        if self.transposed { [b, a] } else { [a, b] }
    }

    /// The children as kernels read them, and which matrices each entry is.
    pub(crate) fn kernel(&self) -> Result<(Layout, Vec<Array>, Groups)> {
        let stored = self.packed()?.stored();
        let [rows, k] = self.stored_matrix();
        let n = stored.aval.size() / (k as usize).max(1);
        let (layout, children) = stored.kernel(n as i32)?;
        Ok((layout, children, Groups { matrices: self.matrices.clone(), rows: rows as usize }))
    }

    /// The packed array itself where the view shows nothing else, or one matrix of it.
    fn simplified(self) -> Result<Value> {
        let count = self.inner.aval()?.size() / self.stored_matrix().iter().product::<i32>().max(1) as usize;
        if !self.transposed && self.matrices.iter().copied().eq(0..count) {
            let array = self.packed()?;
            return reshaped(array, array.stored(), &self.aval.shape);
        }
        if let ([], [at]) = (self.batch(), self.matrices.as_slice()) {
            let [rows, k] = self.stored_matrix();
            let array = self.packed()?;
            let stacked = reshaped(array, array.stored(), &[count as i32, rows, k])?;
            let stacked = stacked.family().ok_or_else(|| Error::decline("its reshape is not packed"))?;
            let at = *at as i32;
            let one = sliced(stacked, &[at, 0, 0], &[at + 1, rows, k])?;
            let one: &dyn Packed = one.family().ok_or_else(|| Error::decline("its slice is not packed"))?;
            let one = reshaped(one, one.stored(), &[rows, k])?;
            return if self.transposed { implicit(one, |one| Ok::<_, Error>(one.t())) } else { Ok(one) };
        }
        Ok(self.into())
    }

    pub(crate) fn multiplied(&self, x: &Array) -> Result<Array> {
        self.fits(x)?;
        let array = self.packed()?;
        // The rows of all entries are those of one product with one matrix, which rounds them where the matrix says so.
        if array.stored().aval.shape.len() == 2 {
            return product(x, array, self.transposed);
        }
        let (layout, children, mut groups) = self.kernel()?;
        groups.matrices.truncate(self.period());
        let orientation = if self.transposed { Orientation::Transposed } else { Orientation::Plain };
        grouped_matmul(x, layout, &children, orientation, groups)
    }

    /// The entries after which the matrices come again, along the first axes of the batch: they are as long as those of `x`, which a
    /// function without shapes cannot write down.
    fn period(&self) -> usize {
        let mut period = self.matrices.len();
        for &extent in self.batch() {
            let inner = period / (extent as usize).max(1);
            if (inner..period).any(|at| self.matrices[at] != self.matrices[at - inner]) {
                break;
            }
            period = inner;
        }
        period
    }

    /// Declines an array that is not of this batch.
    pub(crate) fn fits(&self, x: &Array) -> Result<()> {
        let rank = self.aval.shape.len();
        if x.ndim() == rank && x.shape()[..rank - 2] == *self.batch() {
            return Ok(());
        }
        Err(Error::decline(format!("{} is not of the batch of {}", Aval::from(x), self.aval)))
    }
}

/// How many matrices a packed array consists of, and their shape; nothing where they are not stored one by one.
fn stored_matrices(array: &dyn Packed) -> Option<(usize, [i32; 2])> {
    let stored = array.stored();
    let &[ref batch @ .., rows, k] = stored.aval.shape.as_slice() else { return None };
    let count = batch.iter().map(|&extent| extent as usize).product();
    let elements = rows as usize * k as usize;
    // One block may be that of all of them, which then need only bytes of their own.
    let in_one = stored.block >= count * elements && (elements * stored.scheme.bits()).is_multiple_of(8);
    let apart = count == 1 || in_one || elements.is_multiple_of(stored.unit());
    (apart && elements > 0 && !stored.transposed).then_some((count, [rows, k]))
}

impl Materialize for Batched {
    fn materialize(&self) -> Result<Value> {
        let inner = self.inner.opened()?;
        let Some(dense) = inner.as_dense() else {
            return Ok(Self { inner, ..self.clone() }.into());
        };
        let [rows, k] = self.stored_matrix();
        let matrices: Vec<i32> = self.matrices.iter().map(|&matrix| matrix as i32).collect();
        let stacked = dense.reshape(&[dense.size() as i32 / (rows * k), rows, k])?;
        let taken = stacked.take_axis(Array::from_slice(&matrices, &[matrices.len() as i32]), 0)?;
        let taken = if self.transposed { taken.swap_axes(-1, -2)? } else { taken };
        Ok(taken.reshape(&self.aval.shape)?.into())
    }

    fn check(&self) -> Result<()> {
        let batch = self.aval.shape.len().saturating_sub(2);
        check_made(self, &Self::new(&self.inner, &self.aval.shape[..batch], self.matrices.clone(), self.transposed)?)
    }
}

impl Cut for Batched {
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
        let rank = self.aval.shape.len();
        let mut shape = self.aval.shape.clone();
        shape[axis] = range.end - range.start;
        let array = self.packed()?;
        let stored = array.stored().aval.shape;
        if let Some(of_matrix) = (axis + 2).checked_sub(rank) {
            let along = stored.len() - 2 + if self.transposed { 1 - of_matrix } else { of_matrix };
            let inner = cut(&self.inner, along as i32, range)?;
            return Ok(Self::new(inner, &shape[..rank - 2], self.matrices.clone(), self.transposed)?.into());
        }
        let (batch, steps) = (&shape[..rank - 2], strides(self.batch()));
        let matrices =
            walked(batch, &steps, range.start as usize * steps[axis]).into_iter().map(|at| self.matrices[at]);
        let matrices: Vec<usize> = matrices.collect();
        let (first, last) = (matrices.iter().min().copied().unwrap_or(0), matrices.iter().max().copied().unwrap_or(0));
        let [rows, k] = self.stored_matrix();
        let count = stored[..stored.len() - 2].iter().product();
        let stacked = reshaped(array, array.stored(), &[count, rows, k])?;
        let inner = cut(&stacked, 0, first as i32..last as i32 + 1)?;
        Ok(Self::new(inner, batch, matrices.iter().map(|matrix| matrix - first).collect(), self.transposed)?.into())
    }
}

impl Linear for Batched {
    fn product(&self, product: Product, x: &Value) -> Result<Value> {
        let x = product.operand(x)?;
        if product == Product::Right {
            return Ok(self.multiplied(x)?.into());
        }
        // As the transpose of `x^T M^T`.
        self.fits(x)?;
        let mut other = Self { transposed: !self.transposed, ..self.clone() };
        other.aval.shape = swapped(&other.aval.shape);
        Ok(other.multiplied(&x.swap_axes(-1, -2)?)?.swap_axes(-1, -2)?.into())
    }

    /// What is chosen of the batch is chosen of the stored matrices.
    fn gather_mm(&self, _op: &GatherMM, x: &Value, left: &Array, right: &Array) -> Result<Value> {
        let orientation = if self.transposed { Orientation::Transposed } else { Orientation::Plain };
        let mut right = right.clone();
        if !self.matrices.iter().copied().eq(0..self.matrices.len()) {
            let matrices: Vec<u32> = self.matrices.iter().map(|&matrix| matrix as u32).collect();
            right = Array::from_slice(&matrices, &[matrices.len() as i32]).take_axis(&right, 0)?;
        }
        Ok(products_by_index(dense_operand(x)?, self.packed()?, orientation, [left, &right])?.into())
    }

    /// The batch in another order, the matrices transposed or not.
    fn transposed(&self, axes: &[i32]) -> Result<Value> {
        let rank = axes.len() as i32;
        let parts = axes.split_last_chunk::<2>().filter(|(_, last)| last.iter().all(|axis| *axis >= rank - 2));
        let lost = || Error::decline("an axis of the matrices becomes one of the batch");
        let (axes, last) = parts.ok_or_else(lost)?;
        let steps = strides(self.batch());
        let batch: Vec<i32> = axes.iter().map(|&axis| self.batch()[axis as usize]).collect();
        let strides: Vec<usize> = axes.iter().map(|&axis| steps[axis as usize]).collect();
        let mut result = self.with(&batch, &strides, 0);
        if last[0] > last[1] {
            result.transposed = !result.transposed;
            result.aval.shape = swapped(&result.aval.shape);
        }
        result.simplified()
    }

    /// The cast of what is behind the view, where that is read as another type.
    fn cast(&self, dtype: Dtype) -> Result<Value> {
        check_castable(dtype)?;
        let inner = implicit(&self.inner, |inner| inner.as_dtype(dtype))?;
        decline_if(inner.family::<dyn Packed>().is_none(), "a rounding must show")?;
        Ok(Self { inner, aval: Aval::new(&self.aval.shape, dtype), ..self.clone() }.into())
    }
}

/// Another shape of the batch.
#[handler]
pub(crate) fn batched_reshape(_op: &Reshaping, w: &Batched, results: &[Aval]) -> Result<Value> {
    let shape = &results[0].shape;
    let matrix = &w.aval.shape[w.aval.shape.len() - 2..];
    match shape.split_last_chunk::<2>() {
        Some((batch, last)) if last == matrix => w.with(batch, &strides(batch), 0).simplified(),
        _ => Err(Error::decline("the matrices would be cut")),
    }
}

/// Each matrix as often as a batch of this shape has it.
pub(crate) fn broadcast(w: &Batched, shape: &[i32]) -> Result<Value> {
    let matrix = &w.aval.shape[w.aval.shape.len() - 2..];
    let Some((batch, _)) = shape.split_last_chunk::<2>().filter(|(_, last)| *last == matrix) else {
        return Err(Error::decline("rows or columns of the matrices are repeated"));
    };
    let padded = [&vec![1; batch.len() - w.batch().len()], w.batch()].concat();
    w.with(batch, &broadcast_strides(&padded), 0).simplified()
}

/// A part of the batch, and of the rows of each stored matrix.
#[handler]
pub(crate) fn batched_slice(op: &Slice, w: &Batched, results: &[Aval]) -> Result<Value> {
    ranges(op, &results[0])?;
    let rank = w.aval.shape.len();
    let (rows, columns) = if w.transposed { (rank - 1, rank - 2) } else { (rank - 2, rank - 1) };
    decline_if(results[0].shape[columns] != w.aval.shape[columns], "the rows of the stored matrices would be cut")?;
    let steps = strides(w.batch());
    let first = op.start_indices.iter().zip(&steps).map(|(&start, stride)| start as usize * stride).sum();
    let mut part = w.with(&results[0].shape[..rank - 2], &steps, first);
    if results[0].shape[rows] != w.aval.shape[rows] {
        let array = w.packed()?;
        let mut stop = array.stored().aval.shape;
        let (mut start, axis) = (vec![0; stop.len()], stop.len() - 2);
        (start[axis], stop[axis]) = (op.start_indices[rows], op.end_indices[rows]);
        part.inner = sliced(array, &start, &stop)?;
        part.aval.shape[rows] = results[0].shape[rows];
        let matrices = part.inner.family::<dyn Packed>().and_then(stored_matrices);
        decline_if(matrices.is_none(), "a block would belong to several matrices")?;
    }
    part.simplified()
}
