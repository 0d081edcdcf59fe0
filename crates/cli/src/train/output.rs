//! The output of a run.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use mlx_rs::random;
use tacit_arrays::{Adapter, Prepared, TrainedCodes};
use tacit_core::{Error, Result, Value};
use tacit_files::Place;
use tacit_io::json::Json;
use tacit_io::{Library as Folders, ModelFolder, mlx_adapter, peft};
use tacit_models::Decoder;
use tacit_nn::{Model, Parameters};

use super::options::{Library, Merged, Options};
use super::own::Own;
use crate::overwriting::{check_makes, is_one_file, spare};

/// What is written, of which is checked before any work that it can be.
pub(super) struct Written {
    what: What,
    /// The files of the output, and those that go where they come.
    files: Vec<PathBuf>,
    /// The files beside the model's tensors that say what tokens a text has.
    of_text: Vec<PathBuf>,
    /// The folder of the run, beside the output.
    folder: PathBuf,
}

enum What {
    Adapter(Library),
    /// With what stands beside the tensors.
    Model {
        beside: Box<ModelFolder>,
        is_file: bool,
    },
}

impl Written {
    pub(super) fn new(options: &Options, of_text: Vec<PathBuf>) -> Result<Self> {
        options.check()?;
        let output = &options.output;
        let is_file = output.extension().is_some_and(|ending| ending == "gguf");
        let what = if options.is_aware() || options.merged()?.is_some() {
            What::Model { beside: Box::new(ModelFolder::open(&options.model)?), is_file }
        } else {
            What::Adapter(options.library)
        };
        let files = match &what {
            What::Model { is_file: true, .. } => vec![output.clone()],
            _ if output.exists() && !output.is_dir() => {
                let message = format!("{} is no folder", output.display());
                return Err(Error::invalid(message, "name a folder, which is made if it is not there"));
            }
            What::Model { beside, .. } => {
                beside.names().chain(beside.stale(output)).map(|name| output.join(name)).collect()
            }
            What::Adapter(Library::Peft) => peft::files(output).to_vec(),
            What::Adapter(Library::MlxLm) => mlx_adapter::files(output).to_vec(),
        };
        let folder = beside(output, what.is_file())?;
        let written = Self { what, files, of_text, folder };
        written.check(options, &Own::read(&written.folder))?;
        Ok(written)
    }

    /// Checks that nothing that is written is read, or is two things at once, and that what is there already may go: it is the
    /// run's own, or `--force` was given.
    pub(super) fn check(&self, options: &Options, own: &Own) -> Result<()> {
        let output = &options.output;
        let told: Vec<&PathBuf> = options.record.iter().chain(&options.svg).collect();
        // What a folder that is not there holds is not looked for.
        let files = self.files.iter().filter(|_| self.what.is_file() || output.is_dir());
        let files_and_told: Vec<&PathBuf> = files.chain(told.iter().copied()).collect();
        spare(&files_and_told, options.inputs().iter().chain(&self.of_text))?;
        let is_trained = |file: &PathBuf| self.files.iter().chain([output]).any(|trained| is_one_file(file, trained));
        if let Some(file) = told.iter().find(|file| is_trained(file)) {
            let message = format!("{} is what is trained, and would be overwritten", file.display());
            return Err(Error::invalid(message, "give each a place of its own"));
        }
        if options.record.as_ref().zip(options.svg.as_ref()).is_some_and(|(record, svg)| is_one_file(record, svg)) {
            return Err(Error::invalid("the record and the drawing are one file", "give each a place of its own"));
        }
        let is_stream = |file: &PathBuf| fs::metadata(file).is_ok_and(|there| !there.is_file());
        if options.svg.is_some() && options.record.as_ref().is_some_and(is_stream) {
            let message = "a drawing is made of the record, which is a device or a pipe";
            return Err(Error::invalid(message, "record to a file, or leave `--svg` out"));
        }
        let others = files_and_told.into_iter().filter(|file| !own.has(file));
        others.map(PathBuf::as_path).try_for_each(|file| options.overwriting.check_free(file))?;
        // The drawing is made when all steps are.
        told.into_iter().map(PathBuf::as_path).try_for_each(check_makes)
    }

