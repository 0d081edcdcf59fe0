//! The factors of a product and of what its output held before.

use std::ops::MulAssign;

/// What the product and what the output held count for: `out = alpha * product + beta * out`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors<T = f32> {
    /// The factor of the product.
    pub alpha: T,
    /// The factor of what the output holds, which is not looked at where this is 0.
    pub beta: T,
}

/// The product in place of what the output holds.
impl Default for Factors {
    fn default() -> Self {
        Self { alpha: 1.0, beta: 0.0 }
    }
}

/// Multiplies each value by a factor, without a look at it where that is 0.
pub(crate) fn scale<T: Copy + Default + PartialEq + MulAssign>(values: &mut [T], factor: T) {
    if factor == T::default() {
        values.fill(T::default());
    } else {
        for value in values {
            *value *= factor;
        }
    }
}
