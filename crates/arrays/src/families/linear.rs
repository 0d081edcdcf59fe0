//! The family of matrices whose products are computed from their children, without the dense matrix.

use mlx_rs::{Array, Dtype};
use tacit_core::primitives::{AddMM, Gather, GatherMM, Matmul};
use tacit_core::{Aval, Error, ImplicitArray, Result, Value, broadcast_source, handler, implicit};

use crate::avals::checks::decline_if;
use crate::avals::dtypes::{accumulator_dtype, roomy};
use crate::families::structural::itself;

/// The family of implicit matrices whose products are made of what the matrix is made of.
///
/// A member says what a product with it is; what follows from that, such as `addmm`, is here once for all of them. Its
/// transpose, its cast and a multiple of it are views around it, such as [`Transposed`](crate::Transposed), unless it says
/// better ones.
///
/// ```
/// # extern crate tacit_core as tacit;
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops};
/// use tacit_arrays::{Linear, Product};
/// use tacit_core::{ImplicitArray, Materialize, Policy, Result, Value, implicit};
///
/// /// Twice a dense matrix.
/// #[derive(ImplicitArray, Clone, Debug)]
/// #[implicit(name = "docs.Double", family(Linear))]
/// struct Double {
///     half: Array,
/// }
///
/// impl Materialize for Double {
///     fn materialize(&self) -> Result<Value> {
///         Ok(self.half.multiply(Array::from_f32(2.0))?.into())
///     }
/// }
///
/// impl Linear for Double {
///     fn product(&self, product: Product, x: &Value) -> Result<Value> {
///         Ok(product.apply(product.operand(x)?, &self.half)?.multiply(Array::from_f32(2.0))?.into())
///     }
/// }
///
/// let w = Double { half: ops::ones::<f32>(&[4, 3])? };
/// let _deny = Policy::Deny.scope();
/// let y = implicit((ops::ones::<f32>(&[2, 4])?, w), |(x, w)| x.matmul(w))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [8.0; 6]);
/// # Ok(())
/// # }
/// ```
pub trait Linear: ImplicitArray {
    /// What `product` says of this matrix and `x`.
    ///
    /// # Errors
    ///
    /// It declines what is not worth it, and what it cannot take, such as an implicit `x`.
    fn product(&self, product: Product, x: &Value) -> Result<Value>;

    /// The same with a dense `x` of a wider type, in the wider type: of a sum of a half type, whose elements are rounded, without
    /// the rounding.
    ///
    /// # Errors
    ///
    /// It declines where its elements are read in the wider type as well.
    fn product_widely(&self, product: Product, x: &Value) -> Result<Value> {
        let _ = (product, x);
        Err(Error::decline("it is read in a wider type"))
    }

    /// The products of matrices of `x: [.., m, rows]` with matrices of this stack, which `left` and `right` choose: `u32[..]`.
    ///
    /// # Errors
    ///
    /// It declines what is not worth it, and what it cannot take, such as an implicit `x`.
    fn gather_mm(&self, op: &GatherMM, x: &Value, left: &Array, right: &Array) -> Result<Value> {
        let _ = (op, x, left, right);
        Err(Error::decline("it has no products of chosen matrices"))
    }

    /// `alpha * product + beta * c`, as [`AddMM`] has it.
    ///
    /// # Errors
    ///
    /// It declines where the product and then the sum serve as well.
    fn sum(&self, op: &AddMM, product: Product, x: &Value, c: &Value) -> Result<Value> {
        let _ = (op, product, x, c);
        Err(Error::decline("the product and then the sum serve as well"))
    }

    /// Whether a product with an `x` of `f32` costs no more than one of its own half type, as that of codes, which are decoded in `f32`.
    fn is_read_widely(&self) -> bool {
        false
    }

    /// How much a product with it saves, [`Gain::None`] unless it says so: of two such matrices the one that saves more takes the
    /// product.
    fn gain(&self) -> Gain {
        Gain::None
    }

    /// The matrix inside, where this type only has products round their other operand. What merges, quantizes or counts takes that
    /// matrix.
    fn rounds(&self) -> Option<&Value> {
        None
    }

