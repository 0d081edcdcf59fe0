//! An array whose elements are all the same.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::op::{AddMM, Matmul};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Primitive, Result, Value, handler, implicit};

use crate::checks::check_made;
use crate::linear::{Linear, linear_handlers};
use crate::wide::wide;

/// An array of any shape in one element: zeros, ones, or one number everywhere.
///
/// What keeps all elements the same stays a constant: views, elementwise primitives, reductions. A product with it is
/// a sum over the rows or columns of the other side, which differs from the product of dense arrays where the value is
/// infinite or NaN.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, Dtype};
/// use tacit_arrays::Constant;
/// use tacit_core::implicit;
///
/// let x = Constant::ones(&[1000, 1000], Dtype::Float32)?;
/// let y = implicit(|x: Array| x.exp()?.t().sum(None))(x.into())?;
/// assert_eq!(y.to_string(), "Constant(f32[])");
/// # Ok(())
/// # }
/// ```
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Constant")]
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

impl Linear for Constant {
    fn right(&self, x: &Value) -> Result<Value> {
        let mut shape = x.aval()?.shape;
        if let (Some(last), Some(&columns)) = (shape.last_mut(), self.aval.shape.last()) {
            *last = columns;
        }
        self.times_sum(x, -1, &shape)
    }

    fn left(&self, x: &Value) -> Result<Value> {
        let mut shape = x.aval()?.shape;
        if let (Some(second), Some(&rows)) = (shape.iter_mut().nth_back(1), self.aval.shape.iter().nth_back(1)) {
            *second = rows;
        }
        self.times_sum(x, -2, &shape)
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
        implicit(|[x, thin]: [Array; 2]| repeat(if axis == -1 { x.matmul(thin)? } else { thin.matmul(x)? }))([
            x.clone(),
            thin.into(),
        ])
    }
}

linear_handlers! {
    Constant, precedence 51 50: constant_matmul, constant_matmul_left, constant_addmm, constant_addmm_left
}

/// Primitives that change each element by itself.
const UNARY: &[&str] = &[
    "Abs",
    "ArcCos",
    "ArcCosh",
    "ArcSin",
    "ArcSinh",
    "ArcTan",
    "ArcTanh",
    "AsType",
    "BitwiseInvert",
    "Ceil",
    "Conjugate",
    "Cos",
    "Cosh",
    "Erf",
    "ErfInv",
    "Exp",
    "Expm1",
    "Floor",
    "Imag",
    "Log",
    "Log10",
    "Log1p",
    "Log2",
    "LogicalNot",
    "Negative",
    "Real",
    "Round",
    "Rsqrt",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Sqrt",
    "Square",
    "Tan",
    "Tanh",
];

/// Primitives that take or repeat elements and change none.
const VIEWS: &[&str] =
    &["Broadcast", "ExpandDims", "Flatten", "Max", "Min", "Reshape", "Slice", "Squeeze", "Transpose", "Unflatten"];

/// Primitives of two operands of one shape, element by element, with one result.
const BINARY: &[&str] = &[
    "Add",
    "ArcTan2",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "Divide",
    "Equal",
    "Greater",
    "GreaterEqual",
    "LeftShift",
    "Less",
    "LessEqual",
    "LogAddExp",
    "LogicalAnd",
    "LogicalOr",
    "Maximum",
    "Minimum",
    "Multiply",
    "NaNEqual",
    "NotEqual",
    "Power",
    "Remainder",
    "RightShift",
    "Subtract",
];

/// Views, elementwise primitives and reductions of one constant, on its one element.
// What holds for every implicit type goes first.
#[handler(precedence = -1)]
pub fn constant_unary(op: &Primitive, c: &Constant) -> Result<Value> {
    let name = op.name();
    let known = [UNARY, VIEWS, &["Sum", "Prod"]].iter().any(|names| names.contains(&name));
    if !known {
        return Err(Error::decline(format!("{name} of equal elements may have different ones")));
    }
    // Never evaluated: it has the shape and dtype of the result.
    let [whole] = op
        .emit(&[c.broadcast()?.contiguous()?])?
        .try_into()
        .map_err(|_| Error::decline("there are several results"))?;
    let aval = Aval::from(&whole);
    let value = if UNARY.contains(&name) {
        op.emit(&[c.element()?])?.swap_remove(0).reshape(&[])?
    } else if VIEWS.contains(&name) {
        c.value.clone()
    } else {
        repeated(name, &c.value, c.aval.size().checked_div(aval.size()).unwrap_or_default(), aval.dtype)?
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
    let made = if name == "Sum" { value.multiply(count)? } else { value.power(count)? };
    Ok(made.as_dtype(dtype)?)
}

/// An elementwise primitive of two constants, on their elements.
#[handler(precedence = -1)]
pub fn constant_binary(op: &Primitive, a: &Constant, b: &Constant) -> Result<Value> {
    elementwise(op)?;
    let value = op.emit(&[a.element()?, b.element()?])?.swap_remove(0).reshape(&[])?;
    Ok(Constant { aval: Aval::new(&a.aval.shape, value.dtype()), value }.into())
}

/// An elementwise primitive with a constant on its left, which MLX reads as a scalar.
#[handler(precedence = -1)]
pub fn constant_with_dense(op: &Primitive, c: &Constant, x: &Array) -> Result<Array> {
    elementwise(op)?;
    Ok(op.emit(&[c.broadcast()?, x.clone()])?.swap_remove(0))
}

/// An elementwise primitive with a constant on its right, which MLX reads as a scalar.
#[handler(precedence = -1)]
pub fn dense_with_constant(op: &Primitive, x: &Array, c: &Constant) -> Result<Array> {
    elementwise(op)?;
    Ok(op.emit(&[x.clone(), c.broadcast()?])?.swap_remove(0))
}

fn elementwise(op: &Primitive) -> Result<()> {
    if BINARY.contains(&op.name()) {
        return Ok(());
    }
    Err(Error::decline(format!("{} is not elementwise", op.name())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_primitive_is_one_of_mlx() {
        for name in [UNARY, VIEWS, BINARY].concat() {
            assert!(tacit_core::op::find(name).is_some(), "{name}");
        }
    }
}
