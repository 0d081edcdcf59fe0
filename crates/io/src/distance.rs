//! How far an array is from the one that it stands for.

use mlx_rs::{Array, Dtype, ops};
use serde::{Deserialize, Serialize};
use tacit_arrays::format::Pieces;
use tacit_core::{Result, Value, implicit};

use crate::floats::floats;

/// How far an array is from another one, which is taken for right.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_io::Distance;
///
/// let right = Array::from_slice(&[3f32, 4.0], &[2]);
/// let far = Distance::between(&right, &Array::from_slice(&[3f32, 4.5], &[2]))?;
/// assert_eq!(far.error, 0.1);
/// assert_eq!(far.sqnr.map(f64::round), Some(20.0));
/// assert_eq!(Distance::between(&right, &right)?.sqnr, None);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Distance {
    /// The root of the mean square of the difference over that of the right one: the relative error in the Frobenius norm.
    /// Infinite where one of both has an element that is not finite and the other has not, or the right one is zero.
    #[serde(with = "tacit_core::json_number")]
    pub error: f64,
    /// The cosine of the two as vectors.
    #[serde(with = "tacit_core::json_number")]
    pub cosine: f64,
    /// The power of the right one over that of the difference, in decibels; nothing where there is no difference.
    #[serde(with = "tacit_core::json_number::optional")]
    pub sqnr: Option<f64>,
}

impl Distance {
    /// The distance of `other` from `right`, two arrays of one shape and of any floats.
    ///
    /// The squares are summed in `f32` along the last axis, and these sums in `f64`. Elements that are NaN in both, or the same
    /// infinity, are equal and count for nothing else.
    ///
    /// # Errors
    ///
    /// The shapes differ, or an array cannot be evaluated.
    pub fn between(right: &Array, other: &Array) -> Result<Self> {
        Self::of_values(&right.into(), &other.into())
    }

    /// The distance of what `other` stands for from what `right` does, as [`between`](Self::between) has it: some rows at a
    /// time, so that no large array of floats is built. What is built, the policy is asked for.
    ///
    /// # Errors
    ///
    /// As for [`between`](Self::between), or the policy forbids to build the floats.
    pub fn of_values(right: &Value, other: &Value) -> Result<Self> {
        let (right, other) = (Pieces::of(right)?, Pieces::of(other)?);
        let mut sums = Sums::default();
        for rows in right.ranges() {
            sums.add(&right.get(rows.clone())?, &other.get(rows.clone())?)?;
            right.forget(rows.clone())?;
            other.forget(rows)?;
        }
        let Sums { own, lost, others, both } = sums;
        if lost == 0.0 {
            return Ok(Self { error: 0.0, cosine: 1.0, sqnr: None });
        }
        if !lost.is_finite() {
            return Ok(Self { error: f64::INFINITY, cosine: f64::NAN, sqnr: Some(f64::NEG_INFINITY) });
        }
        let cosine = both / (own * others).sqrt();
        Ok(Self { error: (lost / own).sqrt(), cosine, sqnr: Some(10.0 * (own / lost).log10()) })
    }

    /// The distance of what two linear layers give for the same inputs, `x: f32[.., in]`.
    ///
    /// The weights are `[.., out, in]`, dense or implicit, and of one shape. A product of an implicit one goes to its
    /// handlers, and so is what a model computes with it.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::random;
    /// use tacit_arrays::Nf4Array;
    /// use tacit_io::Distance;
    ///
    /// let weight = random::normal::<f32>(&[8, 64], None, None, &random::key(1)?)?;
    /// let packed = Nf4Array::quantize(&weight, 64)?;
    /// let x = random::normal::<f32>(&[16, 64], None, None, &random::key(2)?)?;
    /// let far = Distance::of_outputs(&weight.into(), &packed.into(), &x)?;
    /// assert!(far.error > 0.01 && far.error < 0.2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The shapes do not fit each other, or as for [`implicit`](tacit_core::implicit()).
    pub fn of_outputs(right: &Value, other: &Value, x: &Array) -> Result<Self> {
        let product = |weight: &Value| implicit((x, weight), |(x, w)| x.matmul(w.swap_axes(-1, -2)?))?.dense();
        Self::between(&product(right)?, &product(other)?)
    }
}

/// Sums over the elements of two arrays.
#[derive(Default)]
struct Sums {
    /// The squares of the right one.
    own: f64,
    /// The squares of the difference.
    lost: f64,
    /// The squares of the other one.
    others: f64,
    /// The products of both.
    both: f64,
}