    /// Another matrix, whose products round their other operand as those of this one do; as it is where it has no such products.
    ///
    /// # Errors
    ///
    /// The type that rounds refuses the matrix.
    fn rounding_alike(&self, matrix: Value) -> Result<Value> {
        Ok(matrix)
    }

    /// The array with its axes permuted, which changes something: axis `i` is axis `axes[i]` of this one.
    ///
    /// # Errors
    ///
    /// It declines what a [`Transposed`](crate::Transposed) serves as well.
    fn transposed(&self, axes: &[i32]) -> Result<Value> {
        let _ = axes;
        Err(served_by_a_view())
    }

    /// The array in another dtype.
    ///
    /// # Errors
    ///
    /// It declines what a [`Cast`](crate::Cast) serves as well.
    fn cast(&self, dtype: Dtype) -> Result<Value> {
        let _ = dtype;
        Err(served_by_a_view())
    }

    /// The array times a number or divided by one; it is float.
    ///
    /// # Errors
    ///
    /// It declines what a [`Scaled`](crate::Scaled) serves as well.
    fn scaled(&self, by: &Factor) -> Result<Value> {
        let _ = by;
        Err(served_by_a_view())
    }
}

/// The matrix inside a value that only [rounds](Linear::rounds) in products; any other value itself.
#[doc(hidden)]
#[must_use]
pub fn within_products(value: &Value) -> &Value {
    value.family::<dyn Linear>().and_then(Linear::rounds).unwrap_or(value)
}

/// Why a type has no form of its own; where there is no view either, the reason of that is told.
pub(crate) const SERVED_BY_A_VIEW: &str = "a view serves as well";

fn served_by_a_view() -> Error {
    Error::decline(SERVED_BY_A_VIEW)
}

/// What is computed of a matrix `W` and something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// `x W` for `x: [.., rows]`.
    Right,
    /// `W x` for `x: [.., columns, k]`.
    Left,
    /// Rows of `W`, whose numbers are `x: u32[..]`: `[.., columns]`.
    Rows,
}

impl Product {
    /// The product of plain arrays.
    ///
    /// # Errors
    ///
    /// MLX refuses their shapes.
    pub fn apply(self, x: &Array, w: &Array) -> Result<Array> {
        Ok(match self {
            Self::Right => x.matmul(w)?,
            Self::Left => w.matmul(x)?,
            Self::Rows => w.take_axis(x, 0)?,
        })
    }

    /// The other operand of a matrix product, for a type that takes a dense one.
    ///
    /// # Errors
    ///
    /// It declines an implicit operand, and rows.
    pub fn operand(self, x: &Value) -> Result<&Array> {
        decline_if(self == Self::Rows, "rows are not taken of its parts")?;
        dense_operand(x)
    }

    /// The axis of `x`, counted from the end, that a matrix product sums over, and in whose place the result has one of the
    /// matrix.
    #[must_use]
    pub fn axis(self) -> i32 {
        if self == Self::Left { -2 } else { -1 }
    }

    /// The same of the product of two thin matrices, in their type.
    pub(crate) fn of_factors(self, x: &Array, [left, right]: &[Array; 2]) -> Result<Array> {
        let (dtype, roomy) = (left.dtype(), roomy(left.dtype()));
        let [left, right] = [left.as_dtype(roomy)?, right.as_dtype(roomy)?];
        let x = if x.dtype().is_float() { &x.as_dtype(roomy)? } else { x };
        let result = match self {
            Self::Right => x.matmul(left)?.matmul(right)?,
            Self::Left => left.matmul(right.matmul(x)?)?,
            Self::Rows => left.take_axis(x, 0)?.matmul(right)?,
        };
        Ok(result.as_dtype(dtype)?)
    }

