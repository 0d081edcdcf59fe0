//! How near the results of two runs are.

use mlx_rs::{Array, Dtype};
use tacit_core::Aval;

use super::perturbed::Class;
use crate::call::{bytes, listed, text};
use crate::elements::{floats, unit};

/// What another run is compared with: the results, how near each must come, and the same with errors.
pub(super) struct Expected<'a> {
    pub(super) results: &'a [Array],
    pub(super) classes: &'a [Class],
    pub(super) erred: Vec<&'a [Array]>,
    /// Units in the last place of the largest number that are granted beside.
    pub(super) units: f64,
    /// Whether an infinity may be of the other sign, or none: a zero of an implicit array is what its parts round to.
    pub(super) rounded_zeros: bool,
}

impl Expected<'_> {
    /// Each result as near as its class asks for.
    pub(super) fn near(&self, found: &[Array]) -> Result<(), String> {
        avals(found, self.results)?;
        for (at, (found, expected)) in found.iter().zip(self.results).enumerate() {
            match self.classes.get(at).copied().unwrap_or(Class::Near) {
                Class::Exact => same_bits(at, found, expected)?,
                Class::Near => self.near_one(at, found, expected)?,
                Class::Any => {}
            }
        }
        Ok(())
    }

    fn near_one(&self, result: usize, found: &Array, expected: &Array) -> Result<(), String> {
        if !expected.dtype().is_inexact() {
            return Ok(());
        }
        let (found, expected_numbers) = (floats(found).map_err(text)?, floats(expected).map_err(text)?);
        let finite = expected_numbers.iter().filter(|number| number.is_finite());
        let largest = finite.fold(0f64, |most, &number| most.max(f64::from(number.abs())));
        let mut granted = self.units * f64::from(unit(expected.dtype())) * largest;
        for erred in &self.erred {
            let Some(erred) = erred.get(result) else { continue };
            let erred = floats(erred).map_err(text)?;
            for (&a, &b) in erred.iter().zip(&expected_numbers) {
                if a.is_finite() != b.is_finite() {
                    return Ok(());
                }
                if a.is_finite() {
                    granted = granted.max(8.0 * f64::from((a - b).abs()));
                }
            }
        }
        // Denormal numbers have no relative error.
        granted += 1e-37;
        for (at, (&found, &expected)) in found.iter().zip(&expected_numbers).enumerate() {
            #[allow(clippy::float_cmp, reason = "equal infinities have no difference")]
            let equal = found == expected || found.is_nan() && expected.is_nan();
            let error = (f64::from(found) - f64::from(expected)).abs();
            if self.rounded_zeros && !expected.is_finite() {
                continue;
            }
            if !equal && (error.is_nan() || error > granted) {
                return Err(format!(
                    "result {result} is {found:e} at {at} and not {expected:e}, where {granted:.1e} is granted"
                ));
            }
        }
        Ok(())
    }
}

/// The same shapes and dtypes.
pub(super) fn avals(found: &[Array], expected: &[Array]) -> Result<(), String> {
    let (found, expected) = (listed(found), listed(expected));
    if found == expected { Ok(()) } else { Err(format!("{found} and not {expected}")) }
}

/// The same bits, but for the payloads of NaN.
pub(super) fn same(found: &[Array], expected: &[Array]) -> Result<(), String> {
    avals(found, expected)?;
    let mut pairs = found.iter().zip(expected).enumerate();
    pairs.try_for_each(|(at, (found, expected))| same_bits(at, found, expected))
}

fn same_bits(result: usize, found: &Array, expected: &Array) -> Result<(), String> {
    let (a, b) = (bytes(found)?, bytes(expected)?);
    if a == b {
        return Ok(());
    }
    let dtype = found.dtype();
    let width = (a.len() / found.size().max(1)).max(1) / if dtype.is_complex() { 2 } else { 1 };
    let far = a.chunks(width).zip(b.chunks(width)).position(|(a, b)| a != b && !(is_nan(dtype, a) && is_nan(dtype, b)));
    let Some(at) = far else { return Ok(()) };
    let shown = |array: &Array| floats(array).map_or_else(text, |numbers| format!("{:?}", numbers.get(at)));
    Err(format!(
        "result {result}, {}, is {} at {at} and not {}; bits {:x?} and {:x?}",
        Aval::from(found),
        shown(found),
        shown(expected),
        &a[at * width..(at + 1) * width],
        &b[at * width..(at + 1) * width],
    ))
}

fn is_nan(dtype: Dtype, bytes: &[u8]) -> bool {
    match (dtype, bytes) {
        (Dtype::Float16, &[a, b]) => u16::from_le_bytes([a, b]) & 0x7fff > 0x7c00,
        (Dtype::Bfloat16, &[a, b]) => u16::from_le_bytes([a, b]) & 0x7fff > 0x7f80,
        (Dtype::Float32 | Dtype::Complex64, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).is_nan(),
        (Dtype::Float64, bytes) => bytes.try_into().is_ok_and(|bytes| f64::from_le_bytes(bytes).is_nan()),
        _ => false,
    }
}
