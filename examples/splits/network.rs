//! One collective on a network.

/// What an engine does with an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collective {
    /// Every rank has an array, and gets the sum of all.
    AllSum,
    /// Every rank has a part of an array, and gets the whole.
    AllGather,
    /// Every rank has an array, and gets its part of the sum.
    SumScatter,
}

/// Whose algorithms carry a collective out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// MLX's ring over TCP: everything goes round, a part of an `n`-th at a time. It has no [`Collective::SumScatter`], in
    /// whose place it sums.
    Ring,
    /// Open MPI: what doubles the distance from step to step, and the ring where that is quicker. MLX takes no
    /// [`Collective::SumScatter`] from it either.
    Mpi,
    /// NCCL: trees, and the ring where that is quicker. MLX has it for CUDA.
    Nccl,
    /// MLX's engine over Thunderbolt, where each rank is connected to each: one message to all, and the ring where that is
    /// quicker.
    Jaccl,
}

/// An engine between ranks, each of which can send to one and receive from another at the same time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Network {
    /// Whose algorithms.
    pub(crate) engine: Engine,
    /// Seconds from the call on one rank until an empty message has come to the next.
    pub(crate) latency: f64,
    /// Bytes that a rank sends in a second.
    pub(crate) bandwidth: f64,
}

/// What a collective costs each rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cost {
    /// Messages that have to wait for each other.
    pub(crate) messages: f64,
    /// Bytes that a rank sends.
    pub(crate) bytes: f64,
    /// Seconds from the first message to the last.
    pub(crate) seconds: f64,
}

impl Network {
    /// The cost of a collective, where `bytes` are those of the whole array.
    ///
    /// Of `n` ranks, with latency `a` and bandwidth `b`: a ring takes `2 (n - 1)` messages of an `n`-th for a sum, which is
    /// `2 (n - 1) / n` of the array, and half of both for a gather. Doubling takes `log2 n` messages, of the whole array for a
    /// sum (Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations in MPICH").
    pub(crate) fn cost(&self, collective: Collective, bytes: f64, ranks: usize) -> Cost {
        if ranks <= 1 {
            return Cost::default();
        }
        let n = ranks as f64;
        let round = n - 1.0;
        let doublings = n.log2().ceil();
        let share = bytes * round / n;
        let ring = (2.0 * round, 2.0 * share);
        let options: &[(f64, f64)] = match (collective, self.engine) {
            (Collective::AllGather, Engine::Mpi) => &[(doublings, share)],
            (Collective::AllGather, Engine::Jaccl) => &[(1.0, share)],
            (Collective::AllGather, _) | (Collective::SumScatter, Engine::Nccl) => &[(round, share)],
            (_, Engine::Ring) => &[ring],
            (_, Engine::Mpi) => &[(doublings, doublings * bytes), ring],
            (_, Engine::Nccl) => &[(2.0 * doublings, 2.0 * bytes), ring],
            (_, Engine::Jaccl) => &[(1.0, round * bytes), ring],
        };
        let cost = |&(messages, bytes): &(f64, f64)| Cost {
            messages,
            bytes,
            seconds: messages * self.latency + bytes / self.bandwidth,
        };
        let quicker = |one: Cost, other: Cost| if other.seconds < one.seconds { other } else { one };
        options.iter().map(cost).reduce(quicker).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_sends_little_and_often() {
        let network = Network { engine: Engine::Ring, latency: 1e-4, bandwidth: 1e9 };
        let sum = network.cost(Collective::AllSum, 4e6, 4);
        assert_eq!((sum.messages, sum.bytes), (6.0, 6e6));
        assert!((sum.seconds - 6.6e-3).abs() < 1e-12, "{sum:?}");
        let gather = network.cost(Collective::AllGather, 4e6, 4);
        assert_eq!((gather.messages, gather.bytes), (3.0, 3e6));
        assert_eq!(network.cost(Collective::SumScatter, 4e6, 4), sum);
        assert_eq!(network.cost(Collective::AllSum, 4e6, 1), Cost::default());
    }

    #[test]
    fn what_doubles_is_better_where_messages_are_small_and_ranks_many() {
        let of = |engine| Network { engine, latency: 1e-5, bandwidth: 1e9 };
        for ranks in [2, 3, 8, 1000] {
            for bytes in [4.0, 1e3, 1e6, 1e9] {
                let [ring, mpi, nccl] = [Engine::Ring, Engine::Mpi, Engine::Nccl]
                    .map(|engine| of(engine).cost(Collective::AllSum, bytes, ranks));
                assert!(mpi.seconds <= ring.seconds && nccl.seconds <= ring.seconds, "{ranks} {bytes}");
            }
        }
        let small = of(Engine::Mpi).cost(Collective::AllSum, 4.0, 1000);
        let large = of(Engine::Mpi).cost(Collective::AllSum, 1e9, 1000);
        assert_eq!((small.messages, large.messages), (10.0, 1998.0));
    }
}
