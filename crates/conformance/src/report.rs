//! The findings of a part of the suite.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{PoisonError, RwLock};

use crate::shape::Shapes;
use crate::subject::Subject;

/// What a part of the suite compared and what it found wrong.
#[derive(Clone, Debug)]
pub struct Report {
    part: String,
    compared: usize,
    findings: Vec<String>,
}

impl Report {
    pub(crate) fn new(part: impl Into<String>) -> Self {
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

    /// The shapes of a subject; that there are none is a finding.
    pub(crate) fn shapes(&mut self, subject: &Subject) -> Option<Shapes> {
        match Shapes::find(subject) {
            Ok(shapes) => Some(shapes),
            Err(found) => {
                self.found("shapes", found);
                None
            }
        }
    }

    /// Runs one comparison; what it returns as an error, or panics with, is a finding.
    pub(crate) fn compare(&mut self, what: impl fmt::Display, check: impl FnOnce() -> Result<(), String>) {
        self.compared += 1;
        if let Err(found) = guarded(check) {
            self.found(what, found);
        }
    }

    /// Runs one comparison while nothing else of the suite runs in this process.
    pub(crate) fn compare_alone(&mut self, what: impl fmt::Display, check: impl FnOnce() -> Result<(), String>) {
        self.compared += 1;
        let _alone = RUNNING.write().unwrap_or_else(PoisonError::into_inner);
        if let Err(found) = caught(check) {
            self.found(what, found);
        }
    }

    /// Counts a comparison that something else makes.
    pub(crate) fn compared_one(&mut self) {
        self.compared += 1;
    }

    #[allow(clippy::needless_pass_by_value, reason = "callers pass what they have just made")]
    pub(crate) fn found(&mut self, what: impl fmt::Display, found: impl fmt::Display) {
        self.findings.push(format!("{what}: {found}"));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} comparisons, {} findings", self.part, self.compared, self.findings.len())?;
        self.findings.iter().try_for_each(|finding| write!(f, "\n  {finding}"))
    }
}

/// Read by every comparison; written by one that measures the whole process.
static RUNNING: RwLock<()> = RwLock::new(());

/// The result of `check`; a panic is an error like others.
pub(crate) fn guarded<R>(check: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    let _running = RUNNING.read().unwrap_or_else(PoisonError::into_inner);
    caught(check)
}

fn caught<R>(check: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Err(format!("panicked: {}", text.unwrap_or_default()))
    })
}
