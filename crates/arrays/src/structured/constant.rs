//! An array whose elements are all the same.

use std::ops::Range;

use mlx_rs::{Array, Dtype, ops};
use tacit_core::primitives::{
    Binary, Gather, GatherAxis, Max, Min, Moving, Prod, Reduction, Sum, TypedPrimitive, Unary,
};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, broadcast_source, handler, implicit};

use crate::avals::axes::forward;
use crate::avals::checks::check_made;
use crate::avals::dtypes::wide;
use crate::families::cut::Cut;
use crate::families::linear::{Gain, Linear, Product};

/// An array of any shape in one element: zeros, ones, or one number everywhere.
///
/// What keeps all elements the same stays a constant: views, elementwise primitives, reductions. A product with it is
/// a sum over the rows or columns of the other side, which differs from the product of dense arrays where the value is
/// infinite or NaN.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Dtype;
/// use tacit_arrays::Constant;
/// use tacit_core::implicit;
///
/// let x = Constant::ones(&[1000, 1000], Dtype::Float32)?;
/// let y = implicit(x, |x| x.exp()?.t().sum(None))?;
/// assert_eq!(y.to_string(), "Constant(f32[])");
/// # Ok(())
/// # }
/// ```
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Constant", family(Linear, Cut))]
pub struct Constant {
    /// The element, without axes.
    value: Array,
    #[implicit(aux)]
    aval: Aval,
}

impl Constant {
    /// The array of `shape` with `value`, an array of one element, everywhere.
    ///
    /// # Errors
    ///
    /// `value` has more or fewer elements than one, or an extent is negative.
    pub fn full(shape: &[i32], value: &Array) -> Result<Self> {
        let aval = Aval::new(shape, value.dtype());
        if shape.iter().any(|&extent| extent < 0) {
            return Err(Error::invalid(format!("{aval} has a negative extent"), "count extents from 0"));
        }
        if value.size() != 1 {
            return Err(Error::invalid(
                format!("the value of a constant is {}, which is not one element", Aval::from(value)),
                "give a scalar, such as `Array::from_f32(0.5)`",
            ));
        }
        Ok(Self { value: value.reshape(&[])?, aval })
    }

    /// Zeros of `shape`.
    ///
    /// # Errors
    ///
    /// An extent is negative.
    pub fn zeros(shape: &[i32], dtype: Dtype) -> Result<Self> {
        Self::full(shape, &Array::from_f32(0.0).as_dtype(dtype)?)
    }

    /// Ones of `shape`.
    ///
    /// # Errors
    ///
    /// An extent is negative.
    pub fn ones(shape: &[i32], dtype: Dtype) -> Result<Self> {
        Self::full(shape, &Array::from_f32(1.0).as_dtype(dtype)?)
    }

    /// The element: an array without axes.
    #[must_use]
    pub fn value(&self) -> &Array {
        &self.value
    }

    /// The whole array as a view of the element.
    fn broadcast(&self) -> Result<Array> {
        Ok(ops::broadcast_to(&self.value, &self.aval.shape)?)
    }

    /// The element with as many axes as the array: an elementwise primitive keeps its rank when it is emitted again.
    fn element(&self) -> Result<Array> {
        Ok(self.value.reshape(&vec![1; self.aval.shape.len()])?)
    }
}

impl Materialize for Constant {
    fn materialize(&self) -> Result<Value> {
        // Some of MLX's ops take no broadcast array.
        Ok(self.broadcast()?.contiguous()?.into())
    }

    fn check(&self) -> Result<()> {
        check_made(self, &Self::full(&self.aval.shape, &self.value)?)
    }
}

impl Cut for Constant {
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
        let mut aval = self.aval.clone();
        aval.shape[axis] = range.end - range.start;
        Ok(Self { value: self.value.clone(), aval }.into())
    }
}

impl Linear for Constant {
    fn product(&self, product: Product, x: &Value) -> Result<Value> {
        if product == Product::Rows {
            return Err(Error::decline("rows are moved elements"));
        }
        let axis = product.axis();
        let (mut shape, place) = (x.aval()?.shape, (-1 - axis) as usize);
        if let (Some(extent), Some(&own)) = (shape.iter_mut().nth_back(place), self.aval.shape.iter().nth_back(place)) {
            *extent = own;
        }
        self.times_sum(x, axis, &shape)
    }

    fn gain(&self) -> Gain {
        Gain::Reduce
    }
}

