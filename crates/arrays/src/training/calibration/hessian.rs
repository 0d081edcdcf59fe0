//! The Hessian of a layer's error, as the triangular factor that spreads the error of one input over the next ones.

use mlx_rs::{Array, Dtype, Stream, linalg, ops, transforms, with_stream};
use tacit_core::{Error, Result};

/// `U`, upper triangular, with `U^T U` the inverse of the damped `x^T x`, and the order of inputs that it is of.
pub(super) struct Hessian {
    /// `f32[k, k]`.
    pub(super) upper: Array,
    /// `f32[k]`: 0 at inputs that were always zero, 1 at the others, in the order of the weight.
    pub(super) alive: Array,
    /// The input of the weight that each of the triangle is.
    pub(super) order: Vec<i32>,
}

impl Hessian {
    /// Of `gram: f32[k, k]`, with `damping` times the mean of its diagonal added to that, computed on the CPU in `f64`.
    ///
    /// An input that was always zero says nothing of its weights: it gets the mean as well.
    pub(super) fn new(gram: &Array, damping: f32, act_order: bool) -> Result<Self> {
        let diagonal = gram.diagonal(None, None, None)?;
        transforms::eval([&diagonal])?;
        let diagonal = diagonal.try_as_slice::<f32>()?;
        let alive: Vec<f32> = diagonal.iter().map(|&x| f32::from(x > 0.0)).collect();
        let (k, live) = (diagonal.len() as i32, alive.iter().map(|&x| f64::from(x)).sum::<f64>());
        let mean = diagonal.iter().map(|&x| f64::from(x)).sum::<f64>() / live.max(1.0);
        if mean <= 0.0 || !mean.is_finite() {
            return Err(Error::invalid(
                "the sums of squares of the inputs say nothing: all inputs were zero, or one was not finite",
                "observe the weight on inputs such as it is used with",
            ));
        }
        let mut order: Vec<i32> = (0..k).collect();
        if act_order {
            order.sort_by(|&a, &b| diagonal[b as usize].total_cmp(&diagonal[a as usize]));
        }
        let added: Vec<f32> = alive.iter().map(|&x| mean as f32 * (damping + 1.0 - x)).collect();
        // `J H J = L L^T` with `J` the reversal gives `H = R R^T` with the upper `R = J L J`, and `U` is its inverse. So the
        // inverse of `H` itself, which squares the rounding, is not needed.
        let reversed: Vec<i32> = order.iter().rev().copied().collect();
        let back: Vec<i32> = (0..k).rev().collect();
        let index = |order: &[i32]| Array::from_slice(order, &[k]);
        let upper = with_stream(&Stream::cpu(), || -> Result<Array> {
            let added = ops::eye::<f32>(k, None, None)?.multiply(Array::from_slice(&added, &[k]))?;
            let damped = gram.as_dtype(Dtype::Float64)?.add(added.as_dtype(Dtype::Float64)?)?;
            let permuted = |x: &Array, order: &Array| Ok::<_, Error>(x.take_axis(order, 0)?.take_axis(order, 1)?);
            let lower = linalg::cholesky(permuted(&damped, &index(&reversed))?, None)?;
            // MLX does not say where a matrix has no such triangle: what is left of the factorization has a pivot that is not positive.
            let pivots = lower.diagonal(None, None, None)?.as_dtype(Dtype::Float32)?;
            if !pivots.gt(Array::from_f32(0.0))?.all(None)?.item_exact::<bool>() {
                return Err(Error::invalid(
                    format!("the sums of products of {k} inputs are not positive definite with a damping of {damping}"),
                    "give `Gptq` more damping, by `with_damping`, or observe more rows",
                ));
            }
            let upper = linalg::tri_inv(permuted(&lower, &index(&back))?, Some(true))?.as_dtype(Dtype::Float32)?;
            transforms::eval([&upper])?;
            Ok(upper)
        })?;
        Ok(Self { upper, alive: Array::from_slice(&alive, &[k]), order })
    }

    /// The inverse of a block on the diagonal.
    pub(super) fn inverse(block: &Array) -> Result<Array> {
        let inverse = with_stream(&Stream::cpu(), || linalg::tri_inv(block, Some(true)))?;
        transforms::eval([&inverse])?;
        Ok(inverse)
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn what_has_no_triangle_is_refused() {
        // No rows have such sums; rounding can come near it.
        let gram = Array::from_slice(&[1f32, 2.0, 2.0, 1.0], &[2, 2]);
        let error = Hessian::new(&gram, 0.01, false).err().expect("it has no triangle");
        expect![[r"
            the sums of products of 2 inputs are not positive definite with a damping of 0.01
            help: give `Gptq` more damping, by `with_damping`, or observe more rows"]]
        .assert_eq(&error.to_string());
        assert!(Hessian::new(&gram, 1.5, true).is_ok());
    }
}
