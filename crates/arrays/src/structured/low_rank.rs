//! A matrix as the product of two thin ones.

use std::ops::Range;

use mlx_rs::{Array, Dtype, ops};
use tacit_core::primitives::{Add, Multiply, Sum};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, broadcast_source, handler, implicit};

use crate::avals::checks::{check_float, check_made, decline_if};
use crate::avals::dtypes::{accumulator_dtype, narrowing, roomy};
use crate::families::cut::{Cut, cut};
use crate::families::linear::{Gain, Linear, Product};
use crate::views::cast::Cast;

/// The product of `left: [n, r]` and `right: [r, k]`, which is not built.
///
/// A product with it is one with each factor, as long as that takes no more multiplications than to build the dense matrix and
/// multiply with it. The factors may be implicit themselves.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::LowRank;
/// use tacit_core::implicit;
///
/// let w = LowRank::new(ops::ones::<f32>(&[6, 1])?, ops::ones::<f32>(&[1, 4])?)?;
/// let x = ops::ones::<f32>(&[2, 6])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [6.0; 8]);
/// # Ok(())
/// # }
/// ```
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.LowRank", family(Linear, Cut))]
pub struct LowRank {
    /// The left factor, `[n, r]`.
    #[implicit(get)]
    left: Value,
    /// The right factor, `[r, k]`.
    #[implicit(get)]
    right: Value,
    /// The inner extent `r`.
    #[implicit(aux, get)]
    rank: i32,
    #[implicit(aux)]
    aval: Aval,
}

impl LowRank {
    /// The product of `left: [n, r]` and `right: [r, k]`.
    ///
    /// # Errors
    ///
    /// The factors are no float matrices of one dtype with an inner extent in common, or they are empty.
    pub fn new(left: impl Into<Value>, right: impl Into<Value>) -> Result<Self> {
        let (left, right) = (left.into(), right.into());
        let (a, b) = (left.aval()?, right.aval()?);
        check_float("the left factor", &a)?;
        check_float("the right factor", &b)?;
        match (a.shape.as_slice(), b.shape.as_slice()) {
            (&[n, rank], &[inner, k]) if rank == inner && a.dtype == b.dtype => {
                Ok(Self { left, right, rank, aval: Aval::new(&[n, k], a.dtype) })
            }
            _ => Err(Error::invalid(
                format!("the factors {a} and {b} have no product"),
                "give matrices [n, r] and [r, k] of one dtype",
            )),
        }
    }

    /// `[n, k]` and the rank, as factors of a count.
    fn extents(&self) -> [u64; 3] {
        [self.aval.shape[0], self.aval.shape[1], self.rank].map(|extent| extent as u64)
    }

    /// Declines a product with `m` rows or columns for which building the matrix takes fewer multiplications.
    fn worthwhile(&self, m: u64) -> Result<()> {
        let [n, k, r] = self.extents();
        if m * r * (n + k) > n * k * (m + r) {
            return Err(Error::decline(format!("a matrix {} of rank {r} is cheaper when it is built", self.aval)));
        }
        Ok(())
    }

    /// Plain code on each factor, which makes the new ones.
    fn mapped(
        &self,
        left: impl FnMut(Array) -> Result<Array>,
        right: impl FnMut(Array) -> Result<Array>,
    ) -> Result<Value> {
        Ok(Self::new(implicit(&self.left, left)?, implicit(&self.right, right)?)?.into())
    }
}

impl Materialize for LowRank {
    fn materialize(&self) -> Result<Value> {
        Ok(self.left.dense()?.matmul(self.right.dense()?)?.into())
    }

    fn check(&self) -> Result<()> {
        check_made(self, &Self::new(&self.left, &self.right)?)
    }
}

impl Cut for LowRank {
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
        let [mut left, mut right] = [self.left.clone(), self.right.clone()];
        let factor = if axis == 0 { &mut left } else { &mut right };
        *factor = cut(factor, axis as i32, range)?;
        Ok(Self::new(left, right)?.into())
    }
}

