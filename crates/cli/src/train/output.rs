//! What a run writes in the end.

use std::path::{Path, PathBuf};

use tacit_core::{Error, Result};
use tacit_files::Place;
use tacit_io::json::Json;
use tacit_io::{Library as Folders, ModelFolder, mlx_adapter, peft};
use tacit_models::Decoder;
use tacit_nn::Model;

use super::options::{Library, Merged, Options};

/// What is written, of which is checked before any work that it can be.
pub(super) enum Written {
    Adapter(Library),
    /// With what stands beside the tensors.
    Model {
        beside: Box<ModelFolder>,
        is_file: bool,
    },
}

impl Written {
    pub(super) fn of(options: &Options) -> Result<Self> {
        options.check()?;
        let output = &options.output;
        let is_file = output.extension().is_some_and(|ending| ending == "gguf");
        let written = if options.is_aware() || options.merged()?.is_some() {
            Self::Model { beside: Box::new(ModelFolder::of(&options.model)?), is_file }
        } else {
            Self::Adapter(options.library)
        };
        let inputs = [&options.model, &options.data].into_iter().chain(&options.evaluate);
        let files = match &written {
            Self::Model { is_file: true, .. } => vec![output.clone()],
            _ if output.exists() && !output.is_dir() => {
                let message = format!("{} is no folder", output.display());
                return Err(Error::invalid(message, "name a folder, which is made if it is not there"));
            }
            Self::Model { beside, .. } => {
                beside.names().chain(beside.stale(output)).map(|name| output.join(name)).collect()
            }
            Self::Adapter(Library::Peft) => {
                ["adapter_model.safetensors", "adapter_config.json"].map(|name| output.join(name)).to_vec()
            }
            Self::Adapter(Library::MlxLm) => {
                ["adapters.safetensors", "adapter_config.json"].map(|name| output.join(name)).to_vec()
            }
        };
        // What a folder that is not there holds is not looked for.
        let files =
            files.into_iter().filter(|file| file.exists() || matches!(&written, Self::Model { is_file: true, .. }));
        options.overwriting.check(files, inputs)?;
        Ok(written)
    }

    /// The folder of the run, beside the output.
    pub(super) fn beside(&self, output: &Path) -> Result<PathBuf> {
        let none =
            || Error::invalid(format!("{} has no name", output.display()), "name a folder that is made, or a file");
        let name = output.file_name().ok_or_else(none)?;
        if matches!(self, Self::Model { is_file: true, .. }) && Place::of(output)? == Place::Stream {
            return Err(Error::invalid("a run leaves its steps beside the output", "write to a file"));
        }
        Ok(output.with_file_name(format!(".{}.training", name.to_string_lossy())))
    }

    /// Writes what was trained: says the greatest part of a change that a merge has lost, if there was one.
    pub(super) fn write(&self, options: &Options, model: &mut Model<Decoder>) -> Result<Option<f64>> {
        let output = &options.output;
        let (beside, is_file) = match self {
            Self::Adapter(library) => {
                let config = Json::Object(Vec::new());
                let written = match library {
                    Library::Peft => peft::write(output, &model.adapters()?, &config),
                    // It says which layers of all of them have one.
                    Library::MlxLm => mlx_adapter::write(output, &model.values()?, &config),
                };
                return written.map(|()| None);
            }
            Self::Model { beside, is_file } => (beside, *is_file),
        };
        let lost = match options.merged()? {
            None => {
                model.convert()?;
                None
            }
            Some(merged) => {
                let report = match merged {
                    Merged::Format(format) => model.merge(format)?,
                    Merged::Floats => model.merge_exactly()?,
                };
                Some(report.rows.values().map(|row| row.loss.of_change).fold(0.0, f64::max))
            }
        };
        let parameters = model.values()?;
        if is_file {
            beside.write_gguf(output, &parameters, None)?;
        } else {
            beside.write(output, &parameters, Folders::Tacit)?;
        }
        Ok(lost)
    }
}
