//! What every packed type is made of, and products with it, reduced to one with the packed side on the right.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::op::{AddMM, Gather, Transpose};
use tacit_core::{Aval, Error, ImplicitArray, Result, Value};
use tacit_kernels::Orientation;

use crate::cast::{Cast, castable, holds};
use crate::dynamic8::Dynamic8Array;
use crate::kernel::{self, Coding, Format, Layout, Scaling};

/// An implicit array of codes and scales.
pub(crate) trait Packed: ImplicitArray + Clone {
    /// The children by their part, and how they are read.
    fn stored(&self) -> Stored;

    /// This array with other children, of the same format and block.
    fn restored(&self, stored: Stored) -> Self;

    /// Whether products with the transpose round the activations to 8 bits.
    fn int8_activations(&self) -> bool {
        false
    }
}

/// What every packed array is made of.
#[derive(Clone)]
pub(crate) struct Stored {
    pub(crate) format: Format,
    pub(crate) codes: Array,
    /// One for each block.
    pub(crate) scales: Value,
    /// The biases, or the factor of all scales; float.
    pub(crate) modifier: Option<Array>,
    /// Elements in a block.
    pub(crate) block: usize,
    /// Whether the stored matrix has its axes the other way round.
    pub(crate) transposed: bool,
    /// The logical array.
    pub(crate) aval: Aval,
}

/// The greatest factor that NVFP4 encodes: the largest E4M3 times the largest E2M1.
const NVFP4_RANGE: f32 = 448.0 * 6.0;

impl Stored {
    /// The shape in which the codes lie.
    pub(crate) fn shape(&self) -> Vec<i32> {
        let mut shape = self.aval.shape.clone();
        if self.transposed {
            shape.reverse();
        }
        shape
    }

    /// Rows and columns as stored; an array of another rank declines.
    fn layout(&self) -> Result<(i32, i32)> {
        match *self.shape().as_slice() {
            [n, k] => Ok((n, k)),
            _ => Err(Error::decline(format!("{} is not a matrix", self.aval))),
        }
    }

    /// The children as the kernels read them, for a matrix of `n` rows.
    fn kernel(&self, n: i32) -> Result<(Layout, Vec<Array>)> {
        let mut format = self.format;
        let mut children = vec![self.codes.clone()];
        match (&self.scales, self.scales.downcast::<Dynamic8Array>()) {
            (_, Some(nested)) => {
                format.scaling = Scaling::Nested { block: nested.block_size() };
                children.extend(match format.coding {
                    Coding::Signed => nested.scaled(|number| Ok(number.divide(Array::from_f32(127.0))?))?.parts(),
                    // Children that were cast, as a tree of them may be.
                    _ => nested.scaled(|number| Ok(number.as_dtype(Dtype::Float32)?))?.parts(),
                });
            }
            (scales, None) => {
                let scales = scales.dense()?;
                children.push(match format.coding {
                    Coding::Signed => scales.divide(Array::from_f32(127.0))?,
                    _ => scales,
                });
            }
        }
        if let Some(modifier) = &self.modifier {
            children.push(match format.scaling {
                Scaling::E4m3 => modifier.divide(Array::from_f32(NVFP4_RANGE))?,
                _ => modifier.clone(),
            });
        }
        let (n, size) = (n as usize, self.aval.size());
        Ok((Layout { format, n, k: size.checked_div(n).unwrap_or_default(), block: self.block }, children))
    }
}

/// The scales of a type whose scales are always dense; structural ops give dense ones for dense ones.
pub(crate) fn dense_scales(scales: &Value, own: &Array) -> Array {
    scales.as_dense().unwrap_or(own).clone()
}

/// The dense array.
pub(crate) fn dense(array: &impl Packed) -> Result<Value> {
    let stored = array.stored();
    let shape = stored.shape();
    let (layout, children) = stored.kernel(shape.first().copied().unwrap_or(1))?;
    let made = kernel::dequantize(layout, &children, stored.aval.dtype)?.reshape(&shape)?;
    Ok(if stored.transposed { made.t() } else { made }.into())
}

