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
    let mut shape = aval.shape.clone();
    if let Some(last) = shape.last_mut() {
        *last = (i64::from(*last) * i64::from(bits) / 32) as i32;
    }
    Aval { shape, dtype: Dtype::Uint32 }
}

/// Numbers, one a block.
pub(crate) fn floats(numbers: &[f32]) -> Array {
    Array::from_slice(numbers, &[numbers.len() as i32])
}
