//! Several processes that compute together, over MLX's own distributed engine.
//!
//! MLX waits for ever in a collective that another rank never enters. Here a collective is a primitive of ours around
//! the engine: it runs on a thread that can stop waiting, and asks a [`Watcher`] whether to.

use std::ffi::{CString, OsStr, c_char, c_int, c_void};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mlx_rs::Array;

use crate::Aval;
use crate::arrays;
use crate::callback::{guarded, release};
use crate::environment::{Lent, settled};
use crate::error::{BoxError, BridgeError};
use crate::ffi::{self, WatcherTable};

/// An engine of MLX's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Engine {
    /// TCP connections between neighbors.
    Ring,
    /// Open MPI.
    Mpi,
    /// RDMA over Thunderbolt, on a Mac.
    Jaccl,
    /// NVIDIA's, between the GPUs of an MLX for CUDA.
    Nccl,
}

impl Engine {
    /// MLX's name of it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Mpi => "mpi",
            Self::Jaccl => "jaccl",
            Self::Nccl => "nccl",
        }
    }

    /// Whether the loaded MLX has it, and what it needs is installed.
    #[must_use]
    pub fn is_available(self) -> bool {
        let Ok(name) = CString::new(self.name()) else { return false };
        // SAFETY: the name is live for the call.
        unsafe { mlx_sys::mlx_distributed_is_available(name.as_ptr()) }
    }
}

/// What ranks do together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Op {
    /// The sum over all ranks; the cotangent passes as it is.
    Sum,
    /// The maximum over all ranks.
    Max,
    /// The minimum over all ranks.
    Min,
    /// The parts of all ranks, joined along the first axis; the own part of the cotangent goes back.
    Gather,
    /// As [`Gather`](Self::Gather), of parts that each rank uses for something else: the own part of the cotangents' sum
    /// goes back.
    GatherParts,
    /// The own part, along the first axis, of the sum over all ranks.
    Scatter,
    /// The array itself; the sum of the cotangents of all ranks goes back.
    Enter,
    /// The array itself, sent to a rank.
    Send,
    /// What a rank sent.
    Recv,
    /// The split of a group, which is no node of a graph.
    Split,
}

impl Op {
    const ALL: [Self; 10] = [
        Self::Sum,
        Self::Max,
        Self::Min,
        Self::Gather,
        Self::GatherParts,
        Self::Scatter,
        Self::Enter,
        Self::Send,
        Self::Recv,
        Self::Split,
    ];
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sum => "all_sum",
            Self::Max => "all_max",
            Self::Min => "all_min",
            Self::Gather | Self::GatherParts => "all_gather",
            Self::Scatter => "sum_scatter",
            Self::Enter => "enter",
            Self::Send => "send",
            Self::Recv => "recv",
            Self::Split => "split",
        })
    }
}

/// A collective under way, or one that failed.
#[derive(Debug, Clone, PartialEq)]
pub struct InFlight {
    /// What it does.
    pub op: Op,
    /// The rank at the other end of a message.
    pub peer: Option<usize>,
    /// Its place among the collectives that this rank has begun, from 1 on.
    pub number: u64,
    /// How many that were made after it ran before it. Ranks on which it is the same for every collective have run the same
    /// ones in the same order.
    pub overtaken: u64,
    /// How many that were made before it, and after the one before, are left out here since their eval failed. A rank on which
    /// there are more than on the others runs it where these run another one.
    pub missed: u64,
    /// What goes in, or for a message what comes out.
    pub aval: Aval,
    /// How long it has been under way, without pauses in which this process did not run.
    pub waited: Duration,
}

impl InFlight {
    /// # Safety
    ///
    /// The shape must be live.
    unsafe fn from_raw(raw: &ffi::InFlight) -> Result<Self, BoxError> {
        let op = usize::try_from(raw.op).ok().and_then(|op| Op::ALL.get(op)).ok_or("an unknown collective")?;
        // SAFETY: as the caller promises.
        let aval = unsafe { arrays::aval_of(raw.aval)? };
        let peer = matches!(op, Op::Send | Op::Recv).then_some(raw.peer as usize);
        let waited = Duration::try_from_secs_f64(raw.seconds.max(0.0)).unwrap_or_default();
        let (number, overtaken, missed) = (raw.number, raw.overtaken, raw.missed);
        Ok(Self { op: *op, peer, number, overtaken, missed, aval, waited })
    }
}

