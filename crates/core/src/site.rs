//! Where a handler stands, and why it declined.

use std::fmt;

/// A handler's name and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// The function's name.
    pub name: &'static str,
    /// The source file.
    pub file: &'static str,
    /// The line in it.
    pub line: u32,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}:{})", self.name, self.file, self.line)
    }
}

/// A handler that matched a call and declined it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decline {
    /// The handler and where it stands.
    pub handler: Site,
    /// Its reason.
    pub reason: String,
}

impl fmt::Display for Decline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "declined: {}: {}", self.handler.name, self.reason)
    }
}
