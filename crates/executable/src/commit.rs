//! Runs that are begun, and waited for later.

use mlx_rs::Array;
use tacit_core::{Error, Result, tree};

use crate::nodes::Nodes;
use crate::pending::Pending;
use crate::signature::Override;
use crate::{Executable, Outputs};

impl Executable<'_> {
    /// Begins a run and its evaluation, and returns without waiting for it, in every mode; [`wait`](Self::wait) gives the
    /// outputs.
    ///
    /// The function is called before it returns, or its graph replayed. MLX builds the graph's tasks on the caller's thread,
    /// and waits by itself where many are under way.
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run), or a run is committed already.
    pub fn commit(&mut self, inputs: &[(&str, &Array)]) -> Result<()> {
        if self.committed.is_some() {
            return Err(Error::invalid(
                format!("a run of {} is committed already", self.body.signature.name),
                "call `wait` first, or use `run_pipelined`",
            ));
        }
        let (inputs, overrides) = self.in_order(inputs)?;
        self.committed = Some(self.begin(&inputs, &overrides)?);
        Ok(())
    }

    /// Waits for the committed run.
    ///
    /// # Errors
    ///
    /// No run is committed, or its evaluation fails.
    pub fn wait(&mut self) -> Result<Outputs> {
        let Some(pending) = self.committed.take() else {
            return Err(Error::invalid(
                format!("no run of {} is committed", self.body.signature.name),
                "call `commit` first",
            ));
        };
        Ok(self.named(pending.finish()?))
    }

    /// Begins a run and the evaluation of everything that it makes.
    pub(crate) fn begin(&mut self, inputs: &[&Array], overrides: &[Override<'_>]) -> Result<Pending> {
        let Pending { returned: results, nodes } = self.call(inputs, overrides)?;
        let fed = self.fed(&results)?;
        let mut returned = Vec::new();
        self.hand_over(results, fed, &mut returned);
        // By now the former residents are the graph's alone, and it may write the new ones into their memory.
        let begun = tree::async_eval(&(&returned, self.fed_residents().collect::<Vec<_>>()));
        if let Err(error) = begun {
            nodes.as_ref().map_or(Ok(()), Nodes::evaluate)?;
            return Err(error);
        }
        Ok(Pending { returned, nodes })
    }
}
