//! Whether two arrays agree, and where they differ most.

use std::fmt;

use tacit_core::{Aval, Policy, Value};

use crate::elements::{compared, index, shown};

/// Where two arrays differ most.
#[derive(Clone, Debug)]
pub struct Difference {
    found: Aval,
    expected: Aval,
    what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not close to {}: {}", self.found, self.expected, self.what)
    }
}

/// Asserts that two arrays or values are [`close`](crate::close()); a failure shows their avals and the worst element with
/// its index.
///
/// ```
/// use mlx_rs::Array;
/// use tacit_conformance::assert_close;
///
/// let found = Array::from_slice(&[1f32, 2.0001], &[2]);
/// assert_close!(found, Array::from_slice(&[1f32, 2.0], &[2]), 1e-3);
/// ```
#[macro_export]
macro_rules! assert_close {
    ($found:expr, $expected:expr, $tolerance:expr $(,)?) => {
        if let ::core::result::Result::Err(difference) = $crate::close(&$found, &$expected, $tolerance) {
            ::core::panic!("{difference}");
        }
    };
    ($found:expr, $expected:expr, $tolerance:expr, $($context:tt)+) => {
        if let ::core::result::Result::Err(difference) = $crate::close(&$found, &$expected, $tolerance) {
            ::core::panic!("{}: {difference}", ::core::format_args!($($context)+));
        }
    };
}

/// Whether `|a - b| <= tolerance * max|b|` for each element, and the avals are the same.
///
/// Implicit values are materialized for it. The same NaN or infinity on both sides is no difference, and any other is.
///
/// # Errors
///
/// The avals, the worst element and its index.
pub fn close(found: impl Into<Value>, expected: impl Into<Value>, tolerance: f64) -> Result<(), Difference> {
    let (found, expected) = (found.into(), expected.into());
    let aval = |value: &Value| value.aval().unwrap_or_else(|_| Aval::new(&[], mlx_rs::Dtype::Bool));
    let avals = (aval(&found), aval(&expected));
    let difference = |what: String| Difference { found: avals.0.clone(), expected: avals.1.clone(), what };
    if avals.0 != avals.1 {
        return Err(difference("their shapes or dtypes differ".to_owned()));
    }
    let elements = {
        let _allow = Policy::Allow.scope();
        found.dense().and_then(|found| compared(&found, &expected.dense()?))
    };
    let elements = elements.map_err(|error| difference(error.to_string()))?;
    let finite = elements.iter().map(|element| element.expected).filter(|expected| expected.is_finite());
    let largest = finite.fold(0f64, |most, expected| most.max(expected.abs()));
    let granted = tolerance * largest;
    let (mut worst, mut far) = ((0, 0f64), 0);
    for (i, element) in elements.iter().enumerate() {
        let error = element.distance;
        far += usize::from(error > granted);
        worst = if error > worst.1 { (i, error) } else { worst };
    }
    if far == 0 {
        return Ok(());
    }
    let (at, error) = worst;
    Err(difference(format!(
        "at {:?} it is {} and not {}, {error:.1e} off where {granted:.1e} is granted; so {} of {} elements",
        index(at, &avals.1.shape),
        shown(elements[at].found),
        shown(elements[at].expected),
        if far == 1 { "is 1".to_owned() } else { format!("are {far}") },
        elements.len(),
    )))
}
