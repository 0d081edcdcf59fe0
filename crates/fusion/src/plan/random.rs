//! Random bits of keys.

use mlx_rs::Dtype;
use tacit_core::Aval;
use tacit_core::kernel::{Input, Output};
use tacit_kernels::random::hash;

use super::staged::{BoxError, Stage};

/// The bits that each key of an array `u32[.., 2]` stands for. Of `n` words, MLX makes the first half and the second half by one
/// counter each; a word in the middle has a counter of its own.
pub(super) struct RandomBits;

impl RandomBits {
    pub(super) fn new(keys: &Aval, result: &Aval) -> Option<Self> {
        let pairs = keys.dtype == Dtype::Uint32 && keys.shape.last() == Some(&2);
        let unsigned = matches!(result.dtype, Dtype::Uint8 | Dtype::Uint16 | Dtype::Uint32);
        (pairs && unsigned && keys.size() > 0).then_some(Self)
    }
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
        let [a, b] = hash(key, [word as u32, second as u32]);
        put(word, a);
        put(second, b);
    }
    if odd == 1 {
        put(half, hash(key, [half as u32, 0])[0]);
    }
}

impl Stage for RandomBits {
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        let keys = inputs[0].elements::<u32>()?.as_chunks::<2>().0;
        let to = output.bytes();
        if !to.is_empty() {
            let bytes = to.len() / keys.len();
            keys.iter().zip(to.chunks_mut(bytes)).for_each(|(key, to)| write(*key, to));
        }
        Ok(())
    }
}
