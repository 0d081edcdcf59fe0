//! An array read in another float type.

use std::ops::Range;

use mlx_rs::Dtype;
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, implicit};

use crate::avals::checks::check_made;
use crate::avals::dtypes::{castable, check_castable, holds};
use crate::families::cut::{self, Cut};
use crate::families::linear::{Linear, Product};
use crate::families::view::{Move, View};

/// Any float array in another float type, such as a bf16 weight among f32 activations.
///
/// A product is computed in the wider of both types and then cast. It leaves out the rounding of a narrower array behind
/// the view: of `x W` by at most `2^-9 |x| |W|` for bf16 and `2^-12 |x| |W|` for f16, where the type rounds once, as NF4
/// does. Whatever yields elements themselves, such as a gather, rounds them.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Dtype, ops};
/// use tacit_arrays::{Cast, Nf4Array};
/// use tacit_core::implicit;
///
/// let w = Nf4Array::quantize(&ops::ones::<f32>(&[8, 32])?.as_dtype(Dtype::Bfloat16)?, 64)?;
/// let w = Cast::new(w, Dtype::Float32)?;
/// let x = ops::ones::<f32>(&[2, 32])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [32.0; 16]);
/// # Ok(())
/// # }
/// ```
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Cast", family(Linear, Cut, View))]
pub struct Cast {
    /// The array that is read in another type.
    #[implicit(get)]
    inner: Value,
    /// The aval before the cast; elements are rounded to its dtype where `inner` is wider.
    #[implicit(aux)]
    stored: Aval,
    #[implicit(aux)]
    aval: Aval,
}

impl Cast {
    /// `inner` as `dtype`.
    ///
    /// # Errors
    ///
    /// `dtype` or that of `inner` is not f32, bf16 or f16.
    pub fn new(inner: impl Into<Value>, dtype: Dtype) -> Result<Self> {
        let inner = inner.into();
        let stored = inner.aval()?;
        let aval = Aval::new(&stored.shape, dtype);
        if !castable(stored.dtype) || !castable(dtype) {
            return Err(Error::invalid(
                format!("{stored} is not cast as a view to {aval}"),
                "cast between f32, bf16 and f16, or materialize the array",
            ));
        }
        Ok(Self { inner, stored, aval })
    }

    /// `inner`, rounded to `narrow`, as `dtype`: a view where there is something to view.
    pub(crate) fn view(inner: Value, narrow: Dtype, dtype: Dtype) -> Result<Value> {
        match inner {
            Value::Dense(array) => Ok(array.as_dtype(narrow)?.as_dtype(dtype)?.into()),
            inner @ Value::Implicit(_) => {
                let mut view = Self::new(inner, dtype)?;
                if holds(view.stored.dtype, narrow) && dtype == view.stored.dtype {
                    return Ok(view.inner);
                }
                view.stored.dtype = narrow;
                Ok(view.into())
            }
        }
    }

    /// What is behind all casts: a product leaves out their roundings.
    fn behind(&self) -> Value {
        self.inner.downcast::<Self>().map_or_else(|| self.inner.clone(), Self::behind)
    }

    /// Whether a product with numbers of `dtype` promotes what is behind a view; not where that is only such a view again, which a
    /// product would ask for without end.
    fn is_promoted(behind: &Value, dtype: Dtype) -> Result<bool> {
        let behind_dtype = behind.aval()?.dtype;
        let wide = if behind_dtype == dtype { behind_dtype } else { Dtype::Float32 };
        if behind_dtype != wide {
            let read = implicit(behind, |w| w.as_dtype(wide))?;
            let view = read.downcast::<Self>();
            return Ok(!view.is_some_and(|view| view.behind().aval().is_ok_and(|aval| aval.dtype != wide)));
        }
        Ok(true)
    }
}

impl Materialize for Cast {
    fn materialize(&self) -> Result<Value> {
        Self::view(self.inner.opened()?, self.stored.dtype, self.aval.dtype)
    }

    fn check(&self) -> Result<()> {
        let mut result = Self::new(&self.inner, self.aval.dtype)?;
        if castable(self.stored.dtype) && holds(self.stored.dtype, result.stored.dtype) {
            result.stored.dtype = self.stored.dtype;
        }
        check_made(self, &result)
    }
}

impl Cut for Cast {
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
        Self::view(cut::cut(&self.inner, axis as i32, range)?, self.stored.dtype, self.aval.dtype)
    }
}

impl View for Cast {
    fn moved(&self, step: &Move<'_>) -> Result<Vec<Value>> {
        step.around([&self.inner], |[inner]| Self::view(inner, self.stored.dtype, self.aval.dtype))
    }
}

// MLX promotes the operands of a product, by an `AsType` on the array behind the view where that is the narrower one.
impl Linear for Cast {
    fn product(&self, product: Product, x: &Value) -> Result<Value> {
        let (operand, behind) = (product.operand(x)?, self.behind());
        let result = if Self::is_promoted(&behind, operand.dtype())? {
            implicit((operand, &behind), |(x, w)| product.apply(&x, &w))?
        } else {
            let linear = behind.family::<dyn Linear>();
            let linear = linear.ok_or_else(|| Error::decline(format!("{behind} has no products of its own")))?;
            linear.product_widely(product, x)?
        };
        implicit(result, |result| result.as_dtype(self.aval.dtype))
    }

    /// Both casts as one, where the first one loses nothing.
    fn cast(&self, dtype: Dtype) -> Result<Value> {
        let (stored, own) = (self.stored.dtype, self.aval.dtype);
        check_castable(dtype)?;
        if !holds(stored, own) {
            return Self::view(self.clone().into(), own, dtype);
        }
        if dtype == stored {
            return implicit(&self.inner, |inner| inner.as_dtype(stored));
        }
        Self::view(self.inner.clone(), stored, dtype)
    }
}
