//! What a part of the suite found.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a part of the suite compared and what it found wrong.
#[derive(Clone, Debug)]
pub struct Report {
    part: String,
    compared: usize,
    findings: Vec<String>,
}

impl Report {
    pub(super) fn new(part: impl Into<String>) -> Self {
        Self { part: part.into(), compared: 0, findings: Vec::new() }
    }

    /// The number of comparisons that were made.
    #[must_use]
    pub fn compared(&self) -> usize {
        self.compared
    }

    /// What is wrong, each with the least input that shows it.
    #[must_use]
    pub fn findings(&self) -> &[String] {
        &self.findings
    }

    /// Prints how much was compared.
    ///
    /// # Panics
    ///
    /// Something was found, or nothing was compared at all.
    #[track_caller]
    pub fn expect_clean(&self) {
        assert!(self.findings.is_empty() && self.compared > 0, "{self}");
        println!("{self}");
    }

    /// Runs one comparison; what it returns as an error, or panics with, is a finding.
    pub(super) fn compare(&mut self, what: impl fmt::Display, check: impl FnOnce() -> Result<(), String>) {
        self.compared += 1;
        if let Err(found) = guarded(check) {
            self.found(what, found);
        }
    }

    /// Counts a comparison that something else makes.
    pub(super) fn compared_one(&mut self) {
        self.compared += 1;
    }

    #[allow(clippy::needless_pass_by_value, reason = "callers pass what they have just made")]
    pub(super) fn found(&mut self, what: impl fmt::Display, found: impl fmt::Display) {
        self.findings.push(format!("{what}: {found}"));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} comparisons, {} findings", self.part, self.compared, self.findings.len())?;
        self.findings.iter().try_for_each(|finding| write!(f, "\n  {finding}"))
    }
}

/// The result of `check`; a panic is an error like others.
pub(super) fn guarded<R>(check: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Err(format!("panicked: {}", text.unwrap_or_default()))
    })
}
