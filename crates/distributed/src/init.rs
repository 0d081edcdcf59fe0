//! How a group is joined: the ranks meet, and then MLX's engine begins.

use std::ffi::{OsStr, OsString};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{env, thread};

use mlx_rs::Array;
use tacit_bridge::Op;
use tacit_bridge::process::at_exit;
use tacit_core::{Error, Result};

use crate::backend::Backend;
use crate::guard::Guard;
use crate::members::Members;
use crate::options::GroupOptions;
use crate::sentinel::Sentinel;
use crate::watch::{ANNOUNCEMENT, Limits, Part, Place, RankInfo, Watch, job, ranks_of_ring};
use crate::{agreement, current};

/// How much sooner other ranks are to begin than the last of a ring.
pub(crate) const HEAD_START: Duration = Duration::from_millis(100);

const STARTED: &str = "start all ranks, each with its own number, by `tacit launch`, or by `mpirun` for MPI";

/// The group of a backend that has an engine; none where it has one rank.
pub(crate) fn join(backend: Backend, options: &GroupOptions) -> Result<Option<Members>> {
    let Some(engine) = backend.engine() else { return Ok(None) };
    let limits = Limits::new(options.join, options.silence, options.wait);
    let place = Place::from_environment()?;
    // Where each rank of a ring is.
    let hosts = env::var_os("MLX_HOSTFILE").filter(|_| backend == Backend::Ring);
    let hosts = hosts.map(|file| ranks_of_ring(file.as_ref())).transpose()?;
    let rank_info = rank_info(backend, hosts.as_ref().map(Vec::len), |name| env::var_os(name))?;
    if rank_info.is_some_and(|rank_info| rank_info.size == 1) {
        return Ok(None);
    }
    if !engine.is_available() {
        return Err(Error::Group {
            message: format!("MLX's {backend} engine is not available here"),
            help: "install what it needs, such as Open MPI for `mpi` or an MLX for CUDA for `nccl`, or use the ring",
        });
    }
    let watch = Arc::new(OnceLock::new());
    let early = match (&place, rank_info) {
        (Place::At(place), Some(rank_info)) => Some(Watch::at(place, job(), rank_info, limits)?),
        _ => None,
    };
    let is_early = early.is_some_and(|early| watch.set(early).is_ok());
    // The ring's last rank connects first, and waits for a whole second where rank 0 does not listen yet.
    if is_early && backend == Backend::Ring && rank_info.is_some_and(|rank_info| rank_info.rank + 1 == rank_info.size) {
        thread::sleep(HEAD_START);
    }
    let guard = Guard::new(backend.to_string(), limits, Arc::clone(&watch));
    let sentinel = Sentinel::new(limits, Arc::clone(&watch), None);
    let group = tacit_bridge::Group::join(engine, Box::new(sentinel)).map_err(|error| Error::Group {
        message: format!("the {backend} group cannot be joined: {error}"),
        help: STARTED,
    })?;
    drop(guard);
    let joined = RankInfo { rank: group.rank(), size: group.size() };
    if let Some(rank_info) = rank_info.filter(|rank_info| *rank_info != joined) {
        return Err(Error::Group {
            message: format!(
                "this process was started as rank {} of {}, and is rank {} of {} to the {backend} engine",
                rank_info.rank, rank_info.size, joined.rank, joined.size
            ),
            help: STARTED,
        });
    }
    if joined.size == 1 {
        return Ok(None);
    }
    let late = match place {
        _ if is_early => None,
        Place::Nowhere => None,
        Place::At(place) => Some(Watch::at(&place, job(), joined, limits)?),
        Place::Announced => Some(Watch::announced(|bytes| announce(&group, bytes), joined, limits)?),
    };
    if let Some(late) = late {
        drop(watch.set(late));
    }
    if options.compares_plans {
        agreement::compare_plans();
    }
    current::put(&watch);
    at_exit(say_goodbye);
    let (part, hosts, splits) = (Part::all(joined.size), hosts.unwrap_or_default(), AtomicUsize::new(0));
    Ok(Some(Members { engine: group, part, hosts, limits, watch, splits }))
}

