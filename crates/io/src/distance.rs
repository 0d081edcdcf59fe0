//! How far an array is from the one that it stands for.

use mlx_rs::{Array, Dtype, Stream, ops, with_stream};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use tacit_arrays::format::RowPieces;
use tacit_bridge::with_bytes;
use tacit_core::{Result, Value, implicit};

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
    /// The norm of the difference over that of the right one: the relative error in the Frobenius norm. It is infinite where an
    /// element is finite in one of both only, and where the right one is zero and the other is not.
    #[serde(with = "tacit_core::json_number")]
    pub error: f64,
    /// The cosine of the two as vectors. It is NaN, which is no cosine, where one of the two alone is zero and so has no direction, and
    /// where an element is finite in one of both only.
    #[serde(with = "tacit_core::json_number")]
    pub cosine: f64,
    /// The power of the right one over that of the difference, in decibels; `None` where there is no difference.
    #[serde(with = "tacit_core::json_number::optional")]
    pub sqnr: Option<f64>,
}

impl Distance {
    /// The distance of `other` from `right`, two arrays of one shape and of any numbers.
    ///
    /// The squares are summed in `f64`. Elements that are NaN in both, or the same infinity, are equal, and are left out of the sums.
    /// Integers are subtracted as integers, so that two of them differ where `f64` has one number for both. A complex number counts as
    /// its two parts.
    ///
    /// # Errors
    ///
    /// The shapes differ, or an array cannot be evaluated.
    pub fn between(right: &Array, other: &Array) -> Result<Self> {
        Self::of_values(&right.into(), &other.into())
    }

    /// The distance of what `other` stands for from what `right` does, as [`between`](Self::between) computes it, some rows at a
    /// time: no large array of floats is built.
    ///
    /// The policy is asked for what is.
    ///
    /// # Errors
    ///
    /// As for [`between`](Self::between), or the policy forbids to build the floats.
    pub fn of_values(right: &Value, other: &Value) -> Result<Self> {
        let (right, other) = (RowPieces::new(right)?, RowPieces::new(other)?);
        let mut sums = Sums::default();
        for rows in right.ranges() {
            sums.add(&right.get(rows.clone())?, &other.get(rows.clone())?)?;
            right.forget(rows.clone())?;
            other.forget(rows)?;
        }
        let Sums { right, lost, others, both } = sums;
        if lost == 0.0 {
            return Ok(Self { error: 0.0, cosine: 1.0, sqnr: None });
        }
        if !lost.is_finite() {
            return Ok(Self { error: f64::INFINITY, cosine: f64::NAN, sqnr: Some(f64::NEG_INFINITY) });
        }
        let cosine = both / (right * others).sqrt();
        Ok(Self { error: (lost / right).sqrt(), cosine, sqnr: Some(10.0 * (right / lost).log10()) })
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
    right: f64,
    /// The squares of the difference.
    lost: f64,
    /// The squares of the other one.
    others: f64,
    /// The products of both.
    both: f64,
}

/// Elements whose sums a thread makes.
const TASK: usize = 1 << 16;

impl Sums {
    fn add(&mut self, right: &Array, other: &Array) -> Result<()> {
        use Dtype::{Complex64, Float32, Float64, Int32, Int64, Uint32, Uint64};
        let one_is = |dtypes: &[Dtype]| dtypes.contains(&right.dtype()) || dtypes.contains(&other.dtype());
        if one_is(&[Complex64]) {
            self.add(&ops::real(right)?, &ops::real(other)?)?;
            return self.add(&ops::imag(right)?, &ops::imag(other)?);
        }
        let is_float = |array: &Array| array.dtype().is_float();
        let whole = !is_float(right) && !is_float(other) && (right.dtype() == Uint64) == (other.dtype() == Uint64);
        if !one_is(&[Float64, Int32, Int64, Uint32, Uint64]) {
            let number = |bytes| f64::from(f32::from_le_bytes(bytes));
            self.add_as([right, other], Float32, number, |number| number, |a, b| a - b)
        } else if whole && right.dtype() == Uint64 {
            self.add_as([right, other], Uint64, u64::from_le_bytes, |number| number as f64, |a, b| a.abs_diff(b) as f64)
        } else if whole {
            self.add_as([right, other], Int64, i64::from_le_bytes, |number| number as f64, |a, b| a.abs_diff(b) as f64)
        } else {
            self.add_as([right, other], Float64, f64::from_le_bytes, |number| number, |a, b| a - b)
        }
    }

