//! Floats to half floats that are stored as they are, rounded to nearest even.

use half::{bf16, f16, slice::HalfFloatSliceExt};

use crate::{KernelError, matrix::check_length, output::Output};

/// Elements that one task rounds.
const CHUNK: usize = 1 << 16;

/// Rounds `x` to `f16`: what is too large becomes infinite, what is too small subnormal or zero.
///
/// ```
/// use half::f16;
/// use tacit_kernels::halves;
///
/// let mut codes = [f16::ZERO; 2];
/// halves::to_f16(&[1.0, 65520.0], &mut codes)?;
/// assert_eq!(codes, [f16::ONE, f16::INFINITY]);
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
///
/// # Errors
/// A length of `codes` other than that of `x`.
pub fn to_f16(x: &[f32], codes: &mut [f16]) -> Result<(), KernelError> {
    round(x, codes)
}

/// Rounds `x` to `bf16`: what is too large becomes infinite.
///
/// # Errors
/// A length of `codes` other than that of `x`.
pub fn to_bf16(x: &[f32], codes: &mut [bf16]) -> Result<(), KernelError> {
    round(x, codes)
}

fn round<T: Send>(x: &[f32], codes: &mut [T]) -> Result<(), KernelError>
where
    [T]: HalfFloatSliceExt,
{
    check_length("codes", codes.len(), x.len(), "one for each element")?;
    let elements = codes.len();
    Output::new(codes, elements).for_each(usize::MAX, 1, CHUNK, &|mut part| {
        let columns = part.columns();
        part.row(0).convert_from_f32_slice(&x[columns]);
    });
    Ok(())
}
