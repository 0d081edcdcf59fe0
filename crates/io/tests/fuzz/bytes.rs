//! Changes of bytes, whatever they mean.

use crate::random::Random;

/// Changes a few bytes, cuts some out, doubles some, or puts an odd number in place of some.
pub(crate) fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    // Most of what is said of a file is said at its beginning.
    let end = if random.once_in(2) { bytes.len().min(1024) } else { bytes.len() };
    let at = random.below(end);
    let aligned = if random.once_in(2) { at & !7 } else { at };
    let length = if random.once_in(4) { random.below(bytes.len()) } else { random.below(16) };
    let range = at..bytes.len().min(at + length);
    match random.below(8) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(range)),
        2 => {
            let twice = bytes[range].to_vec();
            drop(bytes.splice(at..at, twice));
        }
        3 => {
            let byte = random.bits() as u8;
            bytes[range].fill(byte);
        }
        4 => overwrite(bytes, aligned, &(random.odd_number() as u32).to_le_bytes()),
        5 => overwrite(bytes, aligned, &random.odd_number().to_le_bytes()),
        6 => overwrite(bytes, at, &[random.bits() as u8]),
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
    }
}

/// Puts `others` over the bytes from `at` on, as far as there are any.
fn overwrite(bytes: &mut [u8], at: usize, others: &[u8]) {
    for (byte, other) in bytes.iter_mut().skip(at).zip(others) {
        *byte = *other;
    }
}
