//! Names of primitives as small numbers.

use std::cell::RefCell;
use std::ffi::{CStr, CString};

use crate::error::BridgeError;
use crate::typed::{self, Description};
use crate::{arrays, ffi};

/// A primitive's name as a number, the same on every thread of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameId(pub(crate) u32);

impl NameId {
    /// The number of `name`.
    ///
    /// # Errors
    ///
    /// The name holds a NUL byte.
    pub fn intern(name: &str) -> Result<Self, BridgeError> {
        let text = CString::new(name).map_err(|_| BridgeError::Nul(name.to_owned()))?;
        // SAFETY: the string is NUL-terminated and the id a live integer.
        arrays::written(0, |id| unsafe { ffi::tacit_name_intern(text.as_ptr(), id) }).map(Self)
    }

    /// The name as MLX spells it, such as `Matmul`.
    #[must_use]
    pub fn text(self) -> &'static str {
        self.known().text
    }

    /// What is known of the primitive of this name; `None` for one that is not MLX's.
    #[must_use]
    pub fn description(self) -> Option<&'static Description> {
        self.known().description
    }

    fn known(self) -> Known {
        if let Some(known) = KNOWN.with_borrow(|known| known.get(self.index()).copied().flatten()) {
            return known;
        }
        let Some(text) = self.interned() else { return Known { text: "?", description: None } };
        let known = Known { text, description: typed::describe(text) };
        KNOWN.with_borrow_mut(|table| {
            if table.len() <= self.index() {
                table.resize(self.index() + 1, None);
            }
            table[self.index()] = Some(known);
        });
        known
    }

    fn interned(self) -> Option<&'static str> {
        // SAFETY: the pointer is live for the call.
        let text = arrays::written(std::ptr::null(), |text| unsafe { ffi::tacit_name_text(self.0, text) }).ok()?;
        // SAFETY: interned names are NUL-terminated and never freed.
        Some(unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("?"))
    }

    /// The number itself, dense from zero.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Copy)]
struct Known {
    text: &'static str,
    description: Option<&'static Description>,
}

thread_local! {
    /// By number: names are interned behind a lock, and a handler's view asks for one.
    static KNOWN: RefCell<Vec<Option<Known>>> = const { RefCell::new(Vec::new()) };
}