    pub(super) fn files(&self) -> &[PathBuf] {
        &self.files
    }

    pub(super) fn of_text(&self) -> &[PathBuf] {
        &self.of_text
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Tells before any step is made what cannot be written: an adapter that is not trained yet is written into the folder of the
    /// run, and removed; a GGUF file is planned. Tacit's folder of a model holds whatever there is.
    pub(super) fn rehearse(&self, options: &Options, model: &Model<Decoder>) -> Result<()> {
        match &self.what {
            What::Adapter(library) => {
                let folder = self.folder.join("rehearsal");
                write_adapter(*library, &folder, model)?;
                fs::remove_dir_all(&folder).map_err(Error::file("remove", &folder))
            }
            What::Model { beside, is_file: true } => {
                let planned = beside.check_gguf(&options.output, &stored(options, model)?, None);
                let help = "name a folder, which holds any model, or take a format that GGUF has, such as mxfp4";
                planned.map_err(|error| with_help(error, help))
            }
            What::Model { is_file: false, .. } => Ok(()),
        }
    }

    /// Writes what was trained: says the greatest part of a change that a merge has lost, if there was one.
    pub(super) fn write(&self, options: &Options, model: &mut Model<Decoder>) -> Result<Option<f64>> {
        let output = &options.output;
        let (beside, is_file) = match &self.what {
            What::Adapter(library) => return write_adapter(*library, output, model).map(|()| None),
            What::Model { beside, is_file } => (beside, *is_file),
        };
        let lost = match options.merged()? {
            None => {
                model.convert()?;
                None
            }
            Some(Merged::Format(format)) => Some(model.merge(format)?.worst_of_change()),
            // Half floats round a sum that each step had in full, which no report counts.
            Some(Merged::Floats) => model.merge_exactly().map(|_| None)?,
        };
        let parameters = model.values()?;
        if is_file {
            // Of scales that were trained one may be beyond what its type holds.
            beside
                .write_gguf(output, &parameters, None)
                .map_err(|error| with_help(error, self.way_to_a_folder(output)))?;
        } else {
            beside.write(output, &parameters, Folders::Tacit)?;
        }
        Ok(lost)
    }

    /// How a run that has made its steps goes on to a folder in the place of a file.
    fn way_to_a_folder(&self, file: &Path) -> String {
        // The name alone may be that of the model's own folder.
        let names = ["", "folder"].map(|ending| file.with_extension(ending));
        let folder = names.iter().find(|folder| !folder.exists()).unwrap_or(&names[1]);
        let kept = beside(folder, false).unwrap_or_default();
        format!(
            "the steps are kept: rename {} to {}, and the same command with `-o {}` writes a folder, which holds any model",
            self.folder.display(),
            kept.display(),
            folder.display()
        )
    }
}

/// The parameters as they will be written, with other numbers in the place of those that are trained: of the ones that they begin
/// with, scales may be halves by chance.
fn stored(options: &Options, model: &Model<Decoder>) -> Result<Parameters> {
    let merged = options.merged()?;
    let (merges, merged) = (merged.is_some(), merged.and_then(Merged::format));
    let mut known: BTreeMap<(String, Option<String>), Value> = BTreeMap::new();
    let mut parameters = model.values()?;
    for value in parameters.values_mut() {
        let of_master = value.downcast::<Prepared>().map(|prepared| &**prepared.format());
        let of_codes = value.downcast::<TrainedCodes>().and_then(|trained| trained.format().stochastic());
        let format = match of_master.or(of_codes) {
            Some(format) => Some(format),
            // Those that are there already stay where none are merged, and are refused now as they would be in the end.
            None if merges && value.family::<dyn Adapter>().is_some() => merged.as_deref(),
            None => continue,
        };
        let aval = value.aval()?;
        let other = match known.entry((aval.to_string(), format.map(ToString::to_string))) {
            Entry::Occupied(known) => known.get().clone(),
            Entry::Vacant(place) => {
                let numbers = random::normal::<f32>(&aval.shape, None, None, &random::key(0)?)?.as_dtype(aval.dtype)?;
                let other = match format {
                    Some(format) => format.quantize(&numbers)?,
                    None => numbers.into(),
                };
                place.insert(other).clone()
            }
        };
        *value = other;
    }
    Ok(parameters)
}

/// What is wrong with a file, with another way out.
fn with_help(error: Error, help: impl Into<String>) -> Error {
    match error {
        Error::Checkpoint { file, key, reason, .. } => Error::Checkpoint { file, key, reason, help: Some(help.into()) },
        other => other,
    }
}

impl What {
    /// Whether it is one file, and no folder.
    fn is_file(&self) -> bool {
        matches!(self, Self::Model { is_file: true, .. })
    }
}

fn write_adapter(library: Library, output: &Path, model: &Model<Decoder>) -> Result<()> {
    let mut config = Json::Object(Vec::new());
    match library {
        Library::Peft => {
            let adapters = model.adapters()?;
            // A step adapts a head that is the embedding too, and PEFT does if it is told.
            if adapters.contains_key("model.embed_tokens.weight") && model.get("lm_head.weight").is_err() {
                config.set("ensure_weight_tying", Json::Bool(true));
            }
            peft::write(output, &adapters, &config)
        }
        // It says which layers of all of them have one.
        Library::MlxLm => mlx_adapter::write(output, &model.values()?, &config),
    }
}

/// The folder of a run, beside its output.
fn beside(output: &Path, is_file: bool) -> Result<PathBuf> {
    let none = || Error::invalid(format!("{} has no name", output.display()), "name a folder that is made, or a file");
    let name = output.file_name().ok_or_else(none)?;
    if is_file && Place::at(output)? == Place::Stream {
        return Err(Error::invalid("a run leaves its steps beside the output", "write to a file"));
    }
    // A name may be no text.
    let parts = [OsStr::new("."), name, OsStr::new(".training")];
    Ok(output.with_file_name(parts.into_iter().collect::<OsString>()))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn steps_whose_file_cannot_be_written_go_on_to_a_folder() {
        let folder = PathBuf::from("run/.m.gguf.training");
        let what = What::Adapter(Library::Peft);
        let written = Written { what, files: Vec::new(), of_text: Vec::new(), folder };
        let file = Path::new("run/m.gguf");
        let error = Error::checkpoint(file, Some("blk.0.ffn_up.weight"), "it has no type", "take another");
        expect![[r#"
            run/m.gguf: blk.0.ffn_up.weight: it has no type
            help: the steps are kept: rename run/.m.gguf.training to run/.m.training, and the same command with `-o run/m` writes a folder, which holds any model"#]]
        .assert_eq(&with_help(error, written.way_to_a_folder(file)).to_string());
    }

    /// It may be that of the model, which is read.
    #[test]
    fn steps_do_not_go_on_to_a_folder_that_is_there() {
        let place = std::env::temp_dir().join(format!("tacit-output-{}", std::process::id()));
        fs::create_dir_all(place.join("m")).expect("makes a folder");
        let folder = place.join(".m.gguf.training");
        let what = What::Adapter(Library::Peft);
        let written = Written { what, files: Vec::new(), of_text: Vec::new(), folder };
        let said = written.way_to_a_folder(&place.join("m.gguf"));
        fs::remove_dir_all(&place).expect("removes it");
        expect!["the steps are kept: rename PLACE/.m.gguf.training to PLACE/.m.folder.training, and the same command with `-o PLACE/m.folder` writes a folder, which holds any model"]
            .assert_eq(&said.replace(&*place.to_string_lossy(), "PLACE"));
    }
}