impl fmt::Display for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.op == Op::Split {
            return write!(f, "{}", self.op);
        }
        write!(f, "{} {}", self.op, self.aval)?;
        match (self.op, self.peer) {
            (Op::Send, Some(peer)) => write!(f, " to rank {peer}"),
            (Op::Recv, Some(peer)) => write!(f, " from rank {peer}"),
            _ => {
                if self.missed > 0 {
                    write!(f, " after {} whose eval failed", self.missed)?;
                }
                if self.overtaken > 0 {
                    write!(f, " behind {} made after it", self.overtaken)?;
                }
                Ok(())
            }
        }
    }
}

/// Decides whether a rank goes on waiting for the others.
pub trait Watcher: Send + Sync + 'static {
    /// Asked before a collective begins and about fifty times a second while it waits, on a thread of MLX's.
    ///
    /// # Errors
    ///
    /// Why it is given up; the eval fails with it, and the group is of no more use.
    fn poll(&self, waiting: &InFlight) -> Result<(), BoxError>;

    /// The error of a collective that failed with this text: what [`poll`](Self::poll) returned, or the engine's words.
    /// `later` says that an array is read that came of it.
    fn failed(&self, of: &InFlight, text: &str, later: bool) -> BoxError;
}

/// The processes that an engine has brought together, this one among them.
///
/// Clones are the same group. Collectives are lazy, stand on a stream of the group's own in each thread, and those of one eval run
/// in the order in which they were made: every rank must make the same ones in the same order. One that a compiled function has
/// is made at each call. A group that was split off another has its streams, so that this holds for those of both together.
///
/// Threads may evaluate collectives of it at the same time. They run one after the other, in an order of which the threads have
/// to take care that it is the same on every rank.
#[derive(Clone)]
pub struct Group {
    shared: Arc<Owned>,
}

#[derive(Debug)]
struct Owned(*mut c_void);

// SAFETY: the C++ side is a shared pointer whose calls may come from any thread.
unsafe impl Send for Owned {}
// SAFETY: as above; what changes behind it is atomic or under a lock.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: this is the pointer that `tacit_group_new` gave away, and it is freed once.
        unsafe { ffi::tacit_group_free(self.0) };
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group(rank {} of {})", self.rank(), self.size())
    }
}

impl PartialEq for Group {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Eq for Group {}

impl Group {
    /// Joins the group that the environment describes for `engine`, and waits for the other ranks.
    ///
    /// MLX keeps one group an engine for the life of the process.
    ///
    /// # Errors
    ///
    /// The environment describes none, or it cannot be joined.
    pub fn join(engine: Engine, watcher: Box<dyn Watcher>) -> Result<Self, BridgeError> {
        let name = CString::new(engine.name()).map_err(|_| BridgeError::Nul(engine.name().to_owned()))?;
        let _settled = settled();
        // SAFETY: the callee takes the box over and frees it by `release`; everything else is live for the call.
        let raw = arrays::pointer(|raw| unsafe {
            ffi::tacit_group_new(name.as_ptr(), WATCHER, Box::into_raw(Box::new(watcher)).cast(), raw)
        })?;
        Ok(Self { shared: Arc::new(Owned(raw)) })
    }

    /// Splits the group as its engine does, and gives the part that this process is in: the ranks that give the same `color`,
    /// in the order of their keys. Every rank calls it.
    ///
    /// # Errors
    ///
    /// The engine splits no groups, which is true of the ring, or a rank is lost.
    pub fn split(&self, color: i32, key: i32, watcher: Box<dyn Watcher>) -> Result<Self, BridgeError> {
        self.part(false, color, key, watcher)
    }

    /// A ring of some ranks of this one, which call it together: `rank` is the number of this process there, and `hosts` a file
    /// with their addresses, as MLX's ring reads it.
    ///
    /// # Errors
    ///
    /// This process was not started as a rank of a ring, or a rank of the new one cannot be reached, or is lost.
    pub fn split_ring(&self, rank: usize, hosts: &Path, watcher: Box<dyn Watcher>) -> Result<Self, BridgeError> {
        let rank = rank.to_string();
        let _lent = Lent::new(&[("MLX_RANK", OsStr::new(&rank)), ("MLX_HOSTFILE", hosts.as_os_str())])?;
        self.part(true, 0, 0, watcher)
    }

