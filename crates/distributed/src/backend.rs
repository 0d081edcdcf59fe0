//! The engines of MLX's that carry collectives.

use std::env;
use std::fmt;

use tacit_bridge::Engine;

/// What carries the collectives of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Backend {
    /// Nothing: the group has one rank.
    Alone,
    /// TCP connections between neighbors, described by `MLX_HOSTFILE` and `MLX_RANK`.
    Ring,
    /// Open MPI, as `mpirun` starts it.
    Mpi,
    /// RDMA over Thunderbolt, on a Mac.
    Jaccl,
}

impl Backend {
    /// The backend that this process was started for; [`Alone`](Self::Alone) where the environment names none.
    #[must_use]
    pub fn of_environment() -> Self {
        let has = |name: &str| env::var_os(name).is_some();
        if has("OMPI_COMM_WORLD_SIZE") {
            return Self::Mpi;
        }
        match has("MLX_RANK") {
            true if has("MLX_IBV_DEVICES") || has("MLX_JACCL_COORDINATOR") => Self::Jaccl,
            true if has("MLX_HOSTFILE") => Self::Ring,
            _ => Self::Alone,
        }
    }

    pub(crate) fn engine(self) -> Option<Engine> {
        match self {
            Self::Alone => None,
            Self::Ring => Some(Engine::Ring),
            Self::Mpi => Some(Engine::Mpi),
            Self::Jaccl => Some(Engine::Jaccl),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alone => "alone",
            Self::Ring => "ring",
            Self::Mpi => "mpi",
            Self::Jaccl => "jaccl",
        })
    }
}
