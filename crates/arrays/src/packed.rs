//! Arrays of codes and scales, and products with them, reduced to one with the packed side on the right.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::op::{AsType, Gather, GatherMM, Transpose};
use tacit_core::{Aval, Error, ImplicitArray, Result, Value, handler};
use tacit_kernels::Orientation;

use crate::batched::{Batched, transposed};
use crate::cast::{Cast, castable, holds};
use crate::dynamic8::Dynamic8Array;
use crate::k_quant;
use crate::kernel::{self, Coding, Layout, Nested, Scaling, Scheme, StackLayout};
use crate::linear::{Linear, dense_side};

/// The family of arrays of codes and scales: its members are multiplied, gathered, cut, joined and scaled by their codes.
pub trait Packed: ImplicitArray {
    /// The children by their part, and how they are read.
    fn stored(&self) -> Stored;

    /// This array with other children, of the same format and block.
    fn restored(&self, stored: Stored) -> Box<dyn ImplicitArray>;

    /// Whether the format of this array has blocks of so many elements, too.
    fn has_block(&self, block: usize) -> bool {
        block == self.stored().block
    }

    /// This array with other children, in blocks of a size that the format [has](Self::has_block).
    fn reblocked(&self, stored: Stored) -> Box<dyn ImplicitArray> {
        self.restored(stored)
    }

    /// Floats, whose last axis is that of the stored array, by the format of this array: what is written into it.
    ///
    /// # Errors
    ///
    /// The type does not quantize, or the floats do not fit its format.
    fn encoded(&self, rows: &Array) -> Result<Stored> {
        Err(Error::decline(format!("the type does not quantize {}", Aval::from(rows))))
    }

    /// The text of its format, as rules have it, if it is declared.
    fn format_text(&self) -> Option<String> {
        None
    }

    /// Whether products with the transpose round the activations to 8 bits.
    fn int8_activations(&self) -> bool {
        false
    }
}

/// What every packed array is made of.
#[derive(Clone, Debug)]
pub struct Stored {
    /// How codes and scales are read.
    pub scheme: Scheme,
    /// The codes.
    pub codes: Array,
    /// One for each block; `None` where the codes are the values.
    pub scales: Option<Value>,
    /// The biases, or the factor of all scales; float.
    pub modifier: Option<Array>,
    /// Elements in a block.
    pub block: usize,
    /// Whether the stored array has its last two axes the other way round.
    pub transposed: bool,
    /// The logical array.
    pub aval: Aval,
}

/// The greatest factor that NVFP4 encodes: the largest E4M3 times the largest E2M1.
const NVFP4_RANGE: f32 = 448.0 * 6.0;

impl Stored {
    /// The shape in which the codes lie.
    pub(crate) fn shape(&self) -> Vec<i32> {
        if self.transposed { turned(&self.aval.shape) } else { self.aval.shape.clone() }
    }

    /// The children as the kernels read them, for a matrix of `n` rows.
    pub(crate) fn kernel(&self, n: i32) -> Result<(Layout, Vec<Array>)> {
        let mut scheme = self.scheme;
        let mut children = vec![self.codes.clone()];
        let (n, size) = (n as usize, self.aval.size());
        let layout = Layout { scheme, n, k: size.checked_div(n).unwrap_or_default(), block: self.block };
        let Some(scales) = &self.scales else { return Ok((layout, children)) };
        match (scales, scales.downcast::<Dynamic8Array>()) {
            (scales, None) if matches!(scheme.nested, Some(Nested::Integers { .. })) => {
                let (scaling, parts) = k_quant::children(scales, &layout)?;
                scheme.scaling = scaling;
                children.extend(parts);
            }
            (_, Some(nested)) => {
                scheme.scaling = Scaling::Nested { block: nested.block_size() };
                children.extend(match scheme.coding {
                    Coding::Signed => nested.scaled(|number| Ok(number.divide(Array::from_f32(127.0))?))?.parts(),
                    // Children that were cast, as a tree of them may be.
                    _ => nested.scaled(|number| Ok(number.as_dtype(Dtype::Float32)?))?.parts(),
                });
            }
            (scales, None) => {
                let scales = scales.dense()?;
                children.push(match scheme.coding {
                    Coding::Signed => scales.divide(Array::from_f32(127.0))?,
                    _ => scales,
                });
            }
        }
        if let Some(modifier) = &self.modifier {
            children.push(match scheme.scaling {
                Scaling::E4m3 => modifier.divide(Array::from_f32(NVFP4_RANGE))?,
                _ => modifier.clone(),
            });
        }
        Ok((Layout { scheme, ..layout }, children))
    }
}