    /// Adds the elements of both arrays in a dtype that has all of their numbers.
    fn add_as<T: Copy, const N: usize>(
        &mut self,
        arrays: [&Array; 2],
        dtype: Dtype,
        read: impl Fn([u8; N]) -> T + Sync,
        number: impl Fn(T) -> f64 + Sync,
        apart: impl Fn(T, T) -> f64 + Sync,
    ) -> Result<()> {
        // A GPU may have no numbers of 64 bits.
        let [right, other] = arrays.map(|array| with_stream(&Stream::cpu(), || array.as_dtype(dtype)));
        let (right, other) = (right?, other?);
        let sums = |(right, other): (&[[u8; N]], &[[u8; N]])| {
            let mut sums = Self::default();
            for (right, other) in right.iter().zip(other) {
                let (a, b) = (read(*right), read(*other));
                let (right, others) = (number(a), number(b));
                let is_same = right.is_infinite() && right.total_cmp(&others).is_eq();
                if is_same || right.is_nan() && others.is_nan() {
                    continue;
                }
                let lost = apart(a, b);
                sums.right += right * right;
                sums.lost += lost * lost;
                sums.others += others * others;
                sums.both += right * others;
            }
            sums
        };
        let parts: Vec<Self> = with_bytes(&right, |right| {
            with_bytes(&other, |other| {
                let (right, other) = (right.as_chunks::<N>().0, other.as_chunks::<N>().0);
                right.par_chunks(TASK).zip(other.par_chunks(TASK)).map(sums).collect()
            })
        })??;
        for Self { right, lost, others, both } in parts {
            self.right += right;
            self.lost += lost;
            self.others += others;
            self.both += both;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use mlx_rs::complex64;
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
    fn what_differs_is_not_exact() {
        let apart = |a: &Array, b: &Array| Distance::between(a, b).expect("one shape").error;
        let is_exact = |a: &Array, b: &Array| apart(a, b).to_bits() == 0;
        let floats = |numbers: &[f32]| Array::from_slice(numbers, &[numbers.len() as i32]);
        let wide = |numbers: &[i64]| Array::from_slice(numbers, &[numbers.len() as i32]);
        assert!((apart(&wide(&[16_777_216, 0]), &wide(&[16_777_217, 0])) * 2f64.powi(24) - 1.0).abs() < 1e-6);
        assert!(apart(&wide(&[i64::MAX - 1]), &wide(&[i64::MAX])) > 0.0);
        assert!(is_exact(&wide(&[i64::MAX]), &wide(&[i64::MAX])));
        let unsigned = |number: u64| Array::from_slice(&[number], &[1]);
        assert!((apart(&unsigned(1 << 63), &unsigned((1 << 63) - 1)) * 2f64.powi(63) - 1.0).abs() < 1e-6);
        assert!(is_exact(&wide(&[3]), &floats(&[3.0])));
        let far = apart(&floats(&[1e20, 1.0]), &floats(&[1e20, -50.0]));
        assert!((far / 51e-20 - 1.0).abs() < 1e-6, "{far}");
        let tiny = apart(&floats(&[1e-24, 2e-24]), &floats(&[1.5e-24, -2e-24]));
        assert!((tiny - (16.25f64 / 5.0).sqrt()).abs() < 1e-6, "{tiny}");
        let half = floats(&[1.0, 2.0]).as_dtype(Dtype::Bfloat16).expect("casts");
        assert!(is_exact(&half, &floats(&[1.0, 2.0])));
    }

    #[test]
    fn both_parts_of_complex_numbers_count() {
        let of = |re: f32, im: f32| Array::from_complex(complex64::new(re, im));
        let between = |a: &Array, b: &Array| Distance::between(a, b).expect("one shape");
        let far = between(&of(3.0, 4.0), &of(3.0, 4.5));
        assert!((far.error - 0.1).abs() < 1e-12, "{far:?}");
        assert!(between(&of(0.0, 1.0), &of(1.0, 0.0)).cosine.abs() < 1e-12);
        assert_eq!(between(&of(3.0, 4.0), &of(3.0, 4.0)).sqnr, None);
        assert!((between(&of(3.0, 4.0), &Array::from_f32(3.0)).error - 0.8).abs() < 1e-12);
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
        let (zero, one) = (of(&[0.0, 0.0]), of(&[0.0, 2.0]));
        for (a, b, error) in [(&zero, &one, f64::INFINITY), (&one, &zero, 1.0)] {
            let far = Distance::between(a, b).expect("one shape");
            assert!(far.cosine.is_nan() && far.error.total_cmp(&error).is_eq(), "{far:?}");
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
