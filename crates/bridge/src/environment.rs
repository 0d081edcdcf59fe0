//! Environment variables that are replaced for a moment, since MLX's ring is configured by nothing else.

use std::env;
use std::ffi::{OsStr, OsString};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::BridgeError;

static READ: Mutex<()> = Mutex::new(());

/// Keeps the variables as they are while MLX reads them.
pub(crate) fn settled() -> MutexGuard<'static, ()> {
    READ.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Variables that have other values until this is dropped.
pub(crate) struct Lent {
    before: Vec<(&'static str, OsString)>,
    _settled: MutexGuard<'static, ()>,
}

impl Lent {
    /// Gives these variables other values; an error if one is not set.
    pub(crate) fn new(values: &[(&'static str, &OsStr)]) -> Result<Self, BridgeError> {
        let settled = settled();
        let before = |name| env::var_os(name).map(|value| (name, value)).ok_or(BridgeError::Unset(name));
        let before = values.iter().map(|&(name, _)| before(name)).collect::<Result<_, _>>()?;
        for (name, value) in values {
            replace(name, value);
        }
        Ok(Self { before, _settled: settled })
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.before.iter().for_each(|(name, value)| replace(name, value));
    }
}

/// Gives a variable that is set another value.
fn replace(name: &str, value: &OsStr) {
    // SAFETY: Rust's own readers wait for the lock that this takes. For those in C, a variable that is set already changes where
    // it stands: the table of all does not move, and the C libraries that MLX is built for, glibc and Apple's, free no text
    // that a reader may hold.
    unsafe { env::set_var(name, value) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lent_variables_come_back() {
        const NAME: &str = "CARGO_PKG_DESCRIPTION";
        let before = env::var_os(NAME).expect("Cargo sets it for tests");
        let lent = Lent::new(&[(NAME, OsStr::new("another"))]).expect("is set");
        assert_eq!(env::var_os(NAME), Some("another".into()));
        drop(lent);
        assert_eq!(env::var_os(NAME).as_ref(), Some(&before));
        let refused = Lent::new(&[(NAME, OsStr::new("another")), ("MLX_NOBODY_SETS_THIS", OsStr::new("1"))]);
        let error = refused.err().expect("is not set").to_string();
        assert_eq!(error, "the variable MLX_NOBODY_SETS_THIS is not set");
        assert_eq!(env::var_os(NAME), Some(before));
    }
}
