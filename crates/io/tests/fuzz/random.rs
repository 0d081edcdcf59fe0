//! The numbers that mutations are drawn from: the same on every machine.

/// `SplitMix64` (<https://prng.di.unimi.it/splitmix64.c>).
pub(crate) struct Random(u64);

impl Random {
    /// The numbers of one case of a reader.
    pub(crate) fn of(reader: &str, case: u64) -> Self {
        let name = reader
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Self(name ^ case.wrapping_mul(0xd1b5_4a32_d192_ed03))
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, or 0 where there is none.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.bits() % end.max(1) as u64) as usize
    }

    /// One of `all`, which are not none.
    pub(crate) fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// True once in `n` times.
    pub(crate) fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// A number at which lengths, extents and offsets go wrong.
    pub(crate) fn odd_number(&mut self) -> u64 {
        let edge: u64 = *self.one_of(&[0, 1 << 7, 1 << 8, 1 << 15, 1 << 16, 1 << 31, 1 << 32, 1 << 40, 1 << 63]);
        let near = self.below(5) as u64;
        if self.once_in(2) { near } else { edge.wrapping_add(near).wrapping_sub(2) }
    }
}
