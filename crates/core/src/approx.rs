//! Comparison up to rounding, with the traits of the crate `approx`.
//!
//! Equality is of what is stored: it builds nothing. The traits of `approx` compare the arrays that two values stand for. These are
//! materialized for the comparison alone, whatever the policy is, and not counted. They are unequal where shape or dtype differ,
//! where one cannot be evaluated, and where there is a NaN. Integers and booleans must be equal.

use approx::{AbsDiffEq, RelativeEq, UlpsEq};
use mlx_rs::{Array, Dtype, ops};

use crate::bits::equal_bits;
use crate::materialize::built;
use crate::tree::Gradient;
use crate::{Aval, Result, Value};

impl PartialEq for Value {
    /// Whether both are stored alike: dense arrays of equal elements, shape and dtype, or implicit arrays of one type with
    /// equal static fields and equal children. Nothing is materialized; what holds a NaN is unequal to itself.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            #[allow(clippy::float_cmp, reason = "equality is asked for")]
            (Self::Dense(_), Self::Dense(_)) => agree(self, other, |a, b, _| a == b),
            (Self::Implicit(a), Self::Implicit(b)) => a.aux_eq(&**b) && a.children() == b.children(),
            _ => false,
        }
    }
}

impl AbsDiffEq for Value {
    type Epsilon = f64;

    /// Stands for the machine epsilon of the dtype that is compared.
    fn default_epsilon() -> f64 {
        f64::from(f32::EPSILON)
    }

    /// Whether no two elements differ by more than `epsilon`.
    ///
    /// ```
    /// use approx::assert_abs_diff_eq;
    /// use mlx_rs::Array;
    /// use tacit_core::Value;
    ///
    /// let [a, b] = [[1f32, 2.0], [1.0, 2.001]].map(|x| Value::from(Array::from_slice(&x, &[2])));
    /// assert_abs_diff_eq!(a, b, epsilon = 0.01);
    /// ```
    fn abs_diff_eq(&self, other: &Self, epsilon: f64) -> bool {
        agree(self, other, |a, b, dtype| a.abs_diff_eq(&b, bound_for(epsilon, dtype)))
    }
}

impl RelativeEq for Value {
    /// Stands for the machine epsilon of the dtype that is compared.
    fn default_max_relative() -> f64 {
        Self::default_epsilon()
    }

    /// Whether the elements of each pair differ by at most `epsilon`, or by at most `max_relative` of the larger one.
    ///
    /// ```
    /// use approx::assert_relative_eq;
    /// use mlx_rs::Array;
    /// use tacit_core::Value;
    ///
    /// let [a, b] = [[1f32, 2000.0], [1.0, 2001.0]].map(|x| Value::from(Array::from_slice(&x, &[2])));
    /// assert_relative_eq!(a, b, max_relative = 1e-3);
    /// ```
    fn relative_eq(&self, other: &Self, epsilon: f64, max_relative: f64) -> bool {
        agree(self, other, |a, b, dtype| a.relative_eq(&b, bound_for(epsilon, dtype), bound_for(max_relative, dtype)))
    }
}

impl UlpsEq for Value {
    fn default_max_ulps() -> u32 {
        4
    }

    /// Whether the elements of each pair differ by at most `epsilon`, or by at most `max_ulps` units in the last place of their
    /// own dtype.
    ///
    /// ```
    /// use approx::{assert_ulps_eq, assert_ulps_ne};
    /// use mlx_rs::{Array, Dtype};
    /// use tacit_core::Value;
    ///
    /// let bf16 = |x: f32| Value::from(Array::from_f32(x).as_dtype(Dtype::Bfloat16).expect("casts"));
    /// // One unit in the last place of bf16 is 2^-7 above 1.
    /// assert_ulps_eq!(bf16(1.0), bf16(1.0078125), epsilon = 0.0, max_ulps = 1);
    /// assert_ulps_ne!(bf16(1.0), bf16(1.015625), epsilon = 0.0, max_ulps = 1);
    /// ```
    fn ulps_eq(&self, other: &Self, epsilon: f64, max_ulps: u32) -> bool {
        agree(self, other, |a, b, dtype| {
            let ulps = || ordinal(a, dtype).abs_diff(ordinal(b, dtype));
            a.abs_diff_eq(&b, bound_for(epsilon, dtype)) || !a.is_nan() && !b.is_nan() && ulps() <= u64::from(max_ulps)
        })
    }
}

impl PartialEq for Gradient {
    fn eq(&self, other: &Self) -> bool {
        self.agrees(other, &|a, b| a == b)
    }
}

impl AbsDiffEq for Gradient {
    type Epsilon = f64;

    fn default_epsilon() -> f64 {
        Value::default_epsilon()
    }

