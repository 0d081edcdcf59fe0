//! The clock: what `<mach/mach_time.h>` calls the approximate time.

#[cfg(target_vendor = "apple")]
unsafe extern "C" {
    /// Returns the ticks since the machine started, read from the kernel's cached clock.
    ///
    /// # Safety
    ///
    /// Always sound; `unsafe` only because it is a foreign function.
    pub fn mach_approximate_time() -> u64;
}

/// Returns a time in nanoseconds that never runs backwards within the process.
///
/// The origin is the Unix epoch as the wall clock had it at the first call, so that two processes that use it as a
/// seed get different ones.
///
/// # Safety
///
/// Always sound; `unsafe` only to keep the signature of the Apple function.
#[cfg(not(target_vendor = "apple"))]
#[must_use]
pub unsafe fn mach_approximate_time() -> u64 {
    use std::sync::OnceLock;
    use std::time::{Duration, Instant, SystemTime};

    static ORIGIN: OnceLock<(Duration, Instant)> = OnceLock::new();
    let (epoch, start) = ORIGIN.get_or_init(|| {
        let epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        (epoch, Instant::now())
    });
    (*epoch + start.elapsed()).as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::mach_approximate_time;

    #[test]
    fn time_does_not_run_backwards() {
        // SAFETY: the function has no precondition.
        let (first, second) = unsafe { (mach_approximate_time(), mach_approximate_time()) };
        assert!(first > 0);
        assert!(second >= first);
    }
}
