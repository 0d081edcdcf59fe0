//! `tacit convert`: a checkpoint in the way of another program.

use std::fmt;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;
use tacit_core::{Error, Result, Value};
use tacit_files::folder_of;
use tacit_io::bitsandbytes::BitsAndBytesLayout;
use tacit_io::json::Json;
use tacit_io::mlx_lm::{self, Config};
use tacit_io::{FileKind, bitsandbytes, dense, hugging_face, save};
use tacit_nn::Parameters;

use crate::interruption;
use crate::overwriting::Overwriting;

#[derive(Args)]
pub(crate) struct Options {
    /// A file or a folder, of Tacit's or of another program's
    input: PathBuf,
    /// Whose checkpoint is written
    #[arg(long = "as", value_enum)]
    to: Target,
    /// The file that is written; for mlx-lm a folder
    #[arg(short, long)]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    overwriting: Overwriting,
}

#[derive(Clone, Copy, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Target {
    /// Tacit's own file, which holds whatever there is
    Tacit,
    /// mlx-lm's folder: affine, mxfp4, mxfp8 and nvfp4 codes
    MlxLm,
    /// bitsandbytes' file: nf4, fp4 and int8 codes
    Bitsandbytes,
    /// Dense tensors under their own names, as Hugging Face has them
    Floats,
}

/// The files of mlx-lm's folder.
const MLX_LM: [&str; 2] = ["model.safetensors", "config.json"];

/// What was written.
#[derive(Serialize)]
pub(crate) struct Written {
    read_by: String,
    target: Target,
    parameters: usize,
    before: usize,
    after: usize,
}

pub(crate) fn convert(options: &Options) -> Result<Written> {
    let output = &options.output;
    let is_folder = matches!(options.to, Target::MlxLm);
    if is_folder && output.exists() && !output.is_dir() {
        return Err(Error::invalid(
            format!("{} is no folder, and mlx-lm reads one", output.display()),
            "name a folder, which is made if it is not there",
        ));
    }
    let files = if !is_folder {
        vec![output.clone()]
    } else if output.exists() {
        MLX_LM.map(|name| output.join(name)).to_vec()
    } else {
        Vec::new()
    };
    options.overwriting.check(files, [&options.input])?;
    interruption::clear_up(None);
    let kind = FileKind::of(&options.input)?;
    let parameters = kind.read(&options.input)?;
    let nbytes = |parameters: &Parameters| parameters.values().map(Value::nbytes).sum();
    let before = nbytes(&parameters);
    let parameters = if matches!(options.to, Target::Floats) { dense(&parameters)? } else { parameters };
    match options.to {
        Target::Tacit => save(output, &parameters)?,
        Target::Bitsandbytes => bitsandbytes::write(output, &parameters, BitsAndBytesLayout::default())?,
        Target::Floats => hugging_face::write(output, &parameters)?,
        Target::MlxLm => {
            // The configuration of the model itself goes along where there is one.
            let folder = if options.input.is_dir() { options.input.as_path() } else { folder_of(&options.input) };
            let config = Json::open_if_there(folder.join("config.json"))?;
            let config = config.unwrap_or_else(|| Json::Object(Vec::new()));
            mlx_lm::write(output, &parameters, &Config::new(config))?;
        }
    }
    Ok(Written {
        read_by: kind.to_string(),
        target: options.to,
        parameters: parameters.len(),
        before,
        after: nbytes(&parameters),
    })
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} parameters, {} bytes before, {} after", self.parameters, self.before, self.after)
    }
}
