//! The engines of MLX's that carry collectives.

use std::env;
use std::ffi::OsString;
use std::fmt;

use tacit_bridge::Engine;
use tacit_core::{Error, Result};

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
    /// NVIDIA's NCCL between GPUs, described by `NCCL_HOST_IP`, `NCCL_PORT`, `MLX_WORLD_SIZE` and `MLX_RANK`. It sends no messages
    /// from one rank to another, and each rank should see one GPU alone (`CUDA_VISIBLE_DEVICES`).
    Nccl,
}

impl Backend {
    /// The backend that this process was started for; [`Alone`](Self::Alone) where the environment names none.
    ///
    /// # Errors
    ///
    /// The environment says a part of what an engine needs, as `MLX_RANK` without `MLX_HOSTFILE` does: a process that took
    /// itself for the only one would train alone.
    pub fn from_environment() -> Result<Self> {
        Self::from_variables(|name| env::var_os(name))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let has = |name: &str| variable(name).is_some_and(|value| !value.is_empty());
        if has("OMPI_COMM_WORLD_SIZE") {
            return Ok(Self::Mpi);
        }
        let lacks = |what: &str| {
            Err(Error::Group {
                message: what.to_owned(),
                help: "start all ranks by `tacit launch`, which sets both; to run alone, unset both",
            })
        };
        match (has("MLX_RANK"), has("MLX_HOSTFILE")) {
            (true, _) if has("MLX_IBV_DEVICES") || has("MLX_JACCL_COORDINATOR") => Ok(Self::Jaccl),
            (true, _) if has("NCCL_HOST_IP") => Ok(Self::Nccl),
            (true, true) => Ok(Self::Ring),
            (true, false) => lacks("MLX_RANK is set and MLX_HOSTFILE is not, so this rank does not know the others"),
            (false, true) => lacks("MLX_HOSTFILE is set and MLX_RANK is not, so this process is no rank of the ring"),
            (false, false) => Ok(Self::Alone),
        }
    }

    pub(crate) fn engine(self) -> Option<Engine> {
        match self {
            Self::Alone => None,
            Self::Ring => Some(Engine::Ring),
            Self::Mpi => Some(Engine::Mpi),
            Self::Jaccl => Some(Engine::Jaccl),
            Self::Nccl => Some(Engine::Nccl),
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
            Self::Nccl => "nccl",
        })
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn named(names: &[&str]) -> Result<Backend> {
        Backend::from_variables(|name| names.contains(&name).then(|| "1".into()))
    }

    #[test]
    fn the_environment_names_an_engine_or_none() {
        assert_eq!(named(&[]).expect("alone"), Backend::Alone);
        assert_eq!(named(&["MLX_RANK", "MLX_HOSTFILE"]).expect("both"), Backend::Ring);
        assert_eq!(named(&["MLX_RANK", "MLX_JACCL_COORDINATOR"]).expect("both"), Backend::Jaccl);
        assert_eq!(named(&["MLX_RANK", "MLX_WORLD_SIZE", "NCCL_HOST_IP", "NCCL_PORT"]).expect("all"), Backend::Nccl);
        assert_eq!(named(&["OMPI_COMM_WORLD_SIZE", "MLX_HOSTFILE"]).expect("MPI says it all"), Backend::Mpi);
        assert_eq!(Backend::from_variables(|_| Some(OsString::new())).expect("empty is not set"), Backend::Alone);
    }

    #[test]
    fn half_of_what_the_ring_needs_is_not_taken_for_being_alone() {
        expect![[r#"
            MLX_RANK is set and MLX_HOSTFILE is not, so this rank does not know the others
            help: start all ranks by `tacit launch`, which sets both; to run alone, unset both"#]]
        .assert_eq(&named(&["MLX_RANK"]).expect_err("half").to_string());
        expect![[r#"
            MLX_HOSTFILE is set and MLX_RANK is not, so this process is no rank of the ring
            help: start all ranks by `tacit launch`, which sets both; to run alone, unset both"#]]
        .assert_eq(&named(&["MLX_HOSTFILE"]).expect_err("half").to_string());
    }
}
