//! Why a group has ended.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Verdict {
    /// A rank does not take part any more.
    Lost { rank: usize, address: String, reason: String },
    /// All take part, and not in the same.
    Disagreement { reason: String },
}