impl Sums {
    fn add(&mut self, right: &Array, other: &Array) -> Result<()> {
        let [right, other] = [right.as_dtype(Dtype::Float32)?, other.as_dtype(Dtype::Float32)?];
        let strange = right.is_finite()?.logical_and(other.is_finite()?)?.logical_not()?;
        let same = right.eq(&other)?.logical_or(right.is_nan()?.logical_and(other.is_nan()?)?)?;
        let left_out = strange.logical_and(same)?;
        let counted = |x: &Array| ops::select(&left_out, Array::from_f32(0.0), x);
        let [right, other] = [counted(&right)?, counted(&other)?];
        let difference = right.subtract(&other)?;
        self.own += dot(&right, &right)?;
        self.lost += dot(&difference, &difference)?;
        self.others += dot(&other, &other)?;
        self.both += dot(&right, &other)?;
        Ok(())
    }
}

fn dot(x: &Array, y: &Array) -> Result<f64> {
    let product = x.multiply(y)?;
    let sums = if product.ndim() == 0 { product } else { product.sum_axis(-1, None)? };
    Ok(floats(&sums)?.into_iter().map(f64::from).sum())
}

#[cfg(test)]
mod tests {
    use tacit_arrays::Nf4Array;
    use tacit_core::Policy;

    use super::*;

    #[test]
    fn scalars_and_many_small_numbers_are_measured() {
        let scalar = Distance::between(&Array::from_f32(2.0), &Array::from_f32(1.0)).expect("scalars");
        assert!((scalar.error - 0.5).abs() < 1e-12 && (scalar.cosine - 1.0).abs() < 1e-12, "{scalar:?}");
        // A sum of all of them in `f32`, one after the other, would end at 2^24.
        let ones = ops::ones::<f32>(&[1 << 13, 1 << 12]).expect("ones");
        let lower = ones.multiply(Array::from_f32(0.5)).expect("halves");
        let far = Distance::between(&ones, &lower).expect("one shape");
        assert!((far.error - 0.5).abs() < 1e-7 && (far.cosine - 1.0).abs() < 1e-7, "{far:?}");
    }

    #[test]
    fn what_is_not_finite_in_both_is_no_difference() {
        let of = |numbers: &[f32]| Array::from_slice(numbers, &[numbers.len() as i32]);
        let strange = of(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3.0, 4.0]);
        let itself = Distance::between(&strange, &strange).expect("one shape");
        assert_eq!((itself.error, itself.cosine, itself.sqnr), (0.0, 1.0, None));
        let near = of(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3.0, 4.5]);
        assert!((Distance::between(&strange, &near).expect("one shape").error - 0.1).abs() < 1e-6);
        for other in [[0.0, f32::INFINITY, f32::NEG_INFINITY, 3.0, 4.0], [f32::NAN, f32::NEG_INFINITY, 1.0, 3.0, 4.0]] {
            for (a, b) in [(&strange, &of(&other)), (&of(&other), &strange)] {
                assert!(Distance::between(a, b).expect("one shape").error.is_infinite());
            }
        }
        // As data they are told apart, and come back.
        let text =
            serde_json::to_string(&Distance::between(&of(&[0.0]), &of(&[1.0])).expect("one shape")).expect("JSON");
        assert_eq!(text, r#"{"error":"inf","cosine":"NaN","sqnr":"-inf"}"#);
        assert!(serde_json::from_str::<Distance>(&text).expect("a distance").error.is_infinite());
    }

    #[test]
    fn outputs_are_those_of_the_dense_weights_and_nothing_is_built() {
        let of = |shape: &[i32], seed| {
            let key = mlx_rs::random::key(seed).expect("a key");
            mlx_rs::random::normal::<f32>(shape, None, None, &key).expect("numbers")
        };
        let (weight, x) = (of(&[32, 128], 1), of(&[4, 128], 2));
        let packed = Value::from(Nf4Array::quantize(&weight, 64).expect("whole groups"));
        let dense = Value::from(packed.dense().expect("has a dense form"));
        let weight = Value::from(weight);
        let expected = Distance::of_outputs(&weight, &dense, &x).expect("one shape");
        let _deny = Policy::Deny.scope();
        let found = Distance::of_outputs(&weight, &packed, &x).expect("a handler takes it");
        assert!((found.error - expected.error).abs() < 1e-4 * expected.error, "{found:?} {expected:?}");
        assert!(Distance::of_outputs(&weight, &packed, &of(&[4, 64], 3)).is_err());
    }
}
