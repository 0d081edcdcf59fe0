//! The trait of calibration methods.

use mlx_rs::Array;
use tacit_core::{Aval, Error, Result, Value};

use crate::avals::checks::check_float;
use crate::format::AnyFormat;
use crate::training::observation::Observation;

/// A way to choose the codes of a weight by what it is multiplied with.
///
/// [`Gptq`](crate::Gptq) and [`Awq`](crate::Awq) are such ways; one of your own needs this one method.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops};
/// use tacit_arrays::format::{AnyFormat, Nf4};
/// use tacit_arrays::{Calibrate, Observation};
/// use tacit_core::{Result, Value};
///
/// /// Rounds, whatever was seen.
/// struct Rounding;
///
/// impl Calibrate for Rounding {
///     fn quantize(&self, format: &AnyFormat, weight: &Array, _: &Observation) -> Result<Value> {
///         format.quantize(weight)
///     }
/// }
///
/// let (w, x) = (ops::ones::<f32>(&[8, 64])?, ops::ones::<f32>(&[2, 64])?);
/// let codes = Rounding.quantize(&Nf4 { block: 64, double: false }.into(), &w, &Observation::from_inputs(&x)?)?;
/// assert_eq!(codes.to_string(), "Nf4(f32[8,64])");
/// # Ok(())
/// # }
/// ```
pub trait Calibrate {
    /// The array that stands for `weight: [n, k]`, or a stack `[e, n, k]`, in the format, for inputs such as were seen.
    ///
    /// # Errors
    ///
    /// The weight does not fit the format, or what was seen does not fit the weight; the method has no use for the format.
    fn quantize(&self, format: &AnyFormat, weight: &Array, seen: &Observation) -> Result<Value>;
}

impl<C: Calibrate + ?Sized> Calibrate for &C {
    fn quantize(&self, format: &AnyFormat, weight: &Array, seen: &Observation) -> Result<Value> {
        (**self).quantize(format, weight, seen)
    }
}

/// A weight as matrices, and the sums of products of each: `[e, n, k]` and `f32[e, k, k]`, with one matrix where the weight is one.
pub(super) fn matrices(weight: &Array, seen: &Observation) -> Result<(Array, Array)> {
    of_matrices(weight, seen, seen.gram()?, 2)
}

/// The same with the sums of squares: `f32[e, k]`.
pub(super) fn matrices_and_squares(weight: &Array, seen: &Observation) -> Result<(Array, Array)> {
    of_matrices(weight, seen, &seen.squares()?, 1)
}

/// A weight as matrices, and sums that have so many axes of its inputs.
fn of_matrices(weight: &Array, seen: &Observation, sums: &Array, axes: usize) -> Result<(Array, Array)> {
    let aval = Aval::from(weight);
    check_float("the weight", &aval)?;
    let (stacked, n, k) = match *weight.shape() {
        [n, k] => (None, n, k),
        [e, n, k] => (Some(e), n, k),
        _ => {
            return Err(Error::invalid(
                format!("the weight is {aval}, which is neither a matrix nor a stack of them"),
                "calibrate a weight of two or three axes, and quantize others as they are",
            ));
        }
    };
    let of_each = vec![k; axes];
    if sums.shape() != [stacked.as_slice(), &of_each[..]].concat() {
        return Err(Error::invalid(
            format!("the weight is {aval}, and what was seen are inputs of {}", Aval::from(sums)),
            "give what was seen of this weight",
        ));
    }
    if let Some(unmet) = seen.rows().iter().position(|&rows| rows == 0) {
        let what = if stacked.is_some() { format!("matrix {unmet} of {aval}") } else { format!("the weight {aval}") };
        return Err(Error::invalid(
            format!("{what} met no rows while it was observed"),
            "observe more inputs, until each is chosen, or quantize the weight without them",
        ));
    }
    let e = stacked.unwrap_or(1);
    Ok((weight.reshape(&[e, n, k])?, sums.reshape(&[&[e][..], &of_each[..]].concat())?))
}

/// What each element of what is lost, `[.., n, k]`, adds to the layer error `tr(lost x^T x lost^T)`.
pub(super) fn errors(lost: &Array, gram: &Array) -> Result<Array> {
    Ok(lost.matmul(gram)?.multiply(lost)?)
}

pub(super) fn not_finite(weight: &Array) -> Error {
    Error::invalid(
        format!("the weight {} has an element that is not finite", Aval::from(weight)),
        "replace NaN and infinities before quantizing",
    )
}
