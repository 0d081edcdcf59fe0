//! Where a handler stands, why it declined, and what else errors name.

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

/// An argument of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Argument {
    /// Its number among the leaves.
    Number(usize),
    /// The path of the parameter that it is.
    Parameter(String),
}

/// A handler that a call comes close to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NearMiss {
    /// The handler and where it stands.
    pub handler: Site,
    /// Its signature.
    pub signature: String,
}
