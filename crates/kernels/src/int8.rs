//! Symmetric 8-bit integers: `round(x * 127 / absmax)`, for each block or each column.
//!
//! The value of a code is `code * (absmax / 127)`. Codes run from -127 to 127.

use std::sync::{Mutex, PoisonError};

use crate::{
    Encoder, Isa, KernelError,
    encode::{self, Format},
    encoder::Rule,
    matrix::check_length,
    simd::{Kernel, Simd, run},
    threads,
};

/// The encoder of blocks of `block` elements, with the absmax of each; a row is a block of its length. Codes are signed bytes.
///
/// A code is `x * (127 / absmax)` rounded to the nearest integer, ties to even, as bitsandbytes' LLM.int8 rounds.
/// A block of zeros has absmax 0 and codes 0; where `127 / absmax` overflows it is the greatest finite number.
///
/// ```
/// use tacit_kernels::{BlockScales, int8};
///
/// let (mut codes, mut absmax) = ([0_i8; 4], [0.0; 2]);
/// let scales = BlockScales::Floats(&mut absmax[..]);
/// int8::encoder(2).quantize(&[1.0, -0.5, 254.0, 1.0], int8::as_bytes(&mut codes), scales)?;
/// assert_eq!((codes, absmax), ([127, -64, 127, 0], [1.0, 254.0]));
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
#[must_use]
pub fn encoder(block: usize) -> Encoder {
    Encoder::new(block, Rule::Int8)
}

/// The bytes of signed codes.
pub fn as_bytes(codes: &mut [i8]) -> &mut [u8] {
    // SAFETY: bytes and signed bytes have the same size and alignment, and every value is one of both.
    unsafe { std::slice::from_raw_parts_mut(codes.as_mut_ptr().cast::<u8>(), codes.len()) }
}

/// Quantizes `x: f32[n, k]` into `codes: i8[n, k]` and `absmax: f32[k]`, one for each column.
///
/// # Errors
/// A wrong length, or a NaN or infinity in `x`. The outputs are then unspecified.
pub fn quantize_columns(x: &[f32], k: usize, codes: &mut [i8], absmax: &mut [f32]) -> Result<(), KernelError> {
    check_length("codes", codes.len(), x.len(), "as many as `x` has elements, in whole bytes")?;
    check_length("absmax", absmax.len(), k, "each column has one")?;
    if !x.is_empty() && (k == 0 || !x.len().is_multiple_of(k)) {
        return Err(KernelError::Group { elements: x.len(), group: k });
    }
    absmax.fill(0.0);
    if x.is_empty() {
        return Ok(());
    }
    let isa = Isa::detect();
    let rows = TASK.div_ceil(k) * k;
    let total = Mutex::new(&mut *absmax);
    threads::for_each_part(usize::MAX, x.chunks(rows), &|x| {
        let mut absmax = vec![0.0; k];
        run(isa, Absmax { x, absmax: &mut absmax });
        let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
        total.iter_mut().zip(absmax).for_each(|(total, absmax)| *total = greater(*total, absmax));
    });
    if absmax.iter().any(|absmax| !absmax.is_finite()) {
        let index = x.iter().position(|value| !value.is_finite()).unwrap_or(0);
        return Err(KernelError::NonFinite { index, value: x[index] });
    }
    let factors: Vec<f32> = absmax.iter().map(|&absmax| Scale::new(absmax).factor).collect();
    let parts = x.chunks(rows).zip(as_bytes(codes).chunks_mut(rows));
    threads::for_each_part(usize::MAX, parts, &|(x, codes)| run(isa, Columns { x, factors: &factors, codes }));
    Ok(())
}

/// Elements of a task, about.
const TASK: usize = 1 << 16;

/// The greater one of two magnitudes, or what is no magnitude.
#[inline(always)]
fn greater(a: f32, b: f32) -> f32 {
    // Bits of magnitudes order as the floats do, with NaN and infinities above all finite ones.
    f32::from_bits(a.to_bits().max(b.to_bits()))
}

/// The absmax of each column of some rows.
struct Absmax<'a> {
    x: &'a [f32],
    absmax: &'a mut [f32],
}

impl Kernel for Absmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for row in self.x.chunks_exact(self.absmax.len()) {
            for (absmax, value) in self.absmax.iter_mut().zip(row) {
                *absmax = greater(*absmax, value.abs());
            }
        }
    }
}

/// Codes some rows by the factor of each column.
struct Columns<'a> {
    x: &'a [f32],
    factors: &'a [f32],
    codes: &'a mut [u8],
}

impl Kernel for Columns<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let k = self.factors.len();
        for (x, codes) in self.x.chunks_exact(k).zip(self.codes.chunks_exact_mut(k)) {
            for at in (0..k).step_by(S::LANES) {
                let count = (k - at).min(S::LANES);
                let mut last = [0; 16];
                // SAFETY: so many floats are left in both; a vector has at most 16 codes, and whole ones lie in the row.
                unsafe {
                    let x = simd.load_some(x.as_ptr().add(at), count);
                    let factor = simd.load_some(self.factors.as_ptr().add(at), count);
                    let to = if count == S::LANES { codes.as_mut_ptr().add(at) } else { last.as_mut_ptr() };
                    simd.store_bytes(to, rounded(simd, simd.mul(x, factor)));
                }
                if count < S::LANES {
                    codes[at..].copy_from_slice(&last[..count]);
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Int8;

#[derive(Clone, Copy, Default)]
pub(crate) struct Scale {
    /// What a code is multiplied by.
    pub(crate) unit: f32,
    /// What an element is multiplied by.
    pub(crate) factor: f32,
}

impl Scale {
    #[inline(always)]
    pub(crate) fn new(absmax: f32) -> Self {
        Self { unit: absmax / 127.0, factor: if absmax == 0.0 { 0.0 } else { (127.0 / absmax).min(f32::MAX) } }
    }
}

/// The codes of floats in units of the scale.
#[inline(always)]
fn rounded<S: Simd>(simd: S, units: S::F) -> S::I {
    let limited = simd.max(simd.min(units, simd.splat(127.0)), simd.splat(-127.0));
    encode::nearest_integers(simd, limited)
}

impl Format for Int8 {
    type Stored = f32;
    type Scale = Scale;
    type Ready<S: Simd> = ();

    #[inline(always)]
    fn bits(self) -> u32 {
        8
    }
    #[inline(always)]
    fn scale<S: Simd>(self, _: S, _: &[f32], absmax: f32) -> f32 {
        absmax
    }
    #[inline(always)]
    fn unit(self, absmax: f32) -> Scale {
        Scale::new(absmax)
    }
    #[inline(always)]
    fn ready<S: Simd>(self, _: S) {}
    #[inline(always)]
    fn codes<S: Simd>((): (), simd: S, Scale { factor, .. }: Scale, x: S::F) -> S::I {
        rounded(simd, simd.mul(x, simd.splat(factor)))
    }
}