impl Constant {
    /// One row or column, of which the product is made: the sum of `x` along `axis` times the value.
    fn times_sum(&self, x: &Value, axis: i32, shape: &[i32]) -> Result<Value> {
        let (dtype, wide) = (self.aval.dtype, wide(self.aval.dtype));
        let value = self.value.as_dtype(wide)?;
        // Repeated before it is rounded, so that the gradient is summed in the wide type, too.
        let repeat = |thin: Array| ops::broadcast_to(thin.as_dtype(wide)?, shape)?.as_dtype(dtype);
        if let Value::Dense(x) = x {
            return Ok(repeat(x.as_dtype(wide)?.sum_axes(&[axis], true)?.multiply(value)?)?.into());
        }
        // An implicit `x` has a product of its own, for which it need not be built.
        let depth = x.aval()?.shape.iter().nth_back(usize::from(axis != -1)).copied().unwrap_or(1);
        let thin = if axis == -1 { [depth, 1] } else { [1, depth] };
        let thin = ops::broadcast_to(value, &thin)?.as_dtype(dtype)?.contiguous()?;
        implicit((x, thin), |(x, thin)| repeat(if axis == -1 { x.matmul(thin)? } else { thin.matmul(x)? }))
    }
}

/// An elementwise primitive of equal elements, on the one element.
#[handler]
pub(crate) fn constant_unary(op: &Unary, c: &Constant, made: &[Aval]) -> Result<Value> {
    let value = op.emit(&[c.element()?])?.swap_remove(0).reshape(&[])?;
    Ok(Constant { value, aval: made[0].clone() }.into())
}

/// Moved elements, which are all the same.
// It knows more than the families that a constant joins.
#[handler(precedence = 1)]
pub(crate) fn constant_moving(op: &Moving, c: &Constant, rest: &[&Value], made: &[Aval]) -> Result<Vec<Value>> {
    forward(op, &c.aval.shape, made)?;
    let mut value = c.value.clone();
    if matches!(op.name(), Gather::NAME | GatherAxis::NAME) {
        // The element is that of every index; one that is outside is to be an error all the same.
        for index in rest.iter().filter_map(|index| index.as_dense()).filter(|index| index.size() > 0) {
            let asked = broadcast_source(index)?.max(None)?.ge(Array::from_slice(&[0u32], &[]))?;
            value = ops::select(asked, &value, &value)?;
        }
    }
    Ok(made.iter().map(|aval| Constant { value: value.clone(), aval: aval.clone() }.into()).collect())
}

/// The reduction of equal elements: the element itself, or so many times it.
#[handler]
pub(crate) fn constant_reduction(op: &Reduction, c: &Constant, made: &[Aval]) -> Result<Value> {
    let aval = made[0].clone();
    let count = c.aval.size().checked_div(aval.size()).unwrap_or_default();
    let value = match op.name() {
        Max::NAME | Min::NAME if count > 0 => c.value.clone(),
        name @ (Sum::NAME | Prod::NAME) => repeated(name, &c.value, count, aval.dtype)?,
        name => return Err(Error::decline(format!("{name} of equal elements is not known"))),
    };
    Ok(Constant { value, aval }.into())
}

/// The sum or the product of `count` times `value`.
fn repeated(name: &str, value: &Array, count: usize, dtype: Dtype) -> Result<Array> {
    if count == 0 || count > 1 << 24 {
        return Err(Error::decline("there are no elements to reduce, or more than a float counts"));
    }
    // A count is beyond the integers that a half type has.
    let wide = wide(dtype);
    let value = value.as_dtype(wide)?;
    let count = Array::from_slice(&[count as i64], &[]).as_dtype(wide)?;
    let made = if name == Sum::NAME { value.multiply(count)? } else { value.power(count)? };
    Ok(made.as_dtype(dtype)?)
}

/// An elementwise primitive of two constants, on their elements.
#[handler]
pub(crate) fn constant_binary(op: &Binary, a: &Constant, b: &Constant, made: &[Aval]) -> Result<Vec<Value>> {
    let values = op.emit(&[a.element()?, b.element()?])?.into_iter().zip(made);
    values.map(|(value, aval)| Ok(Constant { value: value.reshape(&[])?, aval: aval.clone() }.into())).collect()
}

/// An elementwise primitive with a constant on its left, which MLX reads as a scalar.
#[handler]
pub(crate) fn constant_with_dense(op: &Binary, c: &Constant, x: &Array) -> Result<Vec<Value>> {
    Ok(op.emit(&[c.broadcast()?, x.clone()])?.into_iter().map(Value::from).collect())
}

/// An elementwise primitive with a constant on its right, which MLX reads as a scalar.
#[handler]
pub(crate) fn dense_with_constant(op: &Binary, x: &Array, c: &Constant) -> Result<Vec<Value>> {
    Ok(op.emit(&[x.clone(), c.broadcast()?])?.into_iter().map(Value::from).collect())
}
