//! Callbacks from C++: neither an error nor a panic of Rust crosses the border.

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{self, BoxError};

/// Runs the body of a callback: neither an error nor a panic crosses into C++ but as its text.
pub(crate) fn guarded(body: impl FnOnce() -> Result<(), BoxError>) -> c_int {
    // An error is a user's own, whose text may panic too.
    let ended = catch_unwind(AssertUnwindSafe(|| body().map_err(|failure| (failure.to_string(), failure))));
    let (text, failure) = match ended {
        Ok(Ok(())) => return 0,
        Ok(Err(told)) => told,
        Err(payload) => {
            let panic = PanicError::from_payload(&*payload);
            (panic.to_string(), BoxError::from(panic))
        }
    };
    error::raise(text, failure);
    1
}

/// Frees a box of `T`, which a call into C++ gave away, when C++ lets go of it.
pub(crate) extern "C" fn release<T>(held: *mut c_void) {
    // SAFETY: this is that box, and it is freed once. A destructor that panics must not unwind into C++.
    let _ = catch_unwind(|| drop(unsafe { Box::from_raw(held.cast::<T>()) }));
}

/// A callback panicked.
#[derive(Debug, thiserror::Error)]
#[error("panicked: {0}")]
pub struct PanicError(pub String);

impl PanicError {
    /// The error of a panic with this payload.
    #[must_use]
    pub fn from_payload(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Self(text.unwrap_or_else(|| "a panic without a text".to_owned()))
    }
}

/// What a callback returns when there is no rule: the C++ side then does without.
pub(crate) const NO_RULE: c_int = 2;

/// As [`guarded`], for a rule that need not exist.
pub(crate) fn guarded_rule(body: impl FnOnce() -> Result<Option<()>, BoxError>) -> c_int {
    let mut none = false;
    let status = guarded(|| body().map(|answer| none = answer.is_none()));
    if none { NO_RULE } else { status }
}
