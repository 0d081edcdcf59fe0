//! A case: what all ranks of a group do together, and how that may end.

use std::time::Duration;

use tacit_core::Result;
use tacit_distributed::Group;

/// The numbers of ranks that a case runs on unless it says otherwise.
const SIZES: &[usize] = &[2, 4];
/// Three ranks, too: elements and sums of them have no equal parts there.
pub(crate) const ODD_TOO: &[usize] = &[2, 3, 4];
/// How long a case may take unless it says otherwise: long, for a machine that has much else to do.
const LIMIT: Duration = Duration::from_mins(1);

/// What all ranks of a group run together. It fails by an error or a panic on any of them.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&Group) -> Result<()>,
    pub(crate) sizes: &'static [usize],
    pub(crate) limit: Duration,
    pub(crate) apart: Option<Apart>,
}

impl Case {
    pub(crate) const fn new(name: &'static str, run: fn(&Group) -> Result<()>) -> Self {
        Self { name, run, sizes: SIZES, limit: LIMIT, apart: None }
    }

    /// On these numbers of ranks alone.
    pub(crate) const fn sizes(mut self, sizes: &'static [usize]) -> Self {
        self.sizes = sizes;
        self
    }

    /// A limit of its own.
    pub(crate) const fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// In processes of its own.
    pub(crate) const fn apart(mut self, apart: Apart) -> Self {
        self.apart = Some(apart);
        self
    }
}

/// Processes of a case's own, which need not end well: what becomes of them is judged.
pub(crate) struct Apart {
    /// Environment variables of all of them.
    pub(crate) variables: &'static [(&'static str, &'static str)],
    /// How the rank of this number joins the group; it may as well come late, or end.
    pub(crate) join: fn(usize) -> Result<Group>,
    /// The ranks whose end nobody waits for: they are killed once all others have ended.
    pub(crate) lost: &'static [usize],
    /// Whether that is how it should end, with the reason if not. Ranks are in order.
    pub(crate) judge: fn(&[Ended]) -> Result<(), String>,
}

/// What became of a rank.
#[derive(Debug)]
pub(crate) struct Ended {
    /// What it said of the case: that it went well, or the error. None if it never came to its end.
    pub(crate) said: Option<Result<(), String>>,
    /// The code of its exit. None if it was killed, also by the end of the case; under MPI, where `mpirun` has it.
    pub(crate) code: Option<i32>,
    /// Whether it was killed as it had not ended: `mpirun` hides that.
    pub(crate) is_killed: bool,
    /// What it wrote to its standard error; under MPI, all of them.
    pub(crate) stderr: String,
    /// From the start of the processes to what it said, and else to its end.
    pub(crate) after: Duration,
}
