//! The elements of arrays, how far they are from others, and where they are farthest.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::{Error, Result};

/// `max|a - b| / max|b|`, never NaN: 0 where both are the same NaN or infinity.
///
/// # Errors
///
/// The arrays have different sizes, or cannot be evaluated as f32.
pub fn relative_error(a: &Array, b: &Array) -> Result<f64> {
    error_above(a, b, 0.0)
}

/// `max|a - b| / max(max|b|, least)`.
pub(crate) fn error_above(a: &Array, b: &Array, least: f64) -> Result<f64> {
    let (a, b) = (floats(a)?, floats(b)?);
    if a.len() != b.len() {
        return Err(Error::invalid(format!("{} elements and {}", a.len(), b.len()), "compare arrays of one shape"));
    }
    let (mut error, mut scale) = (0f64, least);
    for (&a, &b) in a.iter().zip(&b) {
        #[allow(clippy::float_cmp, reason = "equal infinities have no difference")]
        if a == b || (a.is_nan() && b.is_nan()) {
            scale = if b.is_finite() { scale.max(f64::from(b.abs())) } else { scale };
            continue;
        }
        let difference = f64::from((a - b).abs());
        if !difference.is_finite() {
            return Ok(f64::INFINITY);
        }
        error = error.max(difference);
        scale = scale.max(f64::from(b.abs()));
    }
    Ok(if error == 0.0 { 0.0 } else { error / scale })
}

/// The element that is farthest from the one that is expected: where it is, what it is, and what is expected.
pub(crate) fn worst(found: &Array, expected: &Array) -> Result<String> {
    let (a, b) = (floats(found)?, floats(expected)?);
    let pairs = a.iter().zip(&b).enumerate();
    let of = |&(_, (&a, &b)): &(usize, (&f32, &f32))| distance(a, b);
    let farthest = pairs.max_by(|one, other| of(one).total_cmp(&of(other)));
    Ok(farthest.map_or_else(String::new, |(at, (found, wanted))| {
        format!("at {:?} it is {found:?}, expected {wanted:?}", index(at, expected.shape()))
    }))
}

/// How far an element is from the one that is expected: infinitely where one alone is NaN.
#[allow(clippy::float_cmp, reason = "equal infinities have no difference")]
pub(crate) fn distance(found: f32, expected: f32) -> f64 {
    match f64::from((found - expected).abs()) {
        _ if found == expected || found.is_nan() && expected.is_nan() => 0.0,
        distance if distance.is_nan() => f64::INFINITY,
        distance => distance,
    }
}

/// Whether two arrays agree up to a relative error.
pub(crate) fn near(found: &Array, expected: &Array, tolerance: f64) -> Result<(), String> {
    match relative_error(found, expected).map_err(|error| error.to_string())? {
        error if error <= tolerance => Ok(()),
        error => {
            let worst = worst(found, expected).map_err(|error| error.to_string())?;
            Err(format!("the relative error is {error:.3e}, above {tolerance:.1e}: {worst}"))
        }
    }
}

/// The elements of an array as f32, row-major; of a complex one the real parts and then the imaginary ones.
///
/// # Errors
///
/// The array cannot be evaluated.
pub fn floats(array: &Array) -> Result<Vec<f32>> {
    if array.size() == 0 {
        return Ok(Vec::new());
    }
    if array.dtype().is_complex() {
        return Ok([floats(&ops::real(array)?)?, floats(&ops::imag(array)?)?].concat());
    }
    let array = ops::flatten(array.as_dtype(Dtype::Float32)?, None, None)?.contiguous()?;
    // As bytes: the array may be a view that begins where no f32 may.
    let bytes = array.view_dtype(Dtype::Uint8)?;
    let bytes = bytes.try_as_slice::<u8>()?;
    Ok(bytes.as_chunks().0.iter().map(|&number| f32::from_ne_bytes(number)).collect())
}

/// The place of an element along each axis.
pub(crate) fn index(mut at: usize, shape: &[i32]) -> Vec<usize> {
    let mut index: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&extent| {
            let along = at % extent.max(1) as usize;
            at /= extent.max(1) as usize;
            along
        })
        .collect();
    index.reverse();
    index
}
