//! Codes as Tacit's formats store them: one stream of bits, the lowest first.

use mlx_rs::{Array, Dtype};
use tacit_core::Aval;

/// Writes codes, a multiple of eight of them or of whole bytes, as the stream that `place` has the length of.
pub(crate) fn write_codes(codes: &[u8], bits: u32, place: &mut [u8]) {
    if bits == 8 {
        place.copy_from_slice(codes);
        return;
    }
    for (codes, place) in codes.chunks(8).zip(place.chunks_mut(bits as usize)) {
        let word = codes.iter().rev().fold(0_u64, |word, &code| word << bits | u64::from(code));
        place.copy_from_slice(&word.to_le_bytes()[..place.len()]);
    }
}

/// The aval of the codes of an array of `aval`, as the 32-bit words of MLX's layout.
pub(crate) fn words(bits: u32, aval: &Aval) -> Aval {
    along(aval, |last| (i64::from(last) * i64::from(bits) / 32) as i32, Dtype::Uint32)
}

/// The aval of what an array of `aval` has along its last axis, of which there are as many as `f` makes of its extent.
pub(crate) fn along(aval: &Aval, f: impl Fn(i32) -> i32, dtype: Dtype) -> Aval {
    let mut shape = aval.shape.clone();
    if let Some(last) = shape.last_mut() {
        *last = f(*last);
    }
    Aval { shape, dtype }
}

/// Numbers, one a block.
pub(crate) fn floats(numbers: &[f32]) -> Array {
    Array::from_slice(numbers, &[numbers.len() as i32])
}
