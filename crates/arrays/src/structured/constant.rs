//! An array whose elements are all the same.

use std::ops::Range;

use mlx_rs::{Array, Dtype, ops};
use tacit_core::primitives::{
    Binary, Gather, GatherAxis, Max, Min, Moving, Prod, Reduction, Sum, TypedPrimitive, Unary,
};
use tacit_core::transform::{Differentiable, apply};
use tacit_core::{
    Aval, Error, ImplicitArray, Materialize, Primitive, Result, Value, broadcast_source, handler, implicit,
};

use crate::avals::axes::forward;
use crate::avals::checks::{check_made, decline_if};
use crate::avals::dtypes::accumulator_dtype;
use crate::families::cut::Cut;
use crate::families::linear::{Gain, Linear, Product};
use crate::kernel::derivatives::{gradients, of_chosen};
use crate::training::ste::dense_with_gradient_of;

/// An array of any shape in one element: zeros, ones, or one number everywhere.
///
/// What keeps all elements the same stays a constant: views, elementwise primitives of constants, sums, products, minima and maxima
/// of its elements. A matrix product with it is a sum over the rows or columns of the other side, which differs from the product of
/// dense arrays where the value is infinite or NaN.
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
    /// The element: an array without axes, of `f32` where the array is of a half type, in which its gradient is summed.
    #[implicit(get)]
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
        Ok(Self { value: value.reshape(&[])?.as_dtype(accumulator_dtype(aval.dtype))?, aval })
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

    /// The element in the type in which it is summed: files of earlier versions have that of a half type in the type itself.
    fn number(&self) -> Result<Array> {
        let is_narrow = self.value.dtype() == self.aval.dtype;
        Ok(if is_narrow { self.value.as_dtype(accumulator_dtype(self.aval.dtype))? } else { self.value.clone() })
    }

    /// The whole array: a view of the element, which is of a half type only where it is repeated.
    fn broadcast(&self) -> Result<Array> {
        narrowed(&ops::broadcast_to(self.number()?, &self.aval.shape)?, self.aval.dtype)
    }

    /// The element with as many axes as the array: an elementwise primitive keeps its rank when it is emitted again.
    fn element(&self) -> Result<Array> {
        Ok(self.number()?.reshape(&vec![1; self.aval.shape.len()])?)
    }

    /// The array of this number: it is rounded to the type, and its gradient is not.
    fn rounded(number: &Array, aval: &Aval) -> Result<Value> {
        let number = number.reshape(&[])?.as_dtype(accumulator_dtype(aval.dtype))?;
        let value = if number.dtype() == aval.dtype {
            number
        } else {
            let value = number.as_dtype(aval.dtype)?.as_dtype(number.dtype())?;
            dense_with_gradient_of(&value, &number)?.dense()?
        };
        Ok(Self { value, aval: aval.clone() }.into())
    }

    /// One row or column, of which the product is made: the sum of `x` along `axis` times the value.
    fn times_sum(&self, x: &Value, axis: i32, shape: &[i32]) -> Result<Value> {
        let (dtype, accumulator) = (self.aval.dtype, accumulator_dtype(self.aval.dtype));
        let value = self.value.as_dtype(accumulator)?;
        // Repeated before it is rounded, so that the gradient is summed in the accumulator dtype, too.
        let repeat = |thin: Array| ops::broadcast_to(thin.as_dtype(accumulator)?, shape)?.as_dtype(dtype);
        if let Value::Dense(x) = x {
            return Ok(repeat(x.as_dtype(accumulator)?.sum_axes(&[axis], true)?.multiply(value)?)?.into());
        }
        // An implicit `x` has a product of its own, for which it need not be built.
        let depth = x.aval()?.shape.iter().nth_back(usize::from(axis != -1)).copied().unwrap_or(1);
        let thin = if axis == -1 { [depth, 1] } else { [1, depth] };
        let thin = ops::broadcast_to(value, &thin)?.as_dtype(dtype)?.contiguous()?;
        implicit((x, thin), |(x, thin)| repeat(if axis == -1 { x.matmul(thin)? } else { thin.matmul(x)? }))
    }
}

/// The array in this type if it is a half type; in another one it is already.
fn narrowed(array: &Array, dtype: Dtype) -> Result<Array> {
    Ok(if accumulator_dtype(dtype) == dtype { array.clone() } else { array.as_dtype(dtype)? })
}

impl Materialize for Constant {
    fn materialize(&self) -> Result<Value> {
        // Some of MLX's ops take no broadcast array.
        Ok(self.broadcast()?.contiguous()?.into())
    }

    fn check(&self) -> Result<()> {
        let value = self.number()?;
        let result = Self::full(&self.aval.shape, &value.as_dtype(self.aval.dtype)?)?;
        check_made(&Self { value, aval: self.aval.clone() }, &result)
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
        decline_if(product == Product::Rows, "rows are moved elements")?;
        let axis = product.axis();
        let (mut shape, place) = (x.aval()?.shape, (-1 - axis) as usize);
        if let (Some(extent), Some(&outer)) = (shape.iter_mut().nth_back(place), self.aval.shape.iter().nth_back(place))
        {
            *extent = outer;
        }
        self.times_sum(x, axis, &shape)
    }

    fn gain(&self) -> Gain {
        Gain::Reduce
    }
}

/// An elementwise primitive of equal elements, on the one element.
#[handler]
pub(crate) fn constant_unary(op: &Unary, c: &Constant, results: &[Aval]) -> Result<Value> {
    Ok(on_elements(op, &[c], results)?.swap_remove(0))
}