impl Linear for LowRank {
    fn product(&self, product: Product, x: &Value) -> Result<Value> {
        let depth = match product {
            Product::Right => Some(self.aval.shape[0]),
            Product::Left => Some(self.aval.shape[1]),
            Product::Rows => None,
        };
        if let Some(depth) = depth {
            self.worthwhile((x.aval()?.size() / depth as usize) as u64)?;
        }
        implicit((x, &self.left, &self.right), |(x, left, right)| product.of_factors(&x, &[left, right]))
    }

    fn gain(&self) -> Gain {
        Gain::Thin
    }

    fn transposed(&self, _axes: &[i32]) -> Result<Value> {
        let transposed = |factor: &Value| implicit(factor, |factor| Ok::<_, Error>(factor.t()));
        Ok(Self::new(transposed(&self.right)?, transposed(&self.left)?)?.into())
    }

    /// The factors in a narrower float type, whose range they have.
    fn cast(&self, dtype: Dtype) -> Result<Value> {
        narrowing(&self.aval, dtype)?;
        if dtype == Dtype::Float16 {
            return Cast::view(self.clone().into(), self.aval.dtype, dtype);
        }
        let cast = |factor: Array| Ok(factor.as_dtype(dtype)?);
        self.mapped(cast, cast)
    }
}

/// A scalar, a row or a column as the other operand, which goes to one factor.
#[handler]
pub(crate) fn low_rank_multiply(_op: &Multiply, w: &LowRank, x: &Array) -> Result<Value> {
    let source = broadcast_source(x)?;
    // A factor may leave the range that the product is in.
    let (dtype, roomy) = (w.aval.dtype, roomy(w.aval.dtype));
    let source = source.as_dtype(roomy)?;
    let widened = |factor: Array| Ok(factor.as_dtype(roomy)?);
    let times = |factor: Array| Ok(factor.as_dtype(roomy)?.multiply(&source)?);
    let result = match *source.shape() {
        [] | [1] | [_, 1] => w.mapped(times, widened),
        [_] | [1, _] => w.mapped(widened, times),
        _ => Err(Error::decline(format!("{} is no scalar, row or column", Aval::from(&source)))),
    }?;
    if roomy == dtype { Ok(result) } else { Cast::view(result, dtype, dtype) }
}

/// The factors side by side, where the ranks together are still less than a dense matrix.
#[handler]
pub(crate) fn low_rank_add(_op: &Add, a: &LowRank, b: &LowRank) -> Result<Value> {
    let [n, k, rank] = a.extents();
    decline_if((rank + b.extents()[2]) * (n + k) > n * k, "the factors together are larger than the sum")?;
    let [Value::Dense(a_left), Value::Dense(a_right), Value::Dense(b_left), Value::Dense(b_right)] =
        [&a.left, &a.right, &b.left, &b.right]
    else {
        return Err(Error::decline("implicit factors are not put side by side"));
    };
    let left = ops::concatenate(&[a_left, b_left], 1)?;
    Ok(LowRank::new(left, ops::concatenate(&[a_right, b_right], 0)?)?.into())
}

/// The sums of the factors.
#[handler]
pub(crate) fn low_rank_sum(op: &Sum, w: &LowRank) -> Result<Value> {
    let accumulator = accumulator_dtype(w.aval.dtype);
    let summed = |factor: Array, axis: i32| {
        let factor = factor.as_dtype(accumulator)?;
        if op.axes.contains(&axis) { Ok(factor.sum_axes(&[axis], true)?) } else { Ok::<_, Error>(factor) }
    };
    implicit((&w.left, &w.right), |(left, right)| {
        Ok::<_, Error>(summed(left, 0)?.matmul(summed(right, 1)?)?.as_dtype(w.aval.dtype)?)
    })
}
