//! Processes that compute together.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use mlx_rs::{Array, Dtype, ops};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tacit_bridge::{Aval, Op};
use tacit_core::{Error, Result};

use crate::backend::Backend;
use crate::members::Members;
use crate::named::named;
use crate::options::GroupOptions;
use crate::{agreement, init};

/// Processes that compute together, this one among them: its *rank* is its number, from zero on.
///
/// Every process runs the same program. Its collectives are lazy like any op: what a rank evaluates, every rank must
/// evaluate. Those of one graph run in the order in which they were made, however it is evaluated, and each call of a compiled
/// function makes its own; make graphs and evaluate them in the same order on all ranks. Collectives run on streams of the group's
/// own, so that what does not depend on them is computed meanwhile. An array that is the same on every rank is *replicated*; gradients
/// are those of a replicated loss.
///
/// Clones are the same group, and so are two groups of one backend: MLX keeps one for the life of the process. A group of
/// one rank, which needs no engine, does nothing: each collective is its operand. Some of the ranks make a group of their own by
/// [`split`](Self::split), so that ranks share a batch in one group and a layer in another.
///
/// Clones may go to other threads. Collectives that threads evaluate at the same time run one after the other, and the order has to
/// be the same on every rank. A thread that uses a group has a stream of MLX's for it, and MLX a thread for that for good.
///
/// # Ranks that are lost
///
/// An engine notices late or never that a rank is gone, so ranks watch each other beside it, over connections to rank 0. A rank
/// whose process ends with another code than 0 is lost to all others within a moment; one that is stopped, or whose machine is
/// gone, after [`GroupOptions::silence`]. Ranks that evaluate different collectives of a group, or in another order, or on other
/// shapes, learn it within a second, and so they do where the eval of one rank alone failed before its collective began and that rank
/// goes on with other arrays. A rank in whose collective no other takes part learns it after [`GroupOptions::wait`]. The eval that
/// waits then fails with [`Error::PeerLost`] or [`Error::Group`], which name the rank, its address and the collective, and so does
/// every later collective; what needs no other rank is computed and saved as before. A rank that does not come is named after
/// [`GroupOptions::join`]; where the engine waits for it in a way that nothing interrupts, the process says so and ends with the code
/// [`NOT_JOINED`](crate::NOT_JOINED).
///
/// # Which engine
///
/// The ring needs nothing but TCP and starts at once, which is right for a few ranks on a machine or two. For many ranks take MPI
/// (`tacit launch --backend mpi`, or `mpirun` on several machines): a sum over n ranks passes 2(n - 1) times from neighbor to neighbor
/// around a ring, each time as late as the slowest, where Open MPI chooses by size among ways of about log n steps; a ring sends only
/// to neighbors, MPI to any rank; each rank of a ring has one connection a side, and a rank that cannot be reached by its two
/// neighbors ends the group, where MPI connects ranks by whatever both have; and `mpirun` starts and ends the ranks of all machines.
///
/// ```
/// use mlx_rs::Array;
/// use tacit_distributed::Group;
///
/// # fn main() -> tacit_core::Result<()> {
/// let group = Group::init()?;
/// let x = Array::from_f32(group.rank() as f32 + 1.0);
/// let sum = group.all_sum(&x)?;
/// assert_eq!(sum.item_cast::<f32>(), (1..=group.size()).sum::<usize>() as f32);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Group {
    /// None of one rank.
    members: Option<Arc<Members>>,
    backend: Backend,
}

/// What a rank has sent so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// The collectives that it has begun.
    pub collectives: u64,
    /// The bytes that went into them.
    pub bytes: u64,
}

impl Group {
    /// Joins the group that this process was started for; a group of one rank where it was started alone.
    ///
    /// The environment says which: that of Open MPI's `mpirun`; `MLX_RANK` and `MLX_HOSTFILE` for the ring, as `tacit launch` and
    /// MLX's own launcher set them; or MLX's variables for JACCL or NCCL.
    ///
    /// # Errors
    ///
    /// The environment says only a part of what an engine needs, the engine is not there, or the group cannot be joined.
    pub fn init() -> Result<Self> {
        Self::with(&GroupOptions::from_environment()?)
    }

