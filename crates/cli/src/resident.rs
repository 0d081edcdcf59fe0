//! What this process has had in memory.

use std::fs;

/// The most bytes that were resident, pages of files included. Where the system does not tell, it is estimated: as the most that
/// MLX has allocated, and the weights, which may lie in their file instead.
pub(crate) fn peak(weight_bytes: usize, allocated: usize) -> usize {
    told().unwrap_or(weight_bytes + allocated)
}

/// What Linux says.
fn told() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(1024 * line.trim().strip_suffix(" kB")?.parse::<usize>().ok()?)
}