/// The dense array.
pub(crate) fn dense(array: &dyn Packed) -> Result<Value> {
    let stored = array.stored();
    let shape = stored.shape();
    let (layout, children) = stored.kernel(shape.first().copied().unwrap_or(1))?;
    let made = kernel::dequantize(layout, &children, stored.aval.dtype)?.reshape(&shape)?;
    Ok(if stored.transposed { made.swap_axes(-1, -2)? } else { made }.into())
}

/// A shape with its last two axes the other way round.
pub(crate) fn turned(shape: &[i32]) -> Vec<i32> {
    let mut shape = shape.to_vec();
    if let [.., a, b] = shape.as_mut_slice() {
        std::mem::swap(a, b);
    }
    shape
}

/// `x M` for `x: [.., rows]`, where `M` is the matrix or, if `turned`, its transpose; of several matrices each with its own
/// part of `x`.
fn product(x: &Array, array: &dyn Packed, turned: bool) -> Result<Array> {
    let stored = array.stored();
    let orientation = if stored.transposed == turned { Orientation::Plain } else { Orientation::Transposed };
    let (n, k) = match *stored.shape() {
        [n, k] => (n, k),
        [count, _, _] if x.ndim() == 3 && x.dim(0) == count => {
            let each = ops::arange::<_, u32>(None, count, None)?;
            return chosen(x, array, orientation, [&each, &each]);
        }
        _ => return Err(Error::decline(format!("{} is not a matrix, nor a stack of them", stored.aval))),
    };
    let (depth, columns) = if orientation == Orientation::Transposed { (k, n) } else { (n, k) };
    let (layout, children) = stored.kernel(n)?;
    let mut shape = x.shape().to_vec();
    // MLX infers no extent of an empty array.
    let flat = x.reshape(&[shape.iter().rev().skip(1).product(), depth])?;
    let y = if array.int8_activations() && orientation == Orientation::Transposed {
        kernel::int8_matmul(&flat, layout, &children)?
    } else {
        kernel::matmul(&flat, layout, &children, orientation)?
    };
    if let Some(last) = shape.last_mut() {
        *last = columns;
    }
    Ok(y.reshape(&shape)?)
}

/// The products of chosen matrices of `x: [.., m, depth]` with chosen ones of a packed stack: `[.., m, columns]`, the axes
/// before the last two being those of the indices.
pub(crate) fn chosen(x: &Array, array: &dyn Packed, orientation: Orientation, indices: [&Array; 2]) -> Result<Array> {
    let stored = array.stored();
    let shape = stored.shape();
    let ([stack @ .., n, k], [groups @ .., m, depth]) = (shape.as_slice(), x.shape()) else {
        return Err(Error::decline("vectors have no products to choose from"));
    };
    let count = stack.iter().product::<i32>();
    let (rows, children) = stored.kernel(count * n)?;
    let [left, right] = indices.map(|index| index.flatten(None, None)?.as_dtype(Dtype::Uint32));
    let x = x.reshape(&[groups.iter().product(), *m, *depth])?;
    let stack = StackLayout { rows, count: count as usize, orientation };
    let y = kernel::gather_matmul([&x, &left?, &right?], stack, &children)?;
    let columns = if orientation == Orientation::Transposed { *n } else { *k };
    Ok(y.reshape(&[indices[0].shape(), &[*m, columns]].concat())?)
}