    /// The same of the matrix whose rows, or columns, are multiplied by `factors`; `f` gives that of the matrix itself.
    pub(crate) fn of_multiplied(
        self,
        x: &Array,
        factors: &Array,
        columns: bool,
        f: impl FnOnce(&Array) -> Result<Array>,
    ) -> Result<Array> {
        let each_row = |array: &Array, by: &Array| -> Result<Array> {
            let by = if array.ndim() > 1 { by.expand_dims(-1)? } else { by.clone() };
            Ok(array.multiply(by)?)
        };
        match (self, columns) {
            (Self::Right, false) => f(&x.multiply(factors)?),
            (Self::Right | Self::Rows, true) => Ok(f(x)?.multiply(factors)?),
            (Self::Left, false) => each_row(&f(x)?, factors),
            (Self::Left, true) => f(&each_row(x, factors)?),
            (Self::Rows, false) => {
                let rows = f(x)?;
                Ok(rows.multiply(factors.take_axis(x, 0)?.expand_dims(-1)?)?)
            }
        }
    }
}

/// A number that an array is multiplied by, or divided by.
#[derive(Clone, Debug)]
pub struct Factor {
    number: Array,
    divides: bool,
}

impl Factor {
    /// The number that `array` repeats, which multiplies or divides a float array of this aval; it is `f32` for a half type.
    pub(crate) fn new(aval: &Aval, array: &Array, divides: bool) -> Result<Self> {
        decline_if(!aval.dtype.is_float(), "only float arrays are scaled")?;
        if array.ndim() > 0 && array.shape() != aval.shape {
            return Err(Error::decline(format!("{} changes the shape of {aval}", Aval::from(array))));
        }
        Ok(Self { number: scalar(array)?.as_dtype(accumulator_dtype(aval.dtype))?, divides })
    }

    /// The number: `[]`.
    #[must_use]
    pub fn number(&self) -> &Array {
        &self.number
    }

    /// Whether it is a divisor.
    #[must_use]
    pub fn divides(&self) -> bool {
        self.divides
    }

    /// `array` times the number or divided by it, in the dtype of `array`.
    ///
    /// # Errors
    ///
    /// MLX refuses an op.
    pub fn on(&self, array: &Array) -> Result<Array> {
        let number = self.number.as_dtype(array.dtype())?;
        Ok(if self.divides { array.divide(number)? } else { array.multiply(number)? })
    }
}

/// How much a product saves, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gain {
    /// It reads less.
    None,
    /// It is a sum of products, of which some are thin.
    Sum,
    /// It is two thin products.
    Thin,
    /// It scales rows or columns.
    Scale,
    /// It sums rows or columns.
    Reduce,
    /// There is nothing to compute.
    Nothing,
}

/// `x W`, by what `W` is made of; by what `x` is made of where that is such a matrix, too, and saves more.
// Of two such operands the right one is asked first.
#[handler(precedence = 1)]
pub(crate) fn linear_matmul(_op: &Matmul, x: &Value, w: &dyn Linear) -> Result<Value> {
    right_product(x, w)
}

/// `W x`, by what `W` is made of.
#[handler]
pub(crate) fn linear_matmul_left(_op: &Matmul, w: &dyn Linear, x: &Value) -> Result<Value> {
    w.product(Product::Left, x)
}

/// `alpha x W + beta c`, as the product and then the sum, unless `W` has a better way.
#[handler(precedence = 1)]
pub(crate) fn linear_addmm(op: &AddMM, x: &Value, w: &dyn Linear, c: &Value) -> Result<Value> {
    sum(op, Product::Right, x, w, c)
}

/// `alpha W x + beta c`, as the product and then the sum, unless `W` has a better way.
#[handler]
pub(crate) fn linear_addmm_left(op: &AddMM, w: &dyn Linear, x: &Value, c: &Value) -> Result<Value> {
    sum(op, Product::Left, x, w, c)
}

fn sum(op: &AddMM, product: Product, x: &Value, w: &dyn Linear, c: &Value) -> Result<Value> {
    match w.sum(op, product, x, c) {
        Err(Error::Declined(_)) => scaled_sum(op, c, factor_of_sum(op, product, x, w)?),
        sum => sum,
    }
}

/// The product that alpha multiplies and `beta c` is added to; in `f32` where either may bring it back into the range of f16.
fn factor_of_sum(op: &AddMM, product: Product, x: &Value, w: &dyn Linear) -> Result<Value> {
    #[allow(clippy::float_cmp, reason = "exactly 1 is what an op without the parameter stores")]
    let is_scaled = op.alpha != 1.0;
    // Codes are read in `f32` as fast. Others would be built for that, and an implicit `x` may have no wider form: they are asked for
    // it only where alpha scales the product.
    let is_read = w.is_read_widely() && !x.is_implicit();
    if x.aval()?.dtype == Dtype::Float16 && (is_scaled || is_read) {
        return implicit((x, itself(w)), |(x, w)| product.apply(&x.as_dtype(Dtype::Float32)?, &w));
    }
    if product == Product::Right { right_product(x, w) } else { w.product(product, x) }
}

