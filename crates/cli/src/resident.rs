//! The peak of this process's memory.

use tacit_figures::resident::told_peak;

/// The most bytes that were resident, pages of files included. Where the system does not tell, it is estimated: as the most that
/// MLX has allocated, and the weights, which may lie in their file instead.
pub(crate) fn peak(weight_bytes: usize, allocated: usize) -> usize {
    told_peak().map_or(weight_bytes + allocated, |bytes| bytes as usize)
}
