//! The random numbers of MLX: those of its `random.uniform` by a key, any part of them by itself.
//!
//! MLX hashes counters by Threefry-2x32 of 20 rounds ("Parallel Random Numbers: As Easy as 1, 2, 3", Salmon et al.,
//! 2011). A hash gives two words: one for an element of the first half of the array, and one for the element at the
//! same place of the second half.

/// Writes the numbers from `first` on of the `count` that MLX draws by `key`, from 0 to below 1 and of 24 bits.
///
/// ```
/// use tacit_kernels::random::uniform;
///
/// let (mut all, mut part) = ([0.0; 100], [0.0; 3]);
/// uniform([0, 7], 100, 0, &mut all);
/// uniform([0, 7], 100, 60, &mut part);
/// assert_eq!(part, all[60..63]);
/// ```
#[inline(always)]
pub fn uniform(key: [u32; 2], count: usize, first: usize, to: &mut [f32]) {
    let (half, middle) = ((count / 2) as u32, count.div_ceil(2) as u32);
    for (at, number) in to.iter_mut().enumerate() {
        let at = (first + at) as u32;
        let is_first = at < middle;
        // Of an odd count the one in the middle has no partner.
        let partner = if at < half { at.wrapping_add(middle) } else { 0 };
        let [a, b] = hash(key, if is_first { [at, partner] } else { [at.wrapping_sub(middle), at] });
        let word = if is_first { a } else { b };
        // The greatest words would round to 1.
        *number = (word as f32 / 4_294_967_296.0).min(1.0_f32.next_down());
    }
}

const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];

/// The two words of a counter: Threefry-2x32 of 20 rounds.
#[must_use]
#[inline(always)]
pub fn hash(key: [u32; 2], [mut a, mut b]: [u32; 2]) -> [u32; 2] {
    let keys = [key[0], key[1], key[0] ^ key[1] ^ 0x1bd1_1bda];
    (a, b) = (a.wrapping_add(keys[0]), b.wrapping_add(keys[1]));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers that the authors publish beside their code.
    #[test]
    fn known_answers() {
        assert_eq!(hash([0; 2], [0; 2]), [0x6b20_0159, 0x99ba_4efe]);
        assert_eq!(hash([u32::MAX; 2], [u32::MAX; 2]), [0x1cb9_96fc, 0xbb00_2be7]);
        let (key, counter) = ([0x1319_8a2e, 0x0370_7344], [0x243f_6a88, 0x85a3_08d3]);
        assert_eq!(hash(key, counter), [0xc492_3a9c, 0x483d_f7a0]);
    }

    #[test]
    fn numbers_are_uniform_and_those_of_places() {
        for count in [1, 2, 3, 10, 1001] {
            let mut all = vec![2.0; count];
            uniform([1, 2], count, 0, &mut all);
            assert!(all.iter().all(|number| (0.0..1.0).contains(number)), "{all:?}");
            for (at, number) in all.iter().enumerate() {
                let mut one = [2.0];
                uniform([1, 2], count, at, &mut one);
                assert_eq!(one[0].to_bits(), number.to_bits(), "number {at} of {count}");
            }
        }
        let mut all = vec![0.0; 100_000];
        uniform([3, 4], all.len(), 0, &mut all);
        let mean = all.iter().map(|number| f64::from(*number)).sum::<f64>() / all.len() as f64;
        // Of so many numbers the mean deviates by 9e-4.
        assert!((mean - 0.5).abs() < 5e-3, "{mean}");
    }
}