    /// As for [`Value`], child by child; where one has no gradient, the other must have none.
    fn abs_diff_eq(&self, other: &Self, epsilon: f64) -> bool {
        self.agrees(other, &|a, b| a.abs_diff_eq(b, epsilon))
    }
}

impl RelativeEq for Gradient {
    fn default_max_relative() -> f64 {
        Value::default_max_relative()
    }

    /// As for [`Value`], child by child; where one has no gradient, the other must have none.
    fn relative_eq(&self, other: &Self, epsilon: f64, max_relative: f64) -> bool {
        self.agrees(other, &|a, b| a.relative_eq(b, epsilon, max_relative))
    }
}

impl UlpsEq for Gradient {
    fn default_max_ulps() -> u32 {
        Value::default_max_ulps()
    }

    /// As for [`Value`], child by child; where one has no gradient, the other must have none.
    fn ulps_eq(&self, other: &Self, epsilon: f64, max_ulps: u32) -> bool {
        self.agrees(other, &|a, b| a.ulps_eq(b, epsilon, max_ulps))
    }
}

impl Gradient {
    fn agrees(&self, other: &Self, equal: &dyn Fn(&Value, &Value) -> bool) -> bool {
        match (self, other) {
            (Self::Nothing, Self::Nothing) => true,
            (Self::Dense(a), Self::Dense(b)) => equal(&a.into(), &b.into()),
            (Self::Node { name, children }, Self::Node { name: other_name, children: others }) => {
                name == other_name
                    && children.len() == others.len()
                    && children.iter().zip(others).all(|((name, a), (other, b))| name == other && a.agrees(b, equal))
            }
            _ => false,
        }
    }
}

/// The elements of an array of floats, row-major; of a complex one the real parts, then the imaginary ones.
fn floats(array: &Array) -> Result<Vec<f64>> {
    if array.dtype().is_complex() {
        return Ok([floats(&ops::real(array)?)?, floats(&ops::imag(array)?)?].concat());
    }
    if array.size() == 0 {
        return Ok(Vec::new());
    }
    let flat = ops::flatten(array, None, None)?;
    if array.dtype() == Dtype::Float64 {
        return Ok(flat.contiguous()?.try_as_slice::<f64>()?.to_vec());
    }
    let wide = flat.as_dtype(Dtype::Float32)?.contiguous()?;
    Ok(wide.try_as_slice::<f32>()?.iter().copied().map(f64::from).collect())
}

/// Whether both stand for arrays of one aval, whose elements are equal in the sense of `equal`, or as they are if exact.
fn agree(a: &Value, b: &Value, equal: impl Fn(f64, f64, Dtype) -> bool) -> bool {
    let (Ok(a), Ok(b)) = (built(a.clone()), built(b.clone())) else { return false };
    let dtype = a.dtype();
    if Aval::from(&a) != Aval::from(&b) {
        return false;
    }
    if !dtype.is_inexact() {
        // No integer type of MLX holds all others, so the bits say whether two are equal.
        return equal_bits(&a, &b).unwrap_or(false);
    }
    let (Ok(xs), Ok(ys)) = (floats(&a), floats(&b)) else { return false };
    xs.iter().zip(&ys).all(|(&x, &y)| equal(x, y, dtype))
}

/// A bound as it was given, where that is the default the machine epsilon of the dtype.
fn bound_for(bound: f64, dtype: Dtype) -> f64 {
    #[allow(clippy::float_cmp, reason = "the default is a mark")]
    if bound != Value::default_epsilon() {
        return bound;
    }
    match dtype {
        Dtype::Bfloat16 => 2f64.powi(-7),
        Dtype::Float16 => 2f64.powi(-10),
        Dtype::Float64 => f64::EPSILON,
        _ => bound,
    }
}

/// The place of a number among those of its dtype; neighbors are one apart, and both zeros are 0.
fn ordinal(x: f64, dtype: Dtype) -> i64 {
    // Every number of a narrower type is exact in f64 and f32.
    let (bits, negative) = match dtype {
        Dtype::Float64 => (x.abs().to_bits() as i64, x < 0.0),
        Dtype::Bfloat16 => (i64::from((x.abs() as f32).to_bits() >> 16), x < 0.0),
        Dtype::Float16 => (half_bits(x.abs()), x < 0.0),
        _ => (i64::from((x.abs() as f32).to_bits()), x < 0.0),
    };
    if negative { -bits } else { bits }
}

/// The place of a number of f16, which is not negative, from 0 on.
fn half_bits(x: f64) -> i64 {
    // Below the least normal number the steps are all 2^-24.
    if x < 2f64.powi(-14) {
        return (x * 2f64.powi(24)) as i64;
    }
    if x.is_infinite() {
        return 0x7c00;
    }
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i64 - 1023;
    ((exponent + 15) << 10) + ((bits >> 42) & 0x3ff) as i64
}
