//! The state of a run on the disk, from which the same command goes on.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use mlx_rs::optimizers::AdamW;
use tacit_core::{Error, Result, printable};
use tacit_files::{lock_work, make_folder};
use tacit_io::{CheckpointRotation, Training, sources};
use tacit_models::{Decoder, Formats};
use tacit_nn::{Model, ParameterFilter, QuantizedState};
use tacit_record::{Chart, Record, Recorder};

use super::options::Options;
use super::output::Written;
use super::own::Own;
use crate::decoding::source::states;
use crate::interruption;

/// The folder beside the output, and the record of the run.
pub(super) struct Saved {
    folder: PathBuf,
    /// Locked while somebody trains here.
    lock: File,
    rotation: CheckpointRotation,
    recorder: Recorder,
    latest: Option<Training>,
    /// What a run is recognized by.
    notes: Vec<(&'static str, String)>,
    own: Own,
    svg: Option<PathBuf>,
}

/// The record in the folder of a run that is asked for no other.
const RECORD: &str = "record.jsonl";

/// The number of saves that are kept: the ones before the latest are for whoever damages that one.
const KEPT: usize = 2;

impl Saved {
    /// Begins a run, or finds what an interrupted one has left.
    pub(super) fn open(options: &Options, steps: u64, written: &Written, model: &Model<Decoder>) -> Result<Self> {
        let notes = notes(options, steps, written.of_text())?;
        let folder = written.folder().to_owned();
        let is_new = !folder.exists();
        let new = make_folder(&folder)?;
        let lock = lock_work(&folder, "lock", &options.output)?.ok_or_else(|| {
            let place = printable::name(&folder.to_string_lossy()).into_owned();
            let help = "wait until it ends, or write to another place; of ranks that `tacit launch` starts each would train by itself";
            Error::invalid(format!("another program trains in {place}"), help)
        })?;
        let mut own = Own::read(&folder);
        // Before a record is begun, which may be elsewhere.
        let begun = written.rehearse(options, model).and_then(|()| begin(options, written, &notes, &mut own));
        if begun.is_err() && is_new {
            // A run that was refused leaves nothing. The lock is held, so that nobody else works there.
            drop(fs::remove_dir_all(&folder));
        }
        let (rotation, latest, recorder) = begun?;
        drop(new);
        Ok(Self { folder, lock, rotation, recorder, latest, notes, own, svg: options.svg.clone() })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Gives model and optimizer what they were, and says how many steps were made.
    pub(super) fn restore(&mut self, model: &mut Model<Decoder>, optimizer: &mut QuantizedState<AdamW>) -> Result<u64> {
        let Some(run) = self.latest.take() else { return Ok(0) };
        run.restore_model(model)?;
        run.restore_optimizer(optimizer)?;
        Ok(run.step)
    }

    pub(super) fn save(
        &mut self,
        step: u64,
        model: &Model<Decoder>,
        optimizer: &QuantizedState<AdamW>,
        trained: &ParameterFilter,
    ) -> Result<()> {
        self.recorder.memory(step)?;
        let run = Training::new(step).with_model(model, trained)?.with_optimizer(optimizer)?;
        let run = self.notes.iter().fold(run, |run, (name, text)| run.with_note(*name, text));
        self.rotation.save(&run).map(drop)
    }

    pub(super) fn scalar(&mut self, step: u64, name: &str, value: f64) -> Result<()> {
        self.recorder.scalar(step, name, value)
    }

    /// Draws the losses, where that is asked for.
    pub(super) fn draw(&mut self) -> Result<()> {
        let Some(file) = &self.svg else { return Ok(()) };
        let record = Record::read(self.recorder.path())?;
        let chart = Chart::new("loss by step").line("learned", record.scalar("loss")?);
        let chart = match record.scalar("evaluated") {
            Ok(evaluated) => chart.line("the other file", evaluated),
            Err(_) => chart,
        };
        self.own.add([file])?;
        chart.save(file)
    }

    /// Says of files that the run now writes them: where it is ended there, the same command replaces them.
    pub(super) fn claim(&mut self, files: &[PathBuf]) -> Result<()> {
        self.own.add(files)
    }

    /// Removes the folder, once what was trained is written.
    pub(super) fn finish(self) -> Result<()> {
        drop(self.recorder);
        // A run that is ended here goes on with the latest that is left, and knows what it has begun.
        for (_, file) in self.rotation.checkpoints()? {
            fs::remove_file(&file).map_err(Error::file("remove", &file))?;
        }
        // From here on the run is complete, and nothing of it goes on.
        self.own.forget()?;
        interruption::clear_up(None);
        let removed = fs::remove_dir_all(&self.folder);
        // A file system over a network keeps what is open there, under another name.
        drop(self.lock);
        let removed = removed.or_else(|error| fs::remove_dir(&self.folder).map_err(|_| error));
        removed.map_err(Error::file("remove", &self.folder))
    }
}

/// Begins a run in its folder, which is locked, or goes on with the one that is there: its checkpoints, the latest of them,
/// and its record.
fn begin(
    options: &Options,
    written: &Written,
    notes: &[(&str, String)],
    own: &mut Own,
) -> Result<(CheckpointRotation, Option<Training>, Recorder)> {
    let folder = written.folder();
    let rotation = CheckpointRotation::new(folder, KEPT)?;
    let latest = rotation.load_latest()?;
    if let Some(run) = &latest
        && let Some((name, now)) = notes.iter().find(|(name, now)| run.notes.get(*name) != Some(now))
    {
        let was = run.notes.get(*name).map_or("not there", String::as_str);
        let place = printable::name(&folder.to_string_lossy()).into_owned();
        let message = format!(
            "{place} holds another run, in which {name} was {}, and is {}",
            printable::name(was),
            printable::name(now)
        );
        return Err(Error::invalid(message, "give the same options to go on, or remove the folder to begin anew"));
    }
    // Another run may have come to its end since this was first looked at.
    written.check(options, own)?;
    let steps = latest.as_ref().map_or(0, |run| run.step);
    let recorder = match &options.record {
        Some(record) => {
            // What the run has not begun is another's record, and is not gone on with.
            let goes_on = steps > 0 && own.has(record);
            own.add([record])?;
            if goes_on { Recorder::resume(record, steps) } else { Recorder::create(record) }
        }
        None if steps > 0 => Recorder::resume(folder.join(RECORD), steps),
        None => Recorder::create(folder.join(RECORD)),
    }?;
    Ok((rotation, latest, recorder))
}

/// By what a run is known again: one of which any of it is another is another run.
fn notes(options: &Options, steps: u64, of_text: &[PathBuf]) -> Result<Vec<(&'static str, String)>> {
    let mut notes = options.described(steps);
    notes.push(("the model", states(&sources(&options.model)?)?));
    if let Some(Formats::Rules(rules)) = options.weights()? {
        notes.push(("what `--weights` says", rules.to_text()?));
    }
    notes.push(("the tokenizer", states(of_text)?));
    notes.push(("the data", states(std::slice::from_ref(&options.data))?));
    Ok(notes)
}
