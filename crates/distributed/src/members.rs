//! The state of a group of several ranks.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use crate::watch::{Limits, Part, Watch};

/// A group of several ranks, as one of them has it.
pub(crate) struct Members {
    pub(crate) engine: tacit_bridge::Group,
    /// Its ranks by their numbers in the group that the processes have joined, which watch each other by them.
    pub(crate) part: Part,
    /// Where each rank is, for MLX's ring; nothing for another engine.
    pub(crate) hosts: Vec<Vec<String>>,
    pub(crate) limits: Limits,
    pub(crate) watch: Arc<OnceLock<Watch>>,
    /// How often it was split, which is the same on all ranks.
    pub(crate) splits: AtomicUsize,
}
