//! Placeholders, and the check that none of them outlives its trace.

use std::ffi::c_void;

use mlx_rs::Array;

use crate::error::BridgeError;
use crate::{Aval, arrays, ffi};

/// The placeholders of one trace.
///
/// A placeholder is an array with a shape and a dtype and nothing else: MLX builds graphs on it, and an eval of such a
/// graph is an error. [`live`](Self::live) tells how many still exist, in a graph or in somebody's hands.
pub struct Scope {
    raw: *mut c_void,
}

impl Scope {
    /// A scope without placeholders.
    pub fn new() -> Result<Self, BridgeError> {
        // SAFETY: the pointer is live for the call.
        arrays::pointer(|raw| unsafe { ffi::tacit_scope_new(raw) }).map(|raw| Self { raw })
    }

    pub(crate) fn as_ptr(&self) -> *const c_void {
        self.raw
    }

    /// A new placeholder of this aval.
    ///
    /// # Errors
    ///
    /// An extent is negative.
    pub fn placeholder(&self, aval: &Aval) -> Result<Array, BridgeError> {
        let aval = arrays::viewed(aval)?;
        // SAFETY: the scope and the shape are live.
        arrays::filled(|out| unsafe { ffi::tacit_scope_placeholder(self.raw, aval, out) })
    }

    /// How many placeholders of this scope still exist.
    #[must_use]
    pub fn live(&self) -> usize {
        // SAFETY: the scope is live.
        unsafe { ffi::tacit_scope_live(self.raw) }.max(0) as usize
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        // SAFETY: the scope is ours and is freed once.
        unsafe { ffi::tacit_scope_free(self.raw) };
    }
}