    fn part(&self, ring: bool, color: i32, key: i32, watcher: Box<dyn Watcher>) -> Result<Self, BridgeError> {
        let watcher = Box::into_raw(Box::new(watcher)).cast();
        let group = self.shared.0;
        // SAFETY: the group is live for the call, and the callee takes the box over and frees it by `release`.
        arrays::pointer(|raw| unsafe { ffi::tacit_group_split(group, ring, color, key, WATCHER, watcher, raw) })
            .map(|raw| Self { shared: Arc::new(Owned(raw)) })
    }

    /// Ends MPI, if a group is over it, at an orderly end of the process; it waits for the other ranks.
    ///
    /// MLX would do so when nobody holds the group any more, and it is held for the life of the process.
    pub fn end_mpi() {
        // SAFETY: the call has no operands; it touches MPI only where a group has begun it.
        unsafe { ffi::tacit_end_mpi() };
    }

    /// For tests on several ranks: evals of this process begin from now on where chance says, and some of them come late. Zero
    /// ends that.
    ///
    /// What a program computes on its ranks must not depend on either.
    #[doc(hidden)]
    pub fn disturb(seed: u64) {
        // SAFETY: the call has no operands but a number.
        unsafe { ffi::tacit_disturb(seed) };
    }

    /// The number of this process in the group.
    #[must_use]
    pub fn rank(&self) -> usize {
        // SAFETY: the group is live.
        unsafe { ffi::tacit_group_rank(self.shared.0) as usize }
    }

    /// The number of processes.
    #[must_use]
    pub fn size(&self) -> usize {
        // SAFETY: the group is live.
        unsafe { ffi::tacit_group_size(self.shared.0) as usize }
    }

    /// How many collectives this rank has begun, and the bytes that went into them.
    #[must_use]
    pub fn traffic(&self) -> (u64, u64) {
        // SAFETY: the group is live.
        unsafe { (ffi::tacit_group_collectives(self.shared.0), ffi::tacit_group_bytes(self.shared.0)) }
    }

    /// Puts a collective on `x` into the graph.
    ///
    /// # Errors
    ///
    /// The shape does not allow it.
    pub fn collective(&self, op: Op, x: &Array) -> Result<Array, BridgeError> {
        self.emit(op, 0, x)
    }

    /// Puts a message to the rank `to` into the graph; the result is `x`, and whoever evaluates it sends.
    pub fn send(&self, x: &Array, to: usize) -> Result<Array, BridgeError> {
        self.emit(Op::Send, to, x)
    }

    /// Puts a message from the rank `from` into the graph.
    ///
    /// # Errors
    ///
    /// An extent is negative.
    pub fn recv(&self, aval: &Aval, from: usize) -> Result<Array, BridgeError> {
        let aval = arrays::viewed(aval)?;
        // SAFETY: the group and the shape are live for the call, which stores a new array.
        arrays::filled(|out| unsafe { ffi::tacit_group_receive(self.shared.0, from as c_int, aval, out) })
    }

    fn emit(&self, op: Op, peer: usize, x: &Array) -> Result<Array, BridgeError> {
        // SAFETY: the group and the array are live for the call, which stores a new array.
        arrays::filled(|out| unsafe {
            ffi::tacit_group_collective(self.shared.0, op as c_int, peer as c_int, x.as_ptr(), out)
        })
    }
}

const WATCHER: WatcherTable = WatcherTable { release: release::<Box<dyn Watcher>>, poll, failed };

/// # Safety
///
/// `watcher` must be the box that a group was made with, still alive.
unsafe fn watcher_of<'a>(watcher: *mut c_void) -> &'a dyn Watcher {
    // SAFETY: as the caller promises.
    unsafe { &**watcher.cast::<Box<dyn Watcher>>() }
}

extern "C" fn poll(watcher: *mut c_void, waiting: ffi::InFlight) -> c_int {
    guarded(|| {
        // SAFETY: the watcher lives as long as its group, and the shape for the call.
        let (watcher, waiting) = unsafe { (watcher_of(watcher), InFlight::from_raw(&waiting)?) };
        watcher.poll(&waiting)
    })
}

extern "C" fn failed(
    watcher: *mut c_void,
    of: ffi::InFlight,
    text: *const c_char,
    length: usize,
    later: bool,
) -> c_int {
    guarded(|| {
        // SAFETY: the watcher lives as long as its group; the shape and the text, of this length, for the call.
        let (watcher, of, text) =
            unsafe { (watcher_of(watcher), InFlight::from_raw(&of)?, std::slice::from_raw_parts(text.cast(), length)) };
        Err(watcher.failed(&of, &String::from_utf8_lossy(text), later))
    })
}
