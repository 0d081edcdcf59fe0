//! The watch of the group that was joined last.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use crate::watch::Watch;

static CURRENT: Mutex<Weak<OnceLock<Watch>>> = Mutex::new(Weak::new());

/// It, as long as the group is there.
pub(crate) fn watch() -> Option<Arc<OnceLock<Watch>>> {
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
}

/// Puts that of a new group in its place.
pub(crate) fn put(watch: &Arc<OnceLock<Watch>>) {
    *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(watch);
}