/// The products of chosen matrices with chosen ones of a stack, such as the experts of a mixture.
// What has a handler for the left side or for all products goes before a family.
#[handler(precedence = -1)]
pub(crate) fn linear_gather_mm(op: &GatherMM, x: &Value, w: &dyn Linear, left: &Array, right: &Array) -> Result<Value> {
    w.gather_mm(op, x, left, right)
}

/// Whole rows, as an embedding takes them.
#[handler]
pub(crate) fn linear_gather(op: &Gather, w: &dyn Linear, rows: &Value) -> Result<Value> {
    let rows = dense_operand(rows)?;
    whole_rows(op, &w.aval()?)?;
    let taken = w.product(Product::Rows, &rows.into())?;
    // A function without shapes would refuse extents that are written down.
    implicit(taken, |taken| taken.expand_dims(rows.ndim() as i32))
}

fn right_product(x: &Value, w: &dyn Linear) -> Result<Value> {
    let Some(left) = x.family::<dyn Linear>().filter(|left| left.gain() > w.gain()) else {
        return w.product(Product::Right, x);
    };
    match left.product(Product::Left, &itself(w)) {
        Err(Error::Declined(_)) => w.product(Product::Right, x),
        product => product,
    }
}

pub(crate) fn dense_operand(x: &Value) -> Result<&Array> {
    x.as_dense().ok_or_else(|| Error::decline(format!("the other side is {x}, which is not dense")))
}

/// `alpha * product + beta * c`, as `AddMM` has it, for a handler of it that makes the product in a way of its own.
///
/// # Errors
///
/// A handler fails, or the policy forbids a materialization.
pub fn scaled_sum(op: &AddMM, c: &Value, product: Value) -> Result<Value> {
    implicit((product, as_given(c)?), |(product, c)| -> Result<Array> {
        let dtype = c.dtype();
        let scaled = |array: &Array, factor: f32| -> Result<Array> {
            #[allow(clippy::float_cmp, reason = "exactly 1 is what an op without the parameter stores")]
            if factor == 1.0 {
                return Ok(array.clone());
            }
            // Neither the factor nor the multiple is rounded to a half type before the sum is.
            let accumulator = accumulator_dtype(array.dtype());
            Ok(array.as_dtype(accumulator)?.multiply(Array::from_f32(factor).as_dtype(accumulator)?)?)
        };
        let product = scaled(&product, op.alpha)?;
        #[allow(clippy::float_cmp, reason = "exactly 0 is where MLX does not read c")]
        if op.beta == 0.0 {
            return Ok(product.as_dtype(dtype)?);
        }
        Ok(product.add(scaled(&c, op.beta)?)?.as_dtype(dtype)?)
    })
}

/// What is added to a product, as it was given: the sum broadcasts it anew, in a function without shapes to those that there are.
pub(crate) fn as_given(c: &Value) -> Result<Value> {
    Ok(match c {
        Value::Dense(array) => broadcast_source(array)?.into(),
        Value::Implicit(_) => c.clone(),
    })
}

/// The scalar that `array` is a broadcast of; every other array declines.
pub(crate) fn scalar(array: &Array) -> Result<Array> {
    let source = broadcast_source(array)?;
    if source.size() != 1 {
        return Err(Error::decline(format!("{} is not a scalar", Aval::from(&source))));
    }
    Ok(source.reshape(&[])?)
}

/// Declines a `Gather` that takes anything but whole rows of `aval`.
pub(crate) fn whole_rows(op: &Gather, aval: &Aval) -> Result<()> {
    let are_whole = op.axes == [0] && op.slice_sizes[0] == 1 && op.slice_sizes[1..] == aval.shape[1..];
    decline_if(!are_whole, "only whole rows are gathered from the parts")
}
