//! Names of primitives as small numbers.

use std::ffi::{CStr, CString};

use crate::error::{BridgeError, check};
use crate::ffi;

/// A primitive's name as a number, the same on every thread of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameId(pub(crate) u32);

impl NameId {
    /// The number of `name`.
    ///
    /// # Errors
    ///
    /// The name holds a NUL byte.
    pub fn of(name: &str) -> Result<Self, BridgeError> {
        let text = CString::new(name).map_err(|_| BridgeError::Nul(name.to_owned()))?;
        let mut id = 0;
        // SAFETY: the string is NUL-terminated and the id a live integer.
        check(unsafe { ffi::tacit_name_intern(text.as_ptr(), &raw mut id) })?;
        Ok(Self(id))
    }

    /// The name as MLX spells it, such as `Matmul`.
    #[must_use]
    pub fn text(self) -> &'static str {
        let mut text = std::ptr::null();
        // SAFETY: the pointer is live for the call.
        let known = unsafe { ffi::tacit_name_text(self.0, &raw mut text) } == 0;
        if !known {
            return "?";
        }
        // SAFETY: interned names are NUL-terminated and never freed.
        unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("?")
    }

    /// The number itself, dense from zero.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
