//! The resident inputs from run to run.

use mlx_rs::ops::indexing::TryIndexMutOp;
use tacit_core::{Error, Result, Value, kernel, tree};

use crate::Executable;
use crate::signature::{Described, Kind, Override};

impl Executable<'_> {
    /// A resident input that a failed kernel left is an error before anything is computed from it.
    pub(crate) fn check_residents(&self, overrides: &[Override<'_>]) -> Result<()> {
        let Self { body, arguments, .. } = self;
        let residents = body.signature.inputs.iter().zip(&arguments.1).enumerate();
        // A default that the run replaces is not read.
        let residents = residents.filter(|(input, (described, _))| {
            described.kind != Kind::Given && overrides.iter().all(|(replaced, _)| replaced != input)
        });
        for (_, (Described { name, .. }, value)) in residents {
            for array in tree::arrays(value)? {
                kernel::check_intact(&array).map_err(|error| {
                    let why = match &error {
                        Error::Kernel { kernel, message, .. } => format!("kernel {kernel} failed: {message}"),
                        other => other.clause(),
                    };
                    let what =
                        format!("resident input {name} of {} comes of a run that failed: {why}", body.signature.name);
                    Error::invalid(what, "set it again with `set_input`")
                })?;
            }
        }
        Ok(())
    }

    /// The residents that outputs are fed to, as they are now.
    pub(crate) fn fed_residents(&self) -> impl Iterator<Item = &Value> {
        let fed = self.body.signature.outputs.iter().flat_map(|output| &output.feeds);
        fed.map(|&input| &self.arguments.1[input])
    }

    /// The new resident inputs where rows were cut: the rows of the results, and behind them those that were there.
    pub(crate) fn fed(&self, results: &[Value]) -> Result<Vec<(usize, Value)>> {
        let Some(extent) = self.body.extent() else { return Ok(Vec::new()) };
        let mut fed = Vec::new();
        for (output, value) in self.body.signature.outputs.iter().zip(results) {
            for &input in &output.feeds {
                let Described { aval, name, .. } = &self.body.signature.inputs[input];
                let found = value.aval()?;
                if found == *aval {
                    fed.push((input, value.clone()));
                    continue;
                }
                if found != extent.cut(aval) {
                    return Err(Error::invalid(
                        format!(
                            "output {} is {found} in {} of {} rows and cannot be fed to {name}, which is {aval}",
                            output.name, extent.actual, extent.upper
                        ),
                        "let the rows of a fed output be its leading axis",
                    ));
                }
                let mut whole = self.arguments.1[input].dense()?;
                whole.try_index_mut(..extent.actual, &value.dense()?)?;
                fed.push((input, whole.into()));
            }
        }
        Ok(fed)
    }

    /// Feeds what is fed and appends the rest to `returned`. `fed` says what stands for an output in an input.
    pub(crate) fn hand_over(&mut self, results: Vec<Value>, fed: Vec<(usize, Value)>, returned: &mut Vec<Value>) {
        let whole = fed.is_empty();
        for (input, value) in fed {
            self.arguments.1[input] = value;
        }
        for (output, value) in self.body.signature.outputs.iter().zip(results) {
            match output.feeds.as_slice() {
                [] => returned.push(value),
                feeds if whole => {
                    for &input in feeds {
                        self.arguments.1[input] = value.clone();
                    }
                }
                _ => {}
            }
        }
    }
}
