//! The elements of arrays, how far they are from others, and where they are farthest.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::{Error, Result};

use crate::device::on_the_cpu;

/// `max|a - b| / max|b|`, never NaN: 0 where both are the same NaN or infinity.
///
/// # Errors
///
/// The arrays have different sizes, or cannot be evaluated.
pub fn relative_error(a: &Array, b: &Array) -> Result<f64> {
    error_above(a, b, 0.0)
}

/// `max|a - b| / max(max|b|, least)`.
pub(crate) fn error_above(a: &Array, b: &Array, least: f64) -> Result<f64> {
    let (mut error, mut scale) = (0f64, least);
    for Compared { expected, distance, .. } in compared(a, b)? {
        if distance.is_infinite() {
            return Ok(f64::INFINITY);
        }
        error = error.max(distance);
        scale = if expected.is_finite() { scale.max(expected.abs()) } else { scale };
    }
    Ok(if error == 0.0 { 0.0 } else { error / scale })
}

/// The element that is farthest from the one that is expected: where it is, what it is, and what is expected.
pub(crate) fn worst(found: &Array, expected: &Array) -> Result<String> {
    let elements = compared(found, expected)?;
    let farthest = elements.iter().enumerate().max_by(|(_, one), (_, other)| one.distance.total_cmp(&other.distance));
    Ok(farthest.map_or_else(String::new, |(at, element)| {
        let (found, wanted) = (shown(element.found), shown(element.expected));
        format!("at {:?} it is {found}, expected {wanted}", index(at, expected.shape()))
    }))
}

/// An element beside the one that is expected.
pub(crate) struct Compared {
    pub(crate) found: f64,
    pub(crate) expected: f64,
    /// How far the one is from the other: infinitely where one alone is NaN.
    pub(crate) distance: f64,
}

/// The elements of two arrays, pair by pair.
pub(crate) fn compared(found: &Array, expected: &Array) -> Result<Vec<Compared>> {
    let (a, b) = (numbers(found)?, numbers(expected)?);
    if a.len() != b.len() {
        return Err(Error::invalid(format!("{} elements and {}", a.len(), b.len()), "compare arrays of one shape"));
    }
    let pairs = a.into_iter().zip(b);
    let mut elements: Vec<Compared> =
        pairs.map(|(found, expected)| Compared { found, expected, distance: distance(found, expected) }).collect();
    if let (Some(a), Some(b)) = (long_integers(found)?, long_integers(expected)?) {
        for (element, (a, b)) in elements.iter_mut().zip(a.iter().zip(&b)) {
            element.distance = a.abs_diff(*b) as f64;
        }
    }
    Ok(elements)
}

#[allow(clippy::float_cmp, reason = "equal infinities have no difference")]
fn distance(found: f64, expected: f64) -> f64 {
    match (found - expected).abs() {
        _ if found == expected || found.is_nan() && expected.is_nan() => 0.0,
        distance if distance.is_nan() => f64::INFINITY,
        distance => distance,
    }
}

/// A number in the digits that tell it apart: those of an f32 where it is one.
pub(crate) fn shown(number: f64) -> String {
    let narrow = number as f32;
    #[allow(clippy::float_cmp, reason = "whether it is an f32 exactly")]
    let is_narrow = f64::from(narrow) == number;
    if is_narrow { format!("{narrow:?}") } else { format!("{number:?}") }
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
    if array.dtype().is_complex() {
        return Ok([floats(&ops::real(array)?)?, floats(&ops::imag(array)?)?].concat());
    }
    let bytes = bytes(array, Dtype::Float32)?;
    Ok(bytes.as_chunks().0.iter().map(|&number| f32::from_ne_bytes(number)).collect())
}

/// As [`floats`], in f64: dtypes have numbers that no f32 tells apart.
fn numbers(array: &Array) -> Result<Vec<f64>> {
    use Dtype::{Float64, Int32, Int64, Uint32, Uint64};
    if !matches!(array.dtype(), Float64 | Int32 | Int64 | Uint32 | Uint64) {
        return Ok(floats(array)?.into_iter().map(f64::from).collect());
    }
    doubles(array)
}

/// The elements as f64, row-major.
pub(crate) fn doubles(array: &Array) -> Result<Vec<f64>> {
    let bytes = on_the_cpu(|| bytes(array, Dtype::Float64))?;
    Ok(bytes.as_chunks().0.iter().map(|&number| f64::from_ne_bytes(number)).collect())
}

/// The elements of a dtype whose numbers an f64 does not tell apart either.
fn long_integers(array: &Array) -> Result<Option<Vec<i128>>> {
    let dtype = array.dtype();
    let number: fn([u8; 8]) -> i128 = match dtype {
        Dtype::Int64 => |bytes| i64::from_ne_bytes(bytes).into(),
        Dtype::Uint64 => |bytes| u64::from_ne_bytes(bytes).into(),
        _ => return Ok(None),
    };
    Ok(Some(bytes(array, dtype)?.as_chunks().0.iter().map(|&bytes| number(bytes)).collect()))
}

/// The bytes of the elements in a dtype, row-major.
pub(crate) fn bytes(array: &Array, dtype: Dtype) -> Result<Vec<u8>> {
    if array.size() == 0 {
        return Ok(Vec::new());
    }
    let array = ops::flatten(array.as_dtype(dtype)?, None, None)?.contiguous()?;
    // As bytes: the array may be a view that begins where no number may.
    let bytes = array.view_dtype(Dtype::Uint8)?;
    Ok(bytes.try_as_slice::<u8>()?.to_vec())
}

/// The place of an element along each axis.
pub(crate) fn index(mut at: usize, shape: &[i32]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (place, &extent) in index.iter_mut().zip(shape).rev() {
        let extent = extent.max(1) as usize;
        (*place, at) = (at % extent, at / extent);
    }
    index
}

/// The unit in the last place of 1.
pub(crate) fn unit(dtype: Dtype) -> f32 {
    match dtype {
        Dtype::Bfloat16 => 2f32.powi(-7),
        Dtype::Float16 => 2f32.powi(-10),
        _ => 2f32.powi(-23),
    }
}