    /// Joins as [`init`](Self::init) does, with options.
    ///
    /// A process joins a backend once: later calls give the same group, and of their options only
    /// [`compares_plans`](GroupOptions::compares_plans) has an effect.
    ///
    /// # Errors
    ///
    /// As for [`init`](Self::init).
    pub fn with(options: &GroupOptions) -> Result<Self> {
        let backend = options.backend.map_or_else(Backend::from_environment, Ok)?;
        let mut joined = joined();
        if let Some(group) = joined.iter().find(|group| group.backend == backend) {
            if options.compares_plans {
                agreement::compare_plans();
            }
            return Ok(group.clone());
        }
        let group = Self { members: init::join(backend, options)?.map(Arc::new), backend };
        if group.members.is_some() {
            joined.push(group.clone());
        }
        Ok(group)
    }

    /// The group of this process alone.
    #[must_use]
    pub fn alone() -> Self {
        Self::new(Backend::Alone, None)
    }

    /// A part of a group, of which there are no members where it has one rank.
    pub(crate) fn new(backend: Backend, members: Option<Members>) -> Self {
        let members = members.map(Arc::new);
        if let Some(members) = &members {
            let mut parts = parts();
            parts.retain(|(_, part)| part.strong_count() > 0);
            parts.push((backend, Arc::downgrade(members)));
        }
        Self { members, backend }
    }

