//! What a command prints, and how it fails.

use std::fmt::{self, Display};
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use serde::Serialize;
use tacit_core::{Error, printable};
use tacit_files::is_stdout;

/// The standard output, for people or as JSON; or the standard error where a file goes to the standard output.
pub(crate) struct Output {
    out: Box<dyn Write>,
    json: bool,
    closed: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { out: Box::new(io::stdout()), json, closed: false }
    }

    /// Keeps out of the way of these files, which the command writes.
    pub(crate) fn beside<P: AsRef<Path>>(&mut self, files: impl IntoIterator<Item = P>) -> &mut Self {
        if files.into_iter().any(|file| is_stdout(file.as_ref())) {
            self.out = Box::new(io::stderr());
        }
        self
    }

    /// Prints a result and a line's end. What names of files do to a terminal is not printed but shown.
    pub(crate) fn show(&mut self, result: &(impl Display + Serialize)) -> Result<(), Failure> {
        let text = if self.json {
            printable::json(&serde_json::to_string_pretty(result).map_err(io::Error::from)?).into_owned()
        } else {
            printable::text(&result.to_string()).into_owned()
        };
        self.bytes(format!("{text}\n").as_bytes())
    }

    /// Prints a piece of a text for people as it comes, nothing of it as JSON, and says whether anybody reads on.
    ///
    /// A terminal is shown what pieces would do to it; files and other programs are given them as they are.
    pub(crate) fn piece(&mut self, text: &str) -> Result<bool, Failure> {
        if self.json {
            return Ok(true);
        }
        if io::stdout().is_terminal() {
            let parts: Vec<_> = text.split('\t').map(printable::text).collect();
            self.bytes(parts.join("\t").as_bytes())?;
        } else {
            self.bytes(text.as_bytes())?;
        }
        Ok(!self.closed)
    }

    /// Prints a result of several as JSON, in one line: nothing for people, who have read its pieces.
    pub(crate) fn line(&mut self, result: &impl Serialize) -> Result<(), Failure> {
        if !self.json {
            return Ok(());
        }
        let text = serde_json::to_string(result).map_err(io::Error::from)?;
        self.bytes(format!("{}\n", printable::json(&text)).as_bytes())
    }

    /// Prints bytes as they are. A reader that has closed the other end has read enough: what the command makes or finds is not
    /// changed by that.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match self.out.write_all(bytes).and_then(|()| self.out.flush()) {
            Err(error) if is_closed(&error) => {
                self.closed = true;
                Ok(())
            }
            written => Ok(written?),
        }
    }

    /// Whether the reader of results has closed the other end.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }
}

/// Whether it is only that whoever reads the output has read enough.
pub(crate) fn is_closed(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

/// Says something beside the results.
pub(crate) fn note(text: &dyn Display) {
    // Who closed the standard error does not read it.
    drop(writeln!(io::stderr(), "{text}"));
}

/// Why the standard input gives no text.
pub(crate) fn unreadable_input(error: &io::Error) -> Error {
    Error::invalid(format!("the standard input cannot be read: {error}"), "give text in UTF-8")
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
            // The policy is the command's own, and nobody else's to change.
            Self::Tacit(error @ Error::MaterializationDenied { .. }) => {
                let said = error.to_string();
                let (what, _) = said.rsplit_once("\nhelp: ").unwrap_or((said.as_str(), ""));
                write!(f, "{what}\nhelp: take another format, or floats, which `tacit convert --as hugging-face` makes")
            }
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
