//! What a command prints, and how it fails.

use std::fmt::{self, Display};
use std::io::{self, Stdout, Write};

use serde::Serialize;
use tacit_core::Error;

/// The standard output, for people or as JSON.
pub(crate) struct Output {
    out: Stdout,
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { out: io::stdout(), json }
    }

    /// Prints a result and a line's end.
    pub(crate) fn show(&mut self, result: &(impl Display + Serialize)) -> Result<(), Failure> {
        let mut out = self.out.lock();
        if self.json {
            let text = serde_json::to_string_pretty(result).map_err(io::Error::from)?;
            writeln!(out, "{text}")?;
        } else {
            writeln!(out, "{result}")?;
        }
        Ok(out.flush()?)
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.out.write_all(bytes)?;
        Ok(self.out.flush()?)
    }
}

/// Why a command fails.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What it was to do cannot be done.
    Tacit(Error),
    /// Its output cannot be written.
    Write(io::Error),
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tacit(error) => error.fmt(f),
            Self::Write(error) => write!(f, "the output cannot be written: {error}"),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Tacit(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Write(error)
    }
}
