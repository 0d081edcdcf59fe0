//! Floats to half floats that are stored as they are, rounded to nearest even.

use std::sync::atomic::{AtomicUsize, Ordering};

use half::{bf16, f16, slice::HalfFloatSliceExt};

use crate::{KernelError, matrix::check_length, output::Output};

/// Elements that one task rounds.
const CHUNK: usize = 1 << 16;

/// Rounds `x` to `f16`: what is too small becomes subnormal or zero.
///
/// ```
/// use half::f16;
/// use tacit_kernels::half_floats;
///
/// let mut codes = [f16::ZERO; 2];
/// half_floats::to_f16(&[1.0, 65519.0], &mut codes)?;
/// assert_eq!(codes, [f16::ONE, f16::MAX]);
/// assert!(half_floats::to_f16(&[1.0, 65520.0], &mut codes).is_err());
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
///
/// # Errors
/// A length of `codes` other than that of `x`; a NaN or an infinity in `x`, or what would become infinite. The codes are then
/// unspecified.
pub fn to_f16(x: &[f32], codes: &mut [f16]) -> Result<(), KernelError> {
    round(x, codes, f16::is_finite, f16::MAX.to_f32())
}

/// Rounds `x` to `bf16`.
///
/// # Errors
/// As for [`to_f16`].
pub fn to_bf16(x: &[f32], codes: &mut [bf16]) -> Result<(), KernelError> {
    round(x, codes, bf16::is_finite, bf16::MAX.to_f32())
}

fn round<T: Copy + Send>(
    x: &[f32],
    codes: &mut [T],
    is_finite: impl Fn(T) -> bool + Sync,
    max: f32,
) -> Result<(), KernelError>
where
    [T]: HalfFloatSliceExt,
{
    check_length("codes", codes.len(), x.len(), "one for each element")?;
    let elements = codes.len();
    let first_bad = AtomicUsize::new(usize::MAX);
    Output::new(codes, elements).for_each(usize::MAX, 1, CHUNK, &|mut part| {
        let columns = part.columns();
        let row = part.row(0);
        row.convert_from_f32_slice(&x[columns.clone()]);
        if let Some(index) = row.iter().position(|&code| !is_finite(code)) {
            first_bad.fetch_min(columns.start + index, Ordering::Relaxed);
        }
    });
    match first_bad.into_inner() {
        usize::MAX => Ok(()),
        index if x[index].is_finite() => Err(KernelError::TooLarge { index, value: x[index], max }),
        index => Err(KernelError::NonFinite { index, value: x[index] }),
    }
}
