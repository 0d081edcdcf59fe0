//! The memory that this process takes, as Linux tells it.

use std::fs;

/// Lets the peak begin anew, so that it is not that of what was done before.
pub fn reset_peak() {
    // Where the system refuses, the peak is too high and the bench fails rather than passes.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// The bytes of this process now.
///
/// # Panics
///
/// Panics on a system that does not tell.
#[must_use]
pub fn now() -> f64 {
    bytes("VmRSS").expect("this system does not tell what is resident: measure on linux")
}

/// The most bytes that this process had since [`reset_peak`].
///
/// # Panics
///
/// Panics on a system that does not tell.
#[must_use]
pub fn peak() -> f64 {
    told_peak().expect("this system does not tell what was resident: measure on linux")
}

/// [`peak`], where the system tells it.
#[must_use]
pub fn told_peak() -> Option<f64> {
    bytes("VmHWM")
}

fn bytes(name: &str) -> Option<f64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(1024.0 * kilobytes)
}