    /// The number of this process, from zero on.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.many().map_or(0, tacit_bridge::Group::rank)
    }

    /// The number of processes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.many().map_or(1, tacit_bridge::Group::size)
    }

    /// What carries the collectives.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// What this rank has sent so far, by collectives that were evaluated.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        let (collectives, bytes) = self.many().map_or((0, 0), tacit_bridge::Group::traffic);
        Traffic { collectives, bytes }
    }

    /// The sum of `x` over all ranks, replicated, in the dtype of `x` and in the order of the engine.
    ///
    /// Its gradient is the cotangent as it is, which is the same on every rank.
    ///
    /// # Errors
    ///
    /// MLX has no memory left, or MPI carries it and `x` has more than 2147483647 elements.
    pub fn all_sum(&self, x: &Array) -> Result<Array> {
        self.collective(Op::Sum, x)
    }

    /// The maximum of `x` over all ranks, element by element, replicated: NaN where any rank has NaN.
    ///
    /// The ranks that have the maximum share its gradient.
    ///
    /// # Errors
    ///
    /// MLX has no memory left.
    pub fn all_max(&self, x: &Array) -> Result<Array> {
        self.extreme(Op::Max, x)
    }

    /// As [`all_max`](Self::all_max) where it does not matter what becomes of NaN: engines keep it or lose it by where it is.
    pub(crate) fn all_max_of_numbers(&self, x: &Array) -> Result<Array> {
        self.collective(Op::Max, x)
    }

    /// The minimum of `x` over all ranks, as [`all_max`](Self::all_max).
    ///
    /// # Errors
    ///
    /// MLX has no memory left.
    pub fn all_min(&self, x: &Array) -> Result<Array> {
        self.extreme(Op::Min, x)
    }

    /// The `x` of all ranks, joined along `axis` in the order of the ranks, replicated.
    ///
    /// Its gradient is the own part of the cotangent.
    ///
    /// # Errors
    ///
    /// `x` has no such axis, or the parts are too long for one.
    pub fn all_gather(&self, x: &Array, axis: i32) -> Result<Array> {
        let front = to_front(x, axis)?;
        self.check_joined(x, front.dim(0))?;
        let joined = self.collective(Op::Gather, &front)?;
        Ok(if axis == 0 { joined } else { joined.move_axis(0, axis)? })
    }

    /// The `x` of all ranks, joined along the first axis, for ranks that each use it for something else, such as a batch of
    /// their own.
    ///
    /// Its gradient is the own part of the sum of the ranks' cotangents.
    ///
    /// # Errors
    ///
    /// `x` is a scalar, or the parts are too long for an axis.
    pub fn gather_parts(&self, x: &Array) -> Result<Array> {
        self.check_joined(x, to_front(x, 0)?.dim(0))?;
        self.collective(Op::GatherParts, x)
    }

    /// The own part, along the first axis, of the sum of `x` over all ranks.
    ///
    /// The ring has no such collective: there it is a sum of which a part is kept.
    ///
    /// # Errors
    ///
    /// The first axis has no equal part for each rank.
    pub fn sum_scatter(&self, x: &Array) -> Result<Array> {
        to_front(x, 0)?;
        self.collective(Op::Scatter, x)
    }

    /// A replicated `x` as it goes into what each rank computes a part of: `x` itself, whose gradient is the sum of the
    /// cotangents of all ranks.
    ///
    /// # Errors
    ///
    /// MLX has no memory left.
    pub fn enter(&self, x: &Array) -> Result<Array> {
        if x.dtype().is_inexact() { self.collective(Op::Enter, x) } else { Ok(x.clone()) }
    }

    /// `x`, sent to the rank `to` when the result is evaluated.
    ///
    /// The ring sends to neighbors only.
    ///
    /// # Errors
    ///
    /// There is no such other rank.
    pub fn send(&self, x: &Array, to: usize) -> Result<Array> {
        Ok(self.other(to)?.send(x, to)?)
    }

    /// What the rank `from` sends, of this shape and dtype.
    ///
    /// The ring receives from neighbors only.
    ///
    /// # Errors
    ///
    /// There is no such other rank, or an extent is negative.
    pub fn recv(&self, shape: &[i32], dtype: Dtype, from: usize) -> Result<Array> {
        Ok(self.other(from)?.recv(&Aval::new(shape, dtype), from)?)
    }

    /// Waits until every rank has come here.
    ///
    /// # Errors
    ///
    /// A rank does not come.
    pub fn barrier(&self) -> Result<()> {
        Ok(self.all_sum(&Array::from_int(1))?.eval()?)
    }

    /// What the group is, where it has several ranks.
    pub(crate) fn members(&self) -> Option<&Members> {
        self.members.as_deref()
    }

    /// How many ranks are in both groups, of which this one is.
    pub(crate) fn in_common(&self, other: &Self) -> usize {
        let (Some(own), Some(other)) = (self.members(), other.members()) else { return 1 };
        own.part.ranks.iter().filter(|rank| other.part.ranks.contains(rank)).count()
    }

    /// Its ranks, as messages have them.
    pub(crate) fn named(&self) -> String {
        self.members().map_or_else(|| "one rank".to_owned(), |members| named(&members.part.ranks))
    }

    fn many(&self) -> Option<&tacit_bridge::Group> {
        self.members().map(|members| &members.engine)
    }

    /// The extreme of all ranks. Engines compare, and what they make of NaN depends on the rank and the place that it is at.
    fn extreme(&self, op: Op, x: &Array) -> Result<Array> {
        let extreme = self.collective(op, x)?;
        if self.size() == 1 || !x.dtype().is_float() {
            return Ok(extreme);
        }
        let lost = self.collective(Op::Max, &mlx_rs::stop_gradient(x)?.is_nan()?)?;
        Ok(ops::select(lost, Array::from_f32(f32::NAN).as_dtype(x.dtype())?, extreme)?)
    }

    fn collective(&self, op: Op, x: &Array) -> Result<Array> {
        let Some(group) = self.many() else { return Ok(x.clone()) };
        if x.dtype() == Dtype::Bool && matches!(op, Op::Sum | Op::Max | Op::Min) {
            // MPI orders no truth values.
            let extreme = group.collective(if op == Op::Sum { Op::Max } else { op }, &x.as_dtype(Dtype::Uint8)?)?;
            return Ok(extreme.as_dtype(Dtype::Bool)?);
        }
        if x.dtype() == Dtype::Bool && op == Op::Scatter {
            // MPI sums no truth values either, and a byte does not count as many ranks as there may be.
            let counts = group.collective(op, &x.as_dtype(Dtype::Int32)?)?;
            return Ok(counts.ne(Array::from_int(0))?);
        }
        Ok(group.collective(op, x)?)
    }

    fn other(&self, rank: usize) -> Result<&tacit_bridge::Group> {
        self.many().filter(|_| rank < self.size() && rank != self.rank()).ok_or_else(|| Error::Group {
            message: format!("rank {rank} is no other rank of a group of {}", self.size()),
            help: "send to and receive from the ranks below `Group::size`, but this one",
        })
    }

    /// Whether an axis of MLX is long enough for `extent` of every rank.
    fn check_joined(&self, x: &Array, extent: i32) -> Result<()> {
        if i32::try_from(extent as usize * self.size()).is_ok() {
            return Ok(());
        }
        let message =
            format!("the parts of {} ranks, each {}, are longer than an axis of MLX", self.size(), Aval::from(x));
        Err(Error::invalid(message, format!("give parts that have at most {} elements along it together", i32::MAX)))
    }
}

