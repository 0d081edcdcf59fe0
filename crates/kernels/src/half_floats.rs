//! Floats to half floats that are stored as they are, rounded to nearest even or at random.

use half::{bf16, f16, slice::HalfFloatSliceExt};

use crate::{KernelError, matrix::check_length, random::uniform, threads};

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

/// Rounds `x` to `f16` at random, as [`stochastic`](crate::stochastic) has it: to one of the two numbers around each element.
///
/// ```
/// use half::f16;
/// use tacit_kernels::half_floats;
///
/// let mut codes = [f16::ZERO; 3];
/// half_floats::to_f16_by_key(&[1.0, -0.5, 1.000_1], [0, 7], &mut codes)?;
/// assert_eq!(codes[..2], [f16::ONE, f16::from_f32(-0.5)]);
/// assert!([0x3c00, 0x3c01].contains(&codes[2].to_bits()));
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
///
/// # Errors
/// As for [`to_f16`].
pub fn to_f16_by_key(x: &[f32], key: [u32; 2], codes: &mut [f16]) -> Result<(), KernelError> {
    to_f16(x, codes)?;
    at_random(x, key, codes.reinterpret_cast_mut(), |bits| f16::from_bits(bits).to_f32());
    Ok(())
}

/// Rounds `x` to `bf16` at random.
///
/// # Errors
/// As for [`to_bf16`].
pub fn to_bf16_by_key(x: &[f32], key: [u32; 2], codes: &mut [bf16]) -> Result<(), KernelError> {
    to_bf16(x, codes)?;
    at_random(x, key, codes.reinterpret_cast_mut(), |bits| bf16::from_bits(bits).to_f32());
    Ok(())
}

/// Moves the bits of numbers that are nearest to `x` to those of one of the two numbers around each.
fn at_random(x: &[f32], key: [u32; 2], codes: &mut [u16], value: impl Fn(u16) -> f32 + Sync) {
    let parts = x.chunks(CHUNK).zip(codes.chunks_mut(CHUNK)).enumerate();
    threads::for_each_part(usize::MAX, parts, &|(at, (part, codes))| {
        let mut numbers = vec![0.0; part.len()];
        uniform(key, x.len(), at * CHUNK, &mut numbers);
        for ((x, code), number) in part.iter().zip(codes).zip(numbers) {
            // Bits of magnitudes order as these do, below the sign.
            let magnitude = |bits: u16| value(bits).abs();
            let lower = if magnitude(*code) > x.abs() { *code - 1 } else { *code };
            let (low, high) = (magnitude(lower), magnitude(lower + 1));
            // Above the greatest number is an infinity, whose share is 0.
            *code = if (x.abs() - low) / (high - low) > number { lower + 1 } else { lower };
        }
    });
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
    threads::try_each_part(x.chunks(CHUNK).zip(codes.chunks_mut(CHUNK)).enumerate(), &|(at, (part, codes))| {
        codes.convert_from_f32_slice(part);
        let Some(bad) = codes.iter().position(|&code| !is_finite(code)) else { return Ok(()) };
        let (index, value) = (at * CHUNK + bad, part[bad]);
        let error = if value.is_finite() {
            KernelError::TooLarge { index, value, max }
        } else {
            KernelError::NonFinite { index, value }
        };
        Err((index, error))
    })
}
