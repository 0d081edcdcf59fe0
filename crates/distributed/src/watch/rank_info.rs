//! Who a process is in its group.

/// Which rank of how many this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RankInfo {
    pub(crate) rank: usize,
    pub(crate) size: usize,
}
