//! An array with its axes in another order.

use std::ops::Range;

use mlx_rs::Dtype;
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, implicit};

use crate::avals::axes::from_zero;
use crate::avals::checks::{check_made, decline_if};
use crate::families::cut::{Cut, cut};
use crate::families::linear::{Linear, Product};

/// Any array with its axes permuted, for types that have no transpose of their own.
///
/// Axis `i` is axis `axes[i]` of what is behind it. Where the last two axes are swapped, `x W^T` is computed as
/// `(W x^T)^T` by the product of the array behind it.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::{Nf4Array, Transposed};
/// use tacit_core::implicit;
///
/// let w = Transposed::new(Nf4Array::quantize(&ops::ones::<f32>(&[8, 32])?, 64)?, &[1, 0])?;
/// let x = ops::ones::<f32>(&[2, 32])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [32.0; 16]);
/// # Ok(())
/// # }
/// ```
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Transposed", family(Linear, Cut))]
pub struct Transposed {
    /// The array behind the view.
    #[implicit(get)]
    inner: Value,
    /// The axis of the array behind the view that each axis is.
    #[implicit(aux, get)]
    axes: Vec<i32>,
    #[implicit(aux)]
    aval: Aval,
}

impl Transposed {
    /// `inner` with its axes permuted; negative axes count from the end.
    ///
    /// # Errors
    ///
    /// `axes` is not a permutation of the axes of `inner`.
    pub fn new(inner: impl Into<Value>, axes: &[i32]) -> Result<Self> {
        let inner = inner.into();
        let aval = inner.aval()?;
        let rank = aval.shape.len();
        let counted: Vec<usize> = axes.iter().filter_map(|&axis| from_zero(axis, rank)).collect();
        if axes.len() != rank || (0..rank).any(|axis| !counted.contains(&axis)) {
            return Err(Error::invalid(
                format!("the axes {axes:?} are no permutation of those of {aval}"),
                format!("name each of the {rank} axes once"),
            ));
        }
        let shape: Vec<i32> = counted.iter().map(|&axis| aval.shape[axis]).collect();
        let axes = counted.into_iter().map(|axis| axis as i32).collect();
        Ok(Self { inner, axes, aval: Aval::new(&shape, aval.dtype) })
    }

    /// The transpose as a view where there is something to view.
    pub(crate) fn view(inner: Value, axes: &[i32]) -> Result<Value> {
        if axes.is_sorted() {
            return Ok(inner);
        }
        if let Some(view) = inner.downcast::<Self>() {
            let both: Vec<i32> = axes.iter().map(|&axis| view.axes[axis as usize]).collect();
            return Self::view(view.inner.clone(), &both);
        }
        match inner {
            Value::Dense(array) => Ok(array.transpose_axes(axes)?.into()),
            inner @ Value::Implicit(_) => Ok(Self::new(inner, axes)?.into()),
        }
    }
}

impl Materialize for Transposed {
    fn materialize(&self) -> Result<Value> {
        Self::view(self.inner.opened()?, &self.axes)
    }

    fn check(&self) -> Result<()> {
        check_made(self, &Self::new(&self.inner, &self.axes)?)
    }
}

impl Cut for Transposed {
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
        Self::view(cut(&self.inner, self.axes[axis], range)?, &self.axes)
    }
}

impl Linear for Transposed {
    fn product(&self, product: Product, x: &Value) -> Result<Value> {
        let x = product.operand(x)?;
        let other = if product == Product::Left { Product::Right } else { Product::Left };
        let rank = self.axes.len() as i32;
        let swapped = (0..rank - 2).chain([rank - 1, rank - 2]);
        decline_if(rank < 2 || !swapped.eq(self.axes.iter().copied()), "more than the last two axes are permuted")?;
        implicit((x, &self.inner), |(x, w)| Ok::<_, Error>(other.apply(&x.swap_axes(-1, -2)?, &w)?.swap_axes(-1, -2)?))
    }

    fn cast(&self, dtype: Dtype) -> Result<Value> {
        Self::view(implicit(&self.inner, |w| w.as_dtype(dtype))?, &self.axes)
    }
}