fn to_front(x: &Array, axis: i32) -> Result<Array> {
    let rank = x.ndim() as i32;
    if !(-rank..rank).contains(&axis) {
        return Err(Error::invalid(
            format!("{} has no axis {axis} along which parts are joined", Aval::from(x)),
            "give an axis of the array; a scalar has none",
        ));
    }
    Ok(if axis == 0 { x.clone() } else { x.move_axis(axis, 0)? })
}

/// The groups of this process, each for its life. Two over one engine would get in each other's way.
fn joined() -> MutexGuard<'static, Vec<Group>> {
    static JOINED: Mutex<Vec<Group>> = Mutex::new(Vec::new());
    JOINED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The groups that were split off others, while anybody has them.
fn parts() -> MutexGuard<'static, Vec<(Backend, Weak<Members>)>> {
    static PARTS: Mutex<Vec<(Backend, Weak<Members>)>> = Mutex::new(Vec::new());
    PARTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a file keeps of a group.
#[derive(Serialize, Deserialize)]
struct Kept {
    rank: usize,
    size: usize,
    /// The ranks of one that was split off another, by their numbers in the group that was joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ranks: Option<Vec<usize>>,
}

impl Serialize for Group {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let part = self.members().map(|members| &members.part).filter(|part| !part.is_all());
        let ranks = part.map(|part| part.ranks.clone());
        Kept { rank: self.rank(), size: self.size(), ranks }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Group {
    /// The group of this process that the rank and the size belong to, or the last that was split off with these ranks.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Kept { rank, size, ranks } = Kept::deserialize(deserializer)?;
        if size == 1 {
            return Ok(Self::alone());
        }
        if let Some(ranks) = ranks {
            let of_place =
                |part: &(Backend, Weak<Members>)| Some(Self { members: Some(part.1.upgrade()?), backend: part.0 });
            let parts: Vec<Self> = parts().iter().rev().filter_map(of_place).collect();
            let is =
                |part: &Self| part.rank() == rank && part.members().is_some_and(|members| members.part.ranks == ranks);
            return parts.into_iter().find(is).ok_or_else(|| {
                let ranks = named(&ranks);
                D::Error::custom(format!("this process is not rank {rank} of a group of {ranks}: split that off first"))
            });
        }
        let group = joined().iter().find(|group| (group.rank(), group.size()) == (rank, size)).cloned();
        group.ok_or_else(|| {
            D::Error::custom(format!("this process is not rank {rank} of a group of {size}: join that group first"))
        })
    }
}

impl Hash for Group {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Groups of one rank are equal, whatever they were asked for.
        self.many().map(|group| (self.backend, group.rank(), group.size())).hash(state);
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({}, rank {} of {}", self.backend, self.rank(), self.size())?;
        match self.members().filter(|members| !members.part.is_all()) {
            Some(_) => write!(f, ": {})", self.named()),
            None => f.write_str(")"),
        }
    }
}

impl PartialEq for Group {
    fn eq(&self, other: &Self) -> bool {
        self.members.as_ref().map(Arc::as_ptr) == other.members.as_ref().map(Arc::as_ptr)
    }
}

impl Eq for Group {}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, RandomState};

    use super::*;

    #[test]
    fn groups_of_one_rank_are_equal_and_hash_equal() {
        let hasher = RandomState::new();
        let hash = |group: &Group| hasher.hash_one(group);
        let asked = Group::new(Backend::Ring, None);
        assert_eq!(asked, Group::alone());
        assert_eq!(hash(&asked), hash(&Group::alone()));
    }
}
