//! A run whose evaluation goes on while the program does something else.

use tacit_core::{Result, Value, tree};

use crate::nodes::Nodes;

/// A run that was begun.
pub(crate) struct Pending {
    pub(crate) returned: Vec<Value>,
    /// In [`Mode::Eager`](crate::Mode::Eager), to name the one that fails.
    pub(crate) nodes: Option<Nodes>,
}

impl Pending {
    /// What the run returns, evaluated.
    pub(crate) fn finish(self) -> Result<Vec<Value>> {
        self.nodes.as_ref().map_or(Ok(()), Nodes::evaluate)?;
        // In the eager mode what depends on no argument, and an argument that is returned.
        tree::eval(&self.returned)?;
        Ok(self.returned)
    }

    /// What the run returns, evaluated in the eager mode alone.
    pub(crate) fn evaluated(self) -> Result<Vec<Value>> {
        if self.nodes.is_some() { self.finish() } else { Ok(self.returned) }
    }
}
