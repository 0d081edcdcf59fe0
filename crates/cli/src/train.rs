//! `tacit train`: adapts a decoder to a file of texts.

mod data;
mod options;
mod output;
mod run;
mod saved;

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;
use tacit_core::{Policy, Result};
use tacit_models::Rows;

use crate::interruption;
use crate::output::{Failure, Output};

pub(crate) use options::Options;

/// What was trained.
#[derive(Serialize)]
pub(crate) struct Trained {
    steps: u64,
    /// Those that were made before this program began.
    resumed: u64,
    /// Rows of the data, and how many samples are in more than one of them.
    rows: usize,
    cut: usize,
    /// How many numbers were trained.
    numbers: usize,
    /// That of the last step.
    loss: Option<f64>,
    /// The mean loss of the tokens of the other file, at the end.
    evaluated: Option<f64>,
    /// How far the merged weights are from the trained ones: the greatest part of a change that was lost.
    lost: Option<f64>,
    peak_bytes: usize,
    output: PathBuf,
}

/// Trains, and prints a line for some of the steps as they are made.
pub(crate) fn train(options: &Options, output: &mut Output) -> Result<(), Failure> {
    let written = output::Written::of(options)?;
    let (config, model) = crate::decoding::read(&options.model, options.weights()?.as_ref(), None)?;
    let mut reader =
        data::Reader::of(&options.model, config.end_tokens.first().copied(), config.vocab_size.unsigned_abs())?;
    let samples = reader.read(&options.data)?;
    let length = options.length();
    let rows = if options.apart { Rows::apart(&samples, length) } else { Rows::packed(&samples, length, options.seed) };
    let rows = rows.map_err(|error| in_file(&options.data, &error))?;
    drop(samples);
    let others = options
        .evaluate
        .as_ref()
        .map(|file| Rows::apart(&reader.read(file)?, length).map_err(|error| in_file(file, &error)));
    let others = others.transpose()?;
    drop(reader);
    let mut model = options.prepared(model)?;
    let plan = options.plan(&rows);
    let mut saved = saved::Saved::open(options, plan.steps, &written)?;
    interruption::clear_up(Some(saved.folder()));
    let deny = Policy::Deny.scope();
    let run = run::Run { config: &config, rows: &rows, others: others.as_ref(), plan: &plan };
    let ended = run.run(&mut model, &mut saved, output)?;
    drop(deny);
    saved.draw()?;
    let numbers = model.leaves(&plan.trained).iter().map(|(_, leaf)| leaf.size()).sum();
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
        peak_bytes: ended.peak_bytes,
        output: options.output.clone(),
    })
}

fn in_file(file: &std::path::Path, error: &tacit_core::Error) -> tacit_core::Error {
    let place = tacit_core::printable::name(&file.to_string_lossy()).into_owned();
    tacit_core::Error::invalid(format!("{place}: {}", error.clause()), error.help().unwrap_or_default())
}

impl fmt::Display for Trained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, rows, numbers, output, .. } = self;
        write!(f, "{steps} steps on {rows} rows trained {numbers} numbers, which are in {}", output.display())?;
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
