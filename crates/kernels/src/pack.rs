//! Codes of one byte each to a stream of bits.

use crate::Order;

/// Packs codes of 1 to 8 bits, a multiple of eight of them, into as many of `bytes` as there are.
#[inline(always)]
pub(crate) fn pack(codes: &[u8], bits: u32, order: Order, bytes: &mut [u8]) {
    match (bits, order) {
        // The first of a byte's codes, of 1, 2 or 4 bits, becomes its last.
        (1, Order::HighFirst) => narrow::<1>(codes, bytes, |word| even_first::<1>(word.swap_bytes())),
        (2, Order::HighFirst) => narrow::<2>(codes, bytes, |word| even_first::<2>(word.swap_bytes().rotate_left(32))),
        (4, Order::HighFirst) => narrow::<4>(codes, bytes, |word| word << 4 & EVEN << 4 | word >> 8 & EVEN),
        (1, _) => narrow::<1>(codes, bytes, even_first::<1>),
        (2, _) => narrow::<2>(codes, bytes, even_first::<2>),
        (3, _) => narrow::<3>(codes, bytes, even_first::<3>),
        (4, _) => narrow::<4>(codes, bytes, even_first::<4>),
        (5, _) => narrow::<5>(codes, bytes, even_first::<5>),
        (6, _) => narrow::<6>(codes, bytes, even_first::<6>),
        (7, _) => narrow::<7>(codes, bytes, even_first::<7>),
        _ => bytes.copy_from_slice(&codes[..bytes.len()]),
    }
}

/// The lowest byte of every two.
const EVEN: u64 = 0x00ff_00ff_00ff_00ff;

/// The codes of bytes `2i` and `2i + 1` together in the lowest bits of those two.
#[inline(always)]
fn even_first<const BITS: usize>(word: u64) -> u64 {
    word & EVEN | (word & EVEN << 8) >> (8 - BITS)
}

/// Packs eight codes at a time: in pairs, as `paired` does, then the pairs, then the fours.
#[inline(always)]
fn narrow<const BITS: usize>(codes: &[u8], bytes: &mut [u8], paired: impl Fn(u64) -> u64) {
    let squeezed = |codes: &[u8; 8]| -> [u8; 8] {
        let pairs = paired(u64::from_le_bytes(*codes));
        let fours = pairs & 0xffff_0000_ffff | (pairs & 0xffff_0000_ffff << 16) >> (16 - 2 * BITS);
        (fours & 0xffff_ffff | fours >> 32 << (4 * BITS)).to_le_bytes()
    };
    let (codes, _) = codes.as_chunks::<8>();
    let (whole, last) = bytes.as_chunks_mut::<BITS>();
    for (bytes, codes) in whole.iter_mut().zip(codes) {
        bytes.copy_from_slice(&squeezed(codes)[..BITS]);
    }
    if let Some(codes) = codes.get(whole.len()) {
        last.copy_from_slice(&squeezed(codes)[..last.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_is_found_at_its_bits() {
        for bits in 1..=8 {
            for len in [0_usize, 1, 7, 8, 9, 200] {
                let codes: Vec<u8> = (0..len.next_multiple_of(8)).map(|i| (i * 151 + 77) as u8 >> (8 - bits)).collect();
                let mut bytes = vec![0xaa; (len * bits as usize).div_ceil(8)];
                pack(&codes, bits, Order::LowFirst, &mut bytes);
                for (i, code) in codes.iter().enumerate().take(len) {
                    let bit = |at: usize| bytes[at / 8] >> (at % 8) & 1;
                    let found = (0..bits).map(|j| bit(i * bits as usize + j as usize) << j).sum::<u8>();
                    assert_eq!(found, *code, "{bits} bits, code {i} of {len}");
                }
            }
        }
    }

    #[test]
    fn the_first_code_of_a_byte_is_in_its_highest_bits() {
        for (bits, expected) in
            [(1_u32, [0b1010_1010, 0, 0]), (2, [0b01_10_11_00, 0b01_10_11_00, 0]), (4, [0x12, 0x34, 0x56])]
        {
            let codes = [1_u8, 2, 3, 4, 5, 6, 7, 8].map(|code| code & ((1 << bits) - 1));
            let len = (bits as usize).min(3);
            let mut bytes = [0; 3];
            pack(&codes, bits, Order::HighFirst, &mut bytes[..len]);
            assert_eq!(bytes, expected, "{bits} bits");
        }
    }
}
