//! How a group is joined.

use std::time::Duration;

use tacit_core::Result;

use crate::backend::Backend;
use crate::watch::Limits;

/// How a group is joined, and how long its ranks wait for each other.
///
/// ```
/// use std::time::Duration;
///
/// use tacit_distributed::{Group, GroupOptions};
///
/// # fn main() -> tacit_core::Result<()> {
/// let mut options = GroupOptions::from_environment()?;
/// options.wait = Duration::from_secs(60);
/// let group = Group::with(&options)?;
/// assert!(group.rank() < group.size());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GroupOptions {
    /// What carries the collectives; `None` takes what the environment names.
    pub backend: Option<Backend>,
    /// How long all ranks may take to come. One minute unless said otherwise, without pauses of the rank that waits, as below.
    pub join: Duration,
    /// How long a rank may give no sign of life. Ten seconds unless said otherwise.
    pub silence: Duration,
    /// How long one collective may take, which is how far the ranks may be apart. Ten minutes unless said otherwise. Time in which
    /// the rank that waits was stopped, or its machine slept, does not count.
    pub wait: Duration,
    /// Whether a compiled function that has collectives is run only once all ranks have said that they are about to run the
    /// same ones, kind, shape and dtype: an error that names both sides, before any of them waits. It costs a message a rank
    /// for each trace, nothing for each call, and every rank must trace the same functions in the same order, whichever groups
    /// their collectives are of. Off unless said otherwise.
    pub compares_plans: bool,
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self::within(Limits::default())
    }
}

impl GroupOptions {
    /// The defaults with the limits that `TACIT_WATCH_LIMITS` names, such as `join=300 silence=30`, in seconds.
    ///
    /// # Errors
    ///
    /// The variable says something else.
    pub fn from_environment() -> Result<Self> {
        Limits::from_environment().map(Self::within)
    }

    fn within(Limits { join, silence, wait }: Limits) -> Self {
        Self { backend: None, join, silence, wait, compares_plans: false }
    }
}
