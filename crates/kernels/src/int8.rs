//! Symmetric 8-bit integers: `round(x * 127 / absmax)`, for each block or each column.
//!
//! The value of a code is `code * (absmax / 127)`. Codes run from -127 to 127.

use crate::{
    Isa, KernelError,
    encode::{self, Format},
    matrix::check_length,
    threads,
};

/// Quantizes `x: f32[e]` in flat blocks into `codes: i8[e]` and `absmax: f32[ceil(e/block)]`; a row is a block of `k`.
///
/// A code is `x * (127 / absmax)` rounded to the nearest integer, ties to even, as bitsandbytes' LLM.int8 rounds.
/// A block of zeros has absmax 0 and codes 0; where `127 / absmax` overflows it is the greatest finite number.
///
/// ```
/// let (mut codes, mut absmax) = ([0; 4], [0.0; 2]);
/// tacit_kernels::int8::quantize(&[1.0, -0.5, 254.0, 1.0], 2, &mut codes, &mut absmax)?;
/// assert_eq!((codes, absmax), ([127, -64, 127, 0], [1.0, 254.0]));
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
///
/// # Errors
/// A block of no elements, a wrong length, or a NaN or infinity in `x`. The outputs are then unspecified.
pub fn quantize(x: &[f32], block: usize, codes: &mut [i8], absmax: &mut [f32]) -> Result<(), KernelError> {
    if block == 0 {
        return Err(KernelError::EmptyBlock);
    }
    check_length("absmax", absmax.len(), x.len().div_ceil(block), "each block of elements has one")?;
    encode::quantize(Isa::detect(), Int8, x, block, unsigned(codes), absmax)
}

/// Codes `x` as [`quantize`] does, by these magnitudes.
///
/// # Errors
/// As for [`quantize`].
pub fn quantize_by(x: &[f32], block: usize, absmax: &[f32], codes: &mut [i8]) -> Result<(), KernelError> {
    encode::quantize_by(Isa::detect(), Int8, x, block, absmax, unsigned(codes))
}

fn unsigned(codes: &mut [i8]) -> &mut [u8] {
    // SAFETY: bytes and signed bytes have the same size and alignment, and every value is one of both.
    unsafe { std::slice::from_raw_parts_mut(codes.as_mut_ptr().cast::<u8>(), codes.len()) }
}

/// Quantizes `x: f32[n, k]` into `codes: i8[n, k]` and `absmax: f32[k]`, one for each column.
///
/// # Errors
/// A wrong length, or a NaN or infinity in `x`. The outputs are then unspecified.
pub fn quantize_columns(x: &[f32], k: usize, codes: &mut [i8], absmax: &mut [f32]) -> Result<(), KernelError> {
    check_length("codes", codes.len(), x.len(), "as many as `x` has elements, in whole bytes")?;
    let scales = columns(x, k, absmax)?;
    let rows = ROWS.div_ceil(k.max(1)) * k;
    let parts = x.chunks(rows.max(1)).zip(codes.chunks_mut(rows.max(1)));
    threads::for_each_part(usize::MAX, parts, &|(x, codes)| {
        for (x, codes) in x.chunks(k).zip(codes.chunks_mut(k)) {
            for ((x, scale), code) in x.iter().zip(&scales).zip(codes) {
                *code = Int8.code(*scale, *x).cast_signed();
            }
        }
    });
    Ok(())
}

/// Elements of a task, about.
const ROWS: usize = 1 << 16;

/// The absmax of each column, and what coding its elements takes.
fn columns(x: &[f32], k: usize, absmax: &mut [f32]) -> Result<Vec<Scale>, KernelError> {
    check_length("absmax", absmax.len(), k, "each column has one")?;
    if !x.is_empty() && (k == 0 || !x.len().is_multiple_of(k)) {
        return Err(KernelError::Group { elements: x.len(), k, group: 1 });
    }
    absmax.fill(0.0);
    for row in x.chunks(k.max(1)) {
        for (most, value) in absmax.iter_mut().zip(row) {
            // Bits of magnitudes order as the floats do, with NaN and infinities above all finite ones.
            *most = f32::from_bits(most.to_bits().max(value.abs().to_bits()));
        }
    }
    if absmax.iter().all(|most| most.is_finite()) {
        return Ok(absmax.iter().map(|&most| Scale::new(most)).collect());
    }
    let index = x.iter().position(|value| !value.is_finite()).unwrap_or(0);
    Err(KernelError::NonFinite { index, value: x[index] })
}

#[derive(Clone, Copy)]
pub(crate) struct Int8;

#[derive(Clone, Copy)]
pub(crate) struct Scale {
    /// What a code is multiplied by.
    pub(crate) unit: f32,
    /// What an element is multiplied by.
    factor: f32,
}

impl Scale {
    #[inline(always)]
    pub(crate) fn new(absmax: f32) -> Self {
        Self { unit: absmax / 127.0, factor: if absmax == 0.0 { 0.0 } else { (127.0 / absmax).min(f32::MAX) } }
    }
}

impl Format for Int8 {
    type Stored = f32;
    type Scale = Scale;

    #[inline(always)]
    fn bits(self) -> u32 {
        8
    }
    #[inline(always)]
    fn scale(self, _: &[f32], absmax: f32) -> f32 {
        absmax
    }
    #[inline(always)]
    fn unit(self, absmax: f32) -> Scale {
        Scale::new(absmax)
    }
    #[inline(always)]
    fn code(self, Scale { factor, .. }: Scale, x: f32) -> u8 {
        encode::nearest_integer((x * factor).clamp(-127.0, 127.0))
    }
}