/// `x M` for `x: [.., rows]`, where `M` is the matrix or, if `turned`, its transpose.
fn product(x: &Array, array: &impl Packed, turned: bool) -> Result<Array> {
    let stored = array.stored();
    let (n, k) = stored.layout()?;
    let transposed = stored.transposed != turned;
    let (depth, columns, orientation) =
        if transposed { (k, n, Orientation::Transposed) } else { (n, k, Orientation::Plain) };
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

/// `x M` for `x: [.., rows]`.
pub(crate) fn right(x: &Array, matrix: &impl Packed) -> Result<Array> {
    product(x, matrix, false)
}

/// `M x` for `x: [.., columns, k]`, as the transpose of `x^T M^T`.
pub(crate) fn left(matrix: &impl Packed, x: &Array) -> Result<Array> {
    if x.ndim() < 2 {
        return Err(Error::decline("the right side is a vector"));
    }
    Ok(product(&x.swap_axes(-1, -2)?, matrix, true)?.swap_axes(-1, -2)?)
}

/// `alpha * product + beta * c`, as `AddMM` has it.
pub(crate) fn scaled_sum(op: &AddMM, c: &Array, product: &Array) -> Result<Array> {
    let scaled = |array: &Array, factor: f32| -> Result<Array> {
        #[allow(clippy::float_cmp, reason = "exactly 1 is what an op without the parameter stores")]
        if factor == 1.0 {
            return Ok(array.clone());
        }
        Ok(array.multiply(Array::from_f32(factor).as_dtype(array.dtype())?)?)
    };
    let product = scaled(product, op.alpha)?;
    #[allow(clippy::float_cmp, reason = "exactly 0 is where MLX does not read c")]
    if op.beta == 0.0 {
        return Ok(product);
    }
    Ok(product.add(scaled(c, op.beta)?)?)
}

/// Whole rows, as an embedding takes them.
pub(crate) fn gather(op: &Gather, array: &impl Packed, rows: &Array) -> Result<Array> {
    let stored = array.stored();
    let shape = stored.shape();
    let whole = shape.len() > 1 && op.axes == [0] && op.slice_sizes[0] == 1 && op.slice_sizes[1..] == shape[1..];
    if stored.transposed || !whole {
        return Err(Error::decline("only whole rows are gathered from packed codes"));
    }
    let wanted = rows.flatten(None, None)?.as_dtype(Dtype::Int32)?;
    let from_end = wanted.add(Array::from_int(shape[0]))?;
    let wanted = ops::select(wanted.lt(Array::from_int(0))?, from_end, wanted)?.as_dtype(Dtype::Uint32)?;
    let (layout, children) = stored.kernel(shape[0])?;
    let made = kernel::gather_rows(layout, &wanted, &children, stored.aval.dtype)?;
    Ok(made.reshape(&[rows.shape(), &op.slice_sizes].concat())?)
}

/// A matrix the other way round, as a view; any array whose axes stay as they are.
pub(crate) fn transpose(op: &Transpose, array: &impl Packed) -> Result<Value> {
    let mut stored = array.stored();
    match op.axes.as_slice() {
        [1, 0] => {
            stored.transposed = !stored.transposed;
            stored.aval.shape.reverse();
            Ok(array.restored(stored).into())
        }
        axes if axes.is_sorted() => Ok(array.clone().into()),
        _ => Err(Error::decline("only matrices are transposed as a view")),
    }
}

/// Another float type: the codes and scales as they are, read so, or a [`Cast`] where a rounding must show.
pub(crate) fn astype(dtype: Dtype, array: &impl Packed) -> Result<Value> {
    if !castable(dtype) {
        return Err(Error::decline("only f32, bf16 and f16 are read as views"));
    }
    let own = array.aval()?.dtype;
    let read = |dtype| {
        let mut stored = array.stored();
        stored.aval.dtype = dtype;
        Value::from(array.restored(stored))
    };
    if holds(dtype, own) {
        return Ok(read(dtype));
    }
    // The rounding of the narrower type shows; products leave it out.
    Cast::of(read(Dtype::Float32), own, dtype)
}

/// The handlers that every [`Packed`] type has, under the names given for it.
macro_rules! packed_handlers {
    (
        $ty:ident: $matmul:ident, $matmul_left:ident, $addmm:ident, $addmm_left:ident, $gather:ident, $transpose:ident,
        $astype:ident, $reshape:ident, $flatten:ident, $unflatten:ident, $expand_dims:ident, $squeeze:ident,
        $slice:ident, $concatenate:ident $(,)?
    ) => {
        /// `x W`, on the packed codes.
        #[tacit_core::handler]
        pub fn $matmul(_op: &tacit_core::op::Matmul, x: &mlx_rs::Array, w: &$ty) -> tacit_core::Result<mlx_rs::Array> {
            $crate::matrix::right(x, w)
        }

        /// `W x`, on the packed codes.
        #[tacit_core::handler]
        pub fn $matmul_left(
            _op: &tacit_core::op::Matmul,
            w: &$ty,
            x: &mlx_rs::Array,
        ) -> tacit_core::Result<mlx_rs::Array> {
            $crate::matrix::left(w, x)
        }

        /// `alpha x W + beta c`, on the packed codes.
        #[tacit_core::handler]
        pub fn $addmm(
            op: &tacit_core::op::AddMM,
            x: &mlx_rs::Array,
            w: &$ty,
            c: &mlx_rs::Array,
        ) -> tacit_core::Result<mlx_rs::Array> {
            $crate::matrix::scaled_sum(op, c, &$crate::matrix::right(x, w)?)
        }

        /// `alpha W x + beta c`, on the packed codes.
        #[tacit_core::handler]
        pub fn $addmm_left(
            op: &tacit_core::op::AddMM,
            w: &$ty,
            x: &mlx_rs::Array,
            c: &mlx_rs::Array,
        ) -> tacit_core::Result<mlx_rs::Array> {
            $crate::matrix::scaled_sum(op, c, &$crate::matrix::left(w, x)?)
        }

        /// Whole rows, as an embedding takes them.
        #[tacit_core::handler]
        pub fn $gather(
            op: &tacit_core::op::Gather,
            w: &$ty,
            rows: &mlx_rs::Array,
        ) -> tacit_core::Result<mlx_rs::Array> {
            $crate::matrix::gather(op, w, rows)
        }

        /// A matrix the other way round, as a view.
        #[tacit_core::handler]
        pub fn $transpose(op: &tacit_core::op::Transpose, w: &$ty) -> tacit_core::Result<tacit_core::Value> {
            $crate::matrix::transpose(op, w)
        }

        /// Another float type: the codes and scales stay as they are.
        #[tacit_core::handler]
        pub fn $astype(op: &tacit_core::op::AsType, w: &$ty) -> tacit_core::Result<tacit_core::Value> {
            $crate::matrix::astype(op.dtype, w)
        }

        /// The same codes in another shape.
        #[tacit_core::handler]
        pub fn $reshape(op: &tacit_core::op::Reshape, w: &$ty) -> tacit_core::Result<tacit_core::Value> {
            $crate::layout::reshape_to(op, w)
        }

        /// Axes merged: the same codes.
        #[tacit_core::handler]
        pub fn $flatten(op: &tacit_core::op::Flatten, w: &$ty) -> tacit_core::Result<tacit_core::Value> {
            $crate::layout::flatten(op, w)
        }

        /// An axis split: the same codes.
        #[tacit_core::handler]
        pub fn $unflatten(op: &tacit_core::op::Unflatten, w: &$ty) -> tacit_core::Result<tacit_core::Value> {
            $crate::layout::unflatten(op, w)
        }

        /// Axes of size 1 more: the same codes.
        #[tacit_core::handler]
        pub fn $expand_dims(op: &tacit_core::op::ExpandDims, w: &$ty) -> tacit_core::Result<tacit_core::Value> {
            $crate::layout::expand_dims(op, w)
        }

        /// Axes of size 1 fewer: the same codes.
        #[tacit_core::handler]
        pub fn $squeeze(op: &tacit_core::op::Squeeze, w: &$ty) -> tacit_core::Result<tacit_core::Value> {
            $crate::layout::squeeze(op, w)
        }

        /// Whole blocks cut out.
        #[tacit_core::handler]
        pub fn $slice(op: &tacit_core::op::Slice, w: &$ty) -> tacit_core::Result<tacit_core::Value> {
            $crate::layout::slice(op, w)
        }

        /// Whole blocks joined.
        #[tacit_core::handler]
        pub fn $concatenate(
            op: &tacit_core::op::Concatenate,
            first: &$ty,
            rest: &[&tacit_core::Value],
        ) -> tacit_core::Result<tacit_core::Value> {
            $crate::layout::concatenate(op, first, rest)
        }
    };
}
pub(crate) use packed_handlers;

/// The handlers of a [`Packed`] type whose scales are floats.
macro_rules! scaling_handlers {
    ($ty:ident: $multiply:ident, $divide:ident, $negative:ident) => {
        /// A scalar as the other factor, which goes to the scales.
        #[tacit_core::handler]
        pub fn $multiply(
            _op: &tacit_core::op::Multiply,
            w: &$ty,
            factor: &mlx_rs::Array,
        ) -> tacit_core::Result<tacit_core::Value> {
            $crate::layout::multiply(w, factor)
        }

        /// A scalar as the divisor, which goes to the scales.
        #[tacit_core::handler]
        pub fn $divide(
            _op: &tacit_core::op::Divide,
            w: &$ty,
            divisor: &mlx_rs::Array,
        ) -> tacit_core::Result<tacit_core::Value> {
            $crate::layout::divide(w, divisor)
        }

        /// The other sign, which goes to the scales.
        #[tacit_core::handler]
        pub fn $negative(_op: &tacit_core::op::Negative, w: &$ty) -> tacit_core::Result<tacit_core::Value> {
            $crate::layout::negative(w)
        }
    };
}
pub(crate) use scaling_handlers;
