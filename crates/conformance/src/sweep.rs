//! How much the suite tries.

use std::sync::OnceLock;

use crate::ops::moving;

/// The variable that sets how much is tried: `full`, or nothing.
pub const SWEEP_VARIABLE: &str = "TACIT_SWEEP";

/// How much the suite tries; the same inputs in every run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// Every handler in a plain case, compiled and transformed, and in a few drawn ones. In this process MLX's compile then
    /// fuses no ops, which costs a run of the C++ compiler each.
    Bounded,
    /// Many drawn cases, all of them compiled, with fusion, and transformed.
    Full,
}

impl Sweep {
    /// What `TACIT_SWEEP` asks for.
    #[must_use]
    pub fn current() -> Self {
        static CURRENT: OnceLock<Sweep> = OnceLock::new();
        *CURRENT.get_or_init(|| match std::env::var(SWEEP_VARIABLE).as_deref() {
            Ok("full") => Self::Full,
            _ => Self::Bounded,
        })
    }

    /// The number of random programs.
    pub(crate) fn programs(self) -> u64 {
        match self {
            Self::Bounded => 250,
            Self::Full => 1000,
        }
    }

    /// The number of programs in which implicit arrays meet, of so many subjects.
    pub(crate) fn meetings(self, subjects: usize) -> u64 {
        // In as many turns as there are ops that move elements each of them moves those of each subject.
        let turns = match self {
            Self::Bounded => 3,
            Self::Full => moving().len(),
        };
        (turns * subjects) as u64
    }

    /// The number of drawn cases for each primitive that has a handler for the subject.
    pub(crate) fn cases(self) -> u32 {
        match self {
            Self::Bounded => 3,
            Self::Full => 6,
        }
    }
}
