//! The memory that this process takes, as Linux tells it.

use std::fs;

use tacit::{Error, Result};

/// Starts the peak anew, so that it is not the one of drawing the codes.
pub(crate) fn reset_peak() {
    // Where the system refuses, the peak is too high and the bench fails rather than passes.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// A figure of this process in kilobytes.
pub(crate) fn kilobytes(name: &str) -> Result<f64> {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
        .ok_or_else(|| Error::invalid(format!("this system does not tell {name}"), "measure on linux"))
}