impl<T: Packed> Linear for T {
    fn right(&self, x: &Value) -> Result<Value> {
        if self.stored().aval.shape.len() > 2
            && let Ok(batch) = Batched::whole(self)
        {
            return batch.right(x);
        }
        Ok(product(dense_side(x)?, self, false)?.into())
    }

    /// As the transpose of `x^T M^T`.
    fn left(&self, x: &Value) -> Result<Value> {
        if self.stored().aval.shape.len() > 2
            && let Ok(batch) = Batched::whole(self)
        {
            return batch.left(x);
        }
        let x = dense_side(x)?;
        if x.ndim() < 2 {
            return Err(Error::decline("the right side is a vector"));
        }
        Ok(product(&x.swap_axes(-1, -2)?, self, true)?.swap_axes(-1, -2)?.into())
    }
}

/// Whole rows, as an embedding takes them.
#[handler]
pub fn packed_gather(op: &Gather, array: &dyn Packed, rows: &Array) -> Result<Array> {
    let stored = array.stored();
    let shape = stored.shape();
    let whole = shape.len() > 1 && op.axes == [0] && op.slice_sizes[0] == 1 && op.slice_sizes[1..] == shape[1..];
    if stored.transposed || !whole {
        return Err(Error::decline("only whole rows are gathered from packed codes"));
    }
    let wanted = rows.flatten(None, None)?.as_dtype(Dtype::Uint32)?;
    let (layout, children) = stored.kernel(shape[0])?;
    let made = kernel::gather_rows(layout, &wanted, &children, stored.aval.dtype)?;
    Ok(made.reshape(&[rows.shape(), &op.slice_sizes].concat())?)
}

/// Matrices the other way round, and a batch of them in another order, as a view; any array whose axes stay as they are.
#[handler]
pub fn packed_transpose(op: &Transpose, array: &dyn Packed) -> Result<Value> {
    if op.axes.is_sorted() {
        return Ok(itself(array));
    }
    if op.axes.len() > 2
        && let Ok(batch) = Batched::whole(array)
    {
        return transposed(&batch, &op.axes);
    }
    if !turned(&op.axes).is_sorted() {
        return Err(Error::decline("only the last two axes are transposed as a view"));
    }
    let mut stored = array.stored();
    stored.transposed = !stored.transposed;
    stored.aval.shape = turned(&stored.aval.shape);
    Ok(array.restored(stored).into())
}

/// The products of chosen matrices with chosen experts, which are packed as one array.
#[handler]
pub fn packed_gather_mm(_op: &GatherMM, x: &Array, w: &dyn Packed, left: &Array, right: &Array) -> Result<Array> {
    let orientation = if w.stored().transposed { Orientation::Transposed } else { Orientation::Plain };
    chosen(x, w, orientation, [left, right])
}

/// Another float type: the codes and scales as they are, read so, or a [`Cast`] where a rounding must show.
#[handler]
pub fn packed_astype(op: &AsType, array: &dyn Packed) -> Result<Value> {
    let dtype = op.dtype;
    if !castable(dtype) {
        return Err(Error::decline("only f32, bf16 and f16 are read as views"));
    }
    let own = array.aval()?.dtype;
    let read = |dtype| read_in(array, dtype);
    let half = array.stored().scheme.half();
    // Values that the array's own type holds as they are show no rounding in a wider one either.
    if holds(dtype, own) || half.is_some_and(|half| half == own) && holds(own, dtype) {
        return Ok(read(dtype));
    }
    // The rounding of the narrower type shows; products leave it out.
    Cast::of(read(Dtype::Float32), own, dtype)
}

/// The same codes and scales, read in another float type without the rounding of their own.
pub(crate) fn read_in(array: &dyn Packed, dtype: Dtype) -> Value {
    let mut stored = array.stored();
    stored.aval.dtype = dtype;
    Value::from(array.restored(stored))
}

/// The array again.
pub(crate) fn itself(array: &dyn Packed) -> Value {
    Value::Implicit(dyn_clone::clone_box(array))
}
