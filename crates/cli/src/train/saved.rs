//! What a run leaves on the disk, so that the same command goes on where it was.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use mlx_rs::optimizers::AdamW;
use tacit_core::{Error, Result, printable};
use tacit_files::{lock_work, make_folder};
use tacit_io::{FileState, Rotation, Training, sources};
use tacit_models::{Decoder, Formats};
use tacit_nn::{Model, ParameterFilter, QuantizedState};
use tacit_record::{Chart, Record, Recorder};

use super::options::Options;
use super::output::Written;
use crate::decoding::source::Source;
use crate::overwriting::{is_one_file, spare};

/// The folder beside the output, and the record of the run.
pub(super) struct Saved {
    folder: PathBuf,
    /// Locked while somebody trains here.
    _lock: File,
    rotation: Rotation,
    recorder: Recorder,
    latest: Option<Training>,
    /// By which a run is known again.
    notes: Vec<(&'static str, String)>,
    svg: Option<PathBuf>,
}

/// Files beside the tensors that say what tokens a text has.
const OF_TEXT: [&str; 3] = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];

/// Those before the latest are for whoever damages that one.
const KEPT: usize = 2;

impl Saved {
    /// Begins a run, or finds what an interrupted one has left.
    pub(super) fn open(options: &Options, steps: u64, written: &Written) -> Result<Self> {
        let folder = written.beside(&options.output)?;
        let new = make_folder(&folder)?;
        let lock = lock_work(&folder, "lock", &options.output)?.ok_or_else(|| {
            let place = printable::name(&folder.to_string_lossy()).into_owned();
            let help = "wait until it ends, or write to another place";
            Error::invalid(format!("another program trains in {place}"), help)
        })?;
        let mut notes = options.described(steps);
        notes.push(("the model", state(&sources(&options.model)?)?));
        if let Some(Formats::Rules(rules)) = options.weights()? {
            notes.push(("what `--weights` says", rules.to_text()?));
        }
        let source = Source::of(&options.model)?;
        let of_text = OF_TEXT.iter().filter_map(|name| source.beside(name)).collect::<Vec<_>>();
        notes.push(("the tokenizer", state(&of_text)?));
        notes.push(("the data", state(std::slice::from_ref(&options.data))?));
        let rotation = Rotation::new(&folder, KEPT)?;
        let latest = rotation.load_latest()?;
        if let Some(run) = &latest
            && let Some((name, own)) = notes.iter().find(|(name, own)| run.notes.get(*name) != Some(own))
        {
            let was = run.notes.get(*name).map_or("not there", String::as_str);
            let place = printable::name(&folder.to_string_lossy()).into_owned();
            let message = format!(
                "{place} holds another run, in which {name} was {}, and is {}",
                printable::name(was),
                printable::name(own)
            );
            return Err(Error::invalid(message, "give the same options to go on, or remove the folder to begin anew"));
        }
        let made = latest.as_ref().map_or(0, |run| run.step);
        let read = [&options.model, &options.data].into_iter().chain(&options.evaluate).chain(&of_text);
        spare(&[&options.record, &options.svg].into_iter().flatten().collect::<Vec<_>>(), read)?;
        // A record begins in the place of another one, and a run that goes on has written both before.
        for file in [&options.record, &options.svg].into_iter().flatten().filter(|_| made == 0) {
            options.overwriting.check_free(file)?;
        }
        if options.record.as_ref().zip(options.svg.as_ref()).is_some_and(|(record, svg)| is_one_file(record, svg)) {
            return Err(Error::invalid("the record and the drawing are one file", "give each a place of its own"));
        }
        let record = options.record.clone().unwrap_or_else(|| folder.join("record.jsonl"));
        let recorder = if made == 0 { Recorder::create(record) } else { Recorder::resume(record, made) }?;
        drop(new);
        Ok(Self { folder, _lock: lock, rotation, recorder, latest, notes, svg: options.svg.clone() })
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
    pub(super) fn draw(&self) -> Result<()> {
        let Some(file) = &self.svg else { return Ok(()) };
        let record = Record::read(self.recorder.path())?;
        let chart = Chart::new("loss by step").line("learned", record.scalar("loss")?);
        let chart = match record.scalar("evaluated") {
            Ok(evaluated) => chart.line("the other file", evaluated),
            Err(_) => chart,
        };
        chart.save(file)
    }

    /// Removes the folder, once what was trained is written.
    pub(super) fn finish(self) -> Result<()> {
        drop(self.recorder);
        fs::remove_dir_all(&self.folder).map_err(Error::file("remove", &self.folder))
    }
}

/// By which files are known again: their names, sizes and times of their last change.
fn state(files: &[PathBuf]) -> Result<String> {
    let one = |file: &PathBuf| {
        let FileState { path, bytes, changed } = FileState::of(file)?;
        Ok(format!("{} of {bytes} bytes at {changed}", path.display()))
    };
    Ok(files.iter().map(one).collect::<Result<Vec<_>>>()?.join(", "))
}