/// A process that ends well leaves the group in order, and any other is lost to it. Who holds the group does not matter.
fn say_goodbye(code: i32) {
    if code != 0 {
        return;
    }
    let watch = current::watch();
    let watch = watch.as_ref().and_then(|watch| watch.get());
    let whole = watch.is_none_or(|watch| watch.check().is_ok());
    if let Some(watch) = watch {
        watch.leave();
    }
    // It would wait for a rank that is lost.
    if whole {
        tacit_bridge::Group::end_mpi();
    }
}

/// Which rank of how many this process was started as, where the environment says it; of a ring its hosts are counted.
fn rank_info(
    backend: Backend,
    hosts: Option<usize>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<RankInfo>> {
    let number = |name: &str| variable(name).map(|text| number(name, &text)).transpose();
    let (rank, size) = match backend {
        Backend::Alone => return Ok(None),
        Backend::Jaccl => ("MLX_RANK", None),
        Backend::Nccl => ("MLX_RANK", number("MLX_WORLD_SIZE")?),
        Backend::Mpi => ("OMPI_COMM_WORLD_RANK", number("OMPI_COMM_WORLD_SIZE")?),
        Backend::Ring => ("MLX_RANK", hosts),
    };
    let (Some(at), Some(size)) = (number(rank)?, size) else { return Ok(None) };
    if at >= size {
        return Err(Error::Group { message: format!("{rank}={at} is not a rank of a group of {size}"), help: STARTED });
    }
    Ok(Some(RankInfo { rank: at, size }))
}

/// The number in a variable. MLX's ring reads any other text as 0.
fn number(name: &str, text: &OsStr) -> Result<usize> {
    let text = text.to_string_lossy();
    text.trim()
        .parse()
        .map_err(|_| Error::Group { message: format!("{name}={text} is not a whole number from 0 on"), help: STARTED })
}

/// What rank 0 gives, on every rank.
fn announce(group: &tacit_bridge::Group, bytes: [u8; ANNOUNCEMENT]) -> Result<[u8; ANNOUNCEMENT]> {
    let announced = group.collective(Op::Max, &Array::from_slice(&bytes, &[ANNOUNCEMENT as i32]))?;
    announced.eval()?;
    announced.try_as_slice::<u8>().ok().and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| Error::Group {
        message: "the engine gives no bytes".to_owned(),
        help: "report this with the output of `tacit doctor`",
    })
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn a_rank_that_is_not_a_number_is_named() {
        let of = |backend, rank: &'static str| {
            let found = rank_info(backend, None, |name| match name {
                "MLX_RANK" | "OMPI_COMM_WORLD_RANK" => Some(rank.into()),
                "MLX_WORLD_SIZE" | "OMPI_COMM_WORLD_SIZE" => Some("2".into()),
                _ => None,
            });
            found.map(|rank_info| rank_info.map(|rank_info| rank_info.rank))
        };
        assert_eq!(of(Backend::Mpi, " 1 ").expect("a number"), Some(1));
        assert_eq!(of(Backend::Nccl, "1").expect("a number"), Some(1));
        for backend in [Backend::Mpi, Backend::Ring, Backend::Jaccl, Backend::Nccl] {
            for rank in ["abc", "", "-1", "1.0"] {
                assert!(of(backend, rank).is_err(), "{backend} {rank}");
            }
        }
        expect![[r#"
            MLX_RANK=abc is not a whole number from 0 on
            help: start all ranks, each with its own number, by `tacit launch`, or by `mpirun` for MPI"#]]
        .assert_eq(&of(Backend::Ring, "abc").expect_err("no number").to_string());
        expect![[r#"
            OMPI_COMM_WORLD_RANK=2 is not a rank of a group of 2
            help: start all ranks, each with its own number, by `tacit launch`, or by `mpirun` for MPI"#]]
        .assert_eq(&of(Backend::Mpi, "2").expect_err("too large").to_string());
    }

    #[test]
    fn an_mlx_without_cuda_joins_no_group_over_nccl() {
        if tacit_bridge::Engine::Nccl.is_available() {
            return;
        }
        let refused = join(Backend::Nccl, &GroupOptions::default()).map(|members| members.is_some());
        expect![[r"
            MLX's nccl engine is not available here
            help: install what it needs, such as Open MPI for `mpi` or an MLX for CUDA for `nccl`, or use the ring"]]
        .assert_eq(&refused.expect_err("is not there").to_string());
    }
}
