//! Random bits of keys.

use mlx_rs::Dtype;
use tacit_core::Aval;
use tacit_core::kernel::{Input, Output};

use super::staged::{BoxError, Stage};

/// The bits that each key of an array `u32[.., 2]` stands for, by Threefry-2x32 with 20 rounds.
///
/// Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011. Of `n` words, MLX makes the first half and
/// the second half by one counter each; a word in the middle has a counter of its own.
pub(super) struct RandomBits;

impl RandomBits {
    pub(super) fn new(keys: &Aval, result: &Aval) -> Option<Self> {
        let pairs = keys.dtype == Dtype::Uint32 && keys.shape.last() == Some(&2);
        let unsigned = matches!(result.dtype, Dtype::Uint8 | Dtype::Uint16 | Dtype::Uint32);
        (pairs && unsigned && keys.size() > 0).then_some(Self)
    }
}

/// The rotations of four rounds, in turn.
const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];

/// What the third word of a key is combined with.
const PARITY: u32 = 0x1BD1_1BDA;

fn threefry(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    let keys = [key[0], key[1], key[0] ^ key[1] ^ PARITY];
    let [mut a, mut b] = [counter[0].wrapping_add(keys[0]), counter[1].wrapping_add(keys[1])];
    for four in 0..5 {
        for rotation in ROTATIONS[four % 2] {
            a = a.wrapping_add(b);
            b = b.rotate_left(rotation) ^ a;
        }
        a = a.wrapping_add(keys[(four + 1) % 3]);
        b = b.wrapping_add(keys[(four + 2) % 3]).wrapping_add(four as u32 + 1);
    }
    [a, b]
}

/// The bits of one key; the last word may be used in part.
fn write(key: [u32; 2], to: &mut [u8]) {
    let words = to.len().div_ceil(4);
    let (half, odd) = (words / 2, words % 2);
    let mut put = |word: usize, bits: u32| {
        let to = &mut to[4 * word..];
        let count = to.len().min(4);
        to[..count].copy_from_slice(&bits.to_ne_bytes()[..count]);
    };
    for word in 0..half {
        let second = half + odd + word;
        let [a, b] = threefry(key, [word as u32, second as u32]);
        put(word, a);
        put(second, b);
    }
    if odd == 1 {
        put(half, threefry(key, [half as u32, 0])[0]);
    }
}

impl Stage for RandomBits {
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        let keys = inputs[0].elements::<u32>()?.as_chunks::<2>().0;
        let to = output.bytes();
        if !to.is_empty() {
            let each = to.len() / keys.len();
            keys.iter().zip(to.chunks_mut(each)).for_each(|(key, to)| write(*key, to));
        }
        Ok(())
    }
}
