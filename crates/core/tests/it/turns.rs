//! Turns of tests that share something of their process: what one counts, another is not to change meanwhile.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Taken by tests that count the bytes of all arrays, and by those that make large ones.
pub(crate) fn of_memory() -> MutexGuard<'static, ()> {
    static MEMORY: Mutex<()> = Mutex::new(());
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}
