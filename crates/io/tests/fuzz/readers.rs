//! Every reader of the crate, with files that it reads.

use std::collections::BTreeMap;
use std::path::Path;

use mlx_rs::optimizers::AdamW;
use tacit_core::{Result, Value};
use tacit_io::{Tensors, Training, load};
use tacit_nn::Parameters;

use crate::corpus::{self, Sample};

/// A reader, and the right files that its cases begin from.
pub(crate) struct Reader {
    pub(crate) name: &'static str,
    pub(crate) corpus: Vec<Sample>,
    pub(crate) read: Box<dyn Fn(&Path) -> Result<Vec<Value>>>,
}

/// The readers, in the order in which they are tried.
pub(crate) fn readers() -> Vec<Reader> {
    vec![
        Reader { name: "safetensors", corpus: corpus::tacit(), read: Box::new(tensors) },
        of_parameters("tacit", corpus::tacit(), |path| load(path)),
        Reader { name: "training", corpus: corpus::training(), read: Box::new(training) },
    ]
}

fn of_parameters(
    name: &'static str,
    corpus: Vec<Sample>,
    read: impl Fn(&Path) -> Result<Parameters> + 'static,
) -> Reader {
    Reader { name, corpus, read: Box::new(move |path| Ok(read(path)?.into_values().collect())) }
}

fn tensors(path: &Path) -> Result<Vec<Value>> {
    let tensors = Tensors::open(path)?;
    tensors.names().map(|name| Ok(tensors.get(name)?.into())).collect()
}

fn training(path: &Path) -> Result<Vec<Value>> {
    let run = Training::load(path)?;
    // These are refused where they are another's, by errors that know of no file.
    let _ = run.restore_model(&mut corpus::model());
    let _ = run.restore_optimizer(&mut AdamW::new(1e-3));
    let _ = run.random();
    let states = run.states.into_values().flat_map(BTreeMap::into_values).map(Value::from);
    Ok(run.parameters.into_values().chain(states).collect())
}
