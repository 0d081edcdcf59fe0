//! `tacit train`: adapts a decoder to a file of texts.

mod data;
mod memory;
mod options;
mod output;
mod own;
mod run;
mod saved;

use std::cell::RefCell;
use std::fmt;
use std::path::Path;

use serde::Serialize;
use tacit_bridge::process::give_back_memory;
use tacit_core::{Error, Policy, Result, printable};
use tacit_models::{Config, Rows};

use crate::decoding::source::{Source, files_of_text};
use crate::output::{Failure, Output};
use crate::{interruption, resident};

pub(crate) use options::Options;

#[derive(Serialize)]
pub(crate) struct Trained {
    steps: u64,
    /// The steps that were made before this program began.
    resumed: u64,
    /// Rows of the data, and how many samples are in more than one of them.
    rows: usize,
    cut: usize,
    /// How many numbers were trained.
    numbers: usize,
    /// The loss of the last step.
    loss: Option<f64>,
    /// The mean loss of the tokens of the other file, at the end.
    evaluated: Option<f64>,
    /// How far the merged weights are from the trained ones: the greatest part of a change that was lost. Nothing where they are
    /// floats.
    lost: Option<f64>,
    /// The most bytes that were resident, and the most that MLX had allocated in the steps.
    peak_bytes: usize,
    allocator_peak_bytes: usize,
    /// With U+FFFD for what is no UTF-8: serde refuses such a path.
    output: String,
}

/// Trains, and prints a line for some of the steps as they are made.
pub(crate) fn train(options: &Options, output: &mut Output) -> Result<(), Failure> {
    let source = Source::find(&options.model);
    let written = output::Written::new(options, files_of_text(&source))?;
    memory::hold_nothing_idle()?;
    let (rows, others) = rows(options, source)?;
    // A tokenizer takes as much memory as some models.
    give_back_memory();
    let (config, model) = crate::decoding::read(&options.model, options.weights()?.as_ref(), None)?;
    let mut model = options.prepared(model)?;
    // The pieces in which the tensors were read.
    give_back_memory();
    let plan = options.plan(&rows);
    let mut saved = saved::Saved::open(options, plan.steps, &written, &model)?;
    interruption::clear_up(Some(saved.folder()));
    let deny = Policy::Deny.scope();
    let run =
        run::Run { config: &config, rows: &rows, others: others.as_ref(), plan: &plan, order: RefCell::default() };
    let ended = run.run(&mut model, &mut saved, output)?;
    drop(deny);
    let numbers = model.leaves(&plan.trained).iter().map(|(_, leaf)| leaf.size()).sum();
    // A drawing that cannot be made leaves the run as it is, to be gone on with.
    saved.draw()?;
    saved.claim(written.files())?;
    let lost = written.write(options, &mut model)?;
    saved.finish()?;
    output.show(&Trained {
        steps: plan.steps,
        resumed: ended.resumed,
        rows: rows.len(),
        cut: rows.cut(),
        numbers,
        loss: ended.loss,
        evaluated: ended.evaluated,
        lost,
        peak_bytes: resident::peak(model.nbytes(), ended.allocator_peak_bytes),
        allocator_peak_bytes: ended.allocator_peak_bytes,
        output: options.output.display().to_string(),
    })
}

/// The rows of the data, and those of the other file, if there is one, by what the model knows of text.
fn rows(options: &Options, source: Result<Source>) -> Result<(Rows, Option<Rows>)> {
    let config = match &source {
        Ok(Source::File(file)) => Config::from_gguf(file)?,
        Ok(Source::Folder(_)) | Err(_) => Config::find(&options.model)?,
    };
    let words = config.vocab_size.unsigned_abs();
    let mut reader = data::Reader::new(source?, config.end_tokens.first().copied(), words)?;
    let (samples, length) = (reader.read(&options.data)?, options.length);
    let rows = if options.apart { Rows::apart(&samples, length) } else { Rows::packed(&samples, length, options.seed) };
    let rows = rows.map_err(|error| in_file(&options.data, &error))?;
    let others = options
        .evaluate
        .as_ref()
        .map(|file| Rows::apart(&reader.read(file)?, length).map_err(|error| in_file(file, &error)));
    Ok((rows, others.transpose()?))
}

fn in_file(file: &Path, error: &Error) -> Error {
    let place = printable::name(&file.to_string_lossy()).into_owned();
    Error::invalid(format!("{place}: {}", error.clause()), error.help().unwrap_or_default())
}

impl fmt::Display for Trained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, rows, numbers, output, .. } = self;
        write!(f, "{steps} steps on {rows} rows trained {numbers} numbers, which are in {output}")?;
        if self.resumed > 0 {
            write!(f, "\n{} of the steps were made before", self.resumed)?;
        }
        if self.cut > 0 {
            write!(f, "\n{} texts are longer than a row, and were cut up", self.cut)?;
        }
        if let Some(lost) = self.lost {
            write!(f, "\nthe merge lost {:.1} % of the change at most", 100.0 * lost)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        options: Options,
    }

    /// A large vocabulary takes long to read.
    #[test]
    fn rows_are_made_of_the_file_that_is_open() {
        let folder = tempfile::tempdir().expect("makes a folder");
        let at = |name: &str| folder.path().join(name);
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/decoder/golden/tokenizers/spm.gguf");
        fs::copy(golden, at("model.gguf")).expect("copies");
        fs::write(at("data.jsonl"), "{\"text\": \"Hello, world!\"}\n").expect("writes");
        let [model, data, output] = ["model.gguf", "data.jsonl", "adapter"].map(|name| at(name).into_os_string());
        let [train, lora, rank, of, to] = ["train", "--lora", "2", "--data", "-o"].map(OsString::from);
        let Alone { options } = Alone::parse_from([train, model, lora, rank, of, data, to, output]);
        let source = Source::find(&options.model);
        fs::remove_file(at("model.gguf")).expect("removes");
        let (rows, others) = rows(&options, source).expect("reads");
        assert!(rows.len() == 1 && others.is_none());
    }
}
