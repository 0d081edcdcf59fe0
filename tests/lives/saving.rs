//! A model that is written and read again.

use mlx_rs::optimizers::Sgd;
use mlx_rs::{Array, ops};
use tacit::Result;
use tacit::io::Training;
use tacit::model::{Missing, Parameters};

use crate::life::{Checked, Life, holds, never};
use crate::verb::Trained;

impl Life {
    /// A file of all values is this model again.
    pub(crate) fn save(&self, y: &Array) -> Checked {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let file = folder.path().join("model.safetensors");
        let values = never(self.model.values())?;
        never(tacit::io::save(&file, &values))?;
        let read = never(tacit::io::load(&file))?;
        holds(read.keys().eq(values.keys()), "a file has other parameters")?;
        let mut other = self.model.clone();
        never(other.assign(never(zeros(&values))?, Missing::Refuse))?;
        never(other.assign(read, Missing::Refuse))?;
        self.same(other, y, "read again")
    }

    /// A run with some of its leaves makes this model of one in which they are zero.
    pub(crate) fn save_run(&self, trained: Trained, y: &Array) -> Checked<Result<()>> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let file = folder.path().join("run.safetensors");
        let run = Training::new(3).with_model(&self.model, &trained.filter());
        let run = match run.and_then(|run| run.with_optimizer(&Sgd::new(0.1))) {
            Ok(run) => run,
            Err(error) => return Ok(Err(error)),
        };
        never(run.save(&file))?;
        let mut other = self.model.clone();
        let leaves = other.lasting_leaves(&trained.filter()).into_iter();
        let zeros = leaves.map(|(path, array)| Ok((path, ops::zeros_like(array)?)));
        let zeros = never(zeros.collect::<Result<Vec<_>>>())?;
        never(other.set_leaves(zeros))?;
        never(never(Training::load(&file))?.restore_model(&mut other))?;
        self.same(other, y, "restored")?;
        Ok(Ok(()))
    }

    /// Leaves of adapters, and a model of zeros that has none.
    pub(crate) fn restore_torn(&mut self, trained: Trained) -> Checked<Result<()>> {
        let mut run = match Training::new(3).with_model(&self.model, &trained.filter()) {
            Ok(run) => run,
            Err(error) => return Ok(Err(error)),
        };
        run.parameters = never(self.model.values().and_then(|values| zeros(&values)))?;
        let mut other = self.model.clone();
        let restored = run.restore_model(&mut other);
        if restored.is_err() {
            self.model = other;
        }
        Ok(restored)
    }
}

/// Dense zeros in the place of values.
fn zeros(values: &Parameters) -> Result<Parameters> {
    let zeros = values.iter().map(|(path, value)| {
        let aval = value.aval()?;
        Ok((path.clone(), ops::zeros_dtype(&aval.shape, aval.dtype)?.into()))
    });
    zeros.collect()
}