/// The constants that an elementwise primitive makes of constants.
fn on_elements(op: &Primitive, constants: &[&Constant], results: &[Aval]) -> Result<Vec<Value>> {
    let elements = constants.iter().map(|c| c.element()).collect::<Result<Vec<_>>>()?;
    let function = OnElements { op: op.clone(), dtypes: constants.iter().map(|c| c.aval.dtype).collect() };
    let dtypes = function.dtypes.iter().copied().chain(results.iter().map(|aval| aval.dtype));
    let is_wide = dtypes.into_iter().all(|dtype| accumulator_dtype(dtype) == dtype);
    let numbers = if is_wide { function.forward(&elements)? } else { apply(&elements, function)? };
    let constant =
        |(number, aval): (Array, &Aval)| Ok(Constant { value: number.reshape(&[])?, aval: aval.clone() }.into());
    numbers.into_iter().zip(results).map(constant).collect()
}

/// An elementwise primitive on one number for each operand, which are in the accumulator dtypes of their `dtypes`.
///
/// The gradient of such a number is a sum of as many as the array has elements, which is beyond what a half type counts: the
/// derivative is taken in the half type, and multiplied by the sum in `f32`.
struct OnElements {
    op: Primitive,
    dtypes: Vec<Dtype>,
}

impl OnElements {
    fn as_given(&self, args: &[Array]) -> Result<Vec<Array>> {
        args.iter().zip(&self.dtypes).map(|(arg, &dtype)| narrowed(arg, dtype)).collect()
    }
}

impl Differentiable for OnElements {
    fn name(&self) -> &'static str {
        "on elements"
    }

    fn forward(&self, args: &[Array]) -> Result<Vec<Array>> {
        let results = self.op.emit(&self.as_given(args)?)?;
        Ok(results.iter().map(|result| result.as_dtype(accumulator_dtype(result.dtype()))).collect::<Result<_, _>>()?)
    }

    fn backward(&self, primals: &[Array], cotangents: &[Array], outputs: &[Array]) -> Result<Vec<Array>> {
        let args = self.as_given(primals)?;
        let floats: Vec<usize> = (0..args.len()).filter(|&at| args[at].dtype().is_inexact()).collect();
        let chosen: Vec<Array> = floats.iter().map(|&at| args[at].clone()).collect();
        let mut sums = primals.iter().map(ops::zeros_like).collect::<Result<Vec<_>, _>>()?;
        for (position, (cotangent, output)) in cotangents.iter().zip(outputs).enumerate() {
            if !output.dtype().is_inexact() {
                continue;
            }
            let result = of_chosen(&args, &floats, |args| Ok(vec![self.op.emit(args)?.swap_remove(position)]));
            let one = ops::ones_like(&result(chosen.clone())?[0])?;
            for (&at, slope) in floats.iter().zip(gradients(&chosen, &[one], &result)?) {
                // Of a complex cotangent a real element has the real part.
                let dtype = sums[at].dtype();
                sums[at] = sums[at].add(cotangent.multiply(slope.as_dtype(dtype)?)?.as_dtype(dtype)?)?;
            }
        }
        Ok(sums)
    }
}

/// Moved elements, which are all the same.
// It knows more than the families that a constant joins.
#[handler(precedence = 1)]
pub(crate) fn constant_moving(op: &Moving, c: &Constant, rest: &[&Value], results: &[Aval]) -> Result<Vec<Value>> {
    forward(op, &c.aval.shape, results)?;
    let mut value = c.value.clone();
    if matches!(op.name(), Gather::NAME | GatherAxis::NAME) {
        decline_if(rest.iter().any(|index| index.is_implicit()), "implicit indices are not looked at")?;
        // The element is that of every index; one that is outside is to be an error all the same.
        for index in rest.iter().filter_map(|index| index.as_dense()).filter(|index| index.size() > 0) {
            let asked = broadcast_source(index)?.max(None)?.ge(Array::from_slice(&[0u32], &[]))?;
            value = ops::select(asked, &value, &value)?;
        }
    }
    Ok(results.iter().map(|aval| Constant { value: value.clone(), aval: aval.clone() }.into()).collect())
}

/// The reduction of equal elements: the element itself, or so many times it.
#[handler]
pub(crate) fn constant_reduction(op: &Reduction, c: &Constant, results: &[Aval]) -> Result<Value> {
    let aval = results[0].clone();
    let count = c.aval.size().checked_div(aval.size()).unwrap_or_default();
    match op.name() {
        Max::NAME | Min::NAME if count > 0 => Ok(Constant { value: c.value.clone(), aval }.into()),
        name @ (Sum::NAME | Prod::NAME) => Constant::rounded(&repeated(name, &c.value, count, aval.dtype)?, &aval),
        name => Err(Error::decline(format!("{name} of equal elements is not known"))),
    }
}

/// The sum or the product of `count` times `value`, in the accumulator dtype.
fn repeated(name: &str, value: &Array, count: usize, dtype: Dtype) -> Result<Array> {
    decline_if(count == 0 || count > 1 << 24, "there are no elements to reduce, or more than a float counts")?;
    // A count is beyond the integers that a half type has.
    let accumulator = accumulator_dtype(dtype);
    let value = value.as_dtype(accumulator)?;
    let count = Array::from_slice(&[count as i64], &[]).as_dtype(accumulator)?;
    Ok(if name == Sum::NAME { value.multiply(count)? } else { value.power(count)? })
}

/// An elementwise primitive of two constants, on their elements.
#[handler]
pub(crate) fn constant_binary(op: &Binary, a: &Constant, b: &Constant, results: &[Aval]) -> Result<Vec<Value>> {
    on_elements(op, &[a, b], results)
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
