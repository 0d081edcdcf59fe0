//! Random numbers on ranks: different ones where each rank has a batch of its own, the same ones where all compute one.

use mlx_rs::random::{self, RandomState};
use tacit_core::Result;

use crate::Group;

impl Group {
    /// A random state of this rank's own, by which each rank draws other numbers: dropout needs that where each rank has a batch of
    /// its own.
    ///
    /// The first rank has `RandomState::with_seed(seed)`.
    ///
    /// Ranks that compute one batch together, with weights that are [`Sharded`](crate::Sharded), must drop the same elements:
    /// give all of them `RandomState::with_seed(seed)`.
    ///
    /// # Errors
    ///
    /// MLX has no memory left.
    pub fn random(&self, seed: u64) -> Result<RandomState> {
        Ok(RandomState::with_seed(of_rank(seed, self.rank()))?)
    }

    /// Gives the random state of this thread, from which mlx-rs draws where no key is given, as `nn::Dropout` does, a seed that differs
    /// from rank to rank: see [`random`](Self::random).
    ///
    /// [`shard`](crate::Shard::shard) makes this state that of the first rank on all ranks again.
    ///
    /// # Errors
    ///
    /// MLX has no memory left.
    pub fn seed(&self, seed: u64) -> Result<()> {
        Ok(random::seed(of_rank(seed, self.rank()))?)
    }

    /// Makes what mlx-rs draws from on this thread, where no key is given, the same on all ranks: it stays as it is where it is
    /// that already, but for two numbers that are drawn to find out.
    pub(crate) fn draw_alike(&self) -> Result<()> {
        if self.size() == 1 {
            return Ok(());
        }
        // mlx-rs does not show its own state, but what is drawn from it.
        let drawn = random::randint::<i32, i32>(0, i32::MAX, &[2], None)?;
        let seeds = self.all_gather(&drawn, 0)?;
        seeds.eval()?;
        let seeds: Vec<[i32; 2]> = seeds.as_slice::<i32>().chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect();
        if seeds.iter().any(|other| *other != seeds[0]) {
            random::seed((seeds[0][0] as u64) << 31 | seeds[0][1] as u64)?;
        }
        Ok(())
    }
}

/// The seed of a rank where all of them are given one; that of the first rank is the one that was given.
pub(crate) const fn of_rank(seed: u64, rank: usize) -> u64 {
    // The numbers that splitmix64 makes of neighbors have nothing to do with each other.
    let mut mixed = seed.wrapping_add((rank as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    if rank == 0 {
        return mixed;
    }
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_rank_has_a_seed_of_its_own() {
        for seed in [0, 1, 2, u64::MAX] {
            let seeds: BTreeSet<u64> = (0..1024).map(|rank| of_rank(seed, rank)).collect();
            assert_eq!((seeds.len(), of_rank(seed, 0)), (1024, seed));
        }
        // Nor does one rank's seed become another's of the next run.
        assert_ne!(of_rank(1, 1), of_rank(2, 0));
        assert_ne!(of_rank(1, 2), of_rank(2, 1));
    }

    #[test]
    fn one_rank_draws_as_without_a_group() {
        let key = |state: RandomState| state.as_array().as_slice::<u32>().to_vec();
        let alone = key(Group::alone().random(7).expect("seeds"));
        assert_eq!(alone, key(RandomState::with_seed(7).expect("seeds")));
    }
}
