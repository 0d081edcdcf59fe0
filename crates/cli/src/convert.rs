//! `tacit convert`: a checkpoint in the format of another program.

use std::path::{Path, PathBuf};
use std::{fmt, fs};

use clap::{Args, ValueEnum};
use serde::Serialize;
use tacit_core::{Error, Result, Value};
use tacit_files::{Place, Steady};
use tacit_io::bitsandbytes::BitsAndBytesLayout;
use tacit_io::{
    FileKind, GgufType, Library, ModelFolder, Writing, bitsandbytes, dense, hugging_face, layout, save_with,
};
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
    /// For gguf: what floats become, and codes that it has no type for: `f32`, `f16`, `bf16`, `q4_0`, `q4_1`, `q5_0`, `q5_1` or `q8_0`
    #[arg(long)]
    format: Option<String>,
    /// The folder that is written, for mlx-lm and hugging-face, or the file; for tacit a new name that does not end with
    /// .safetensors is a folder
    #[arg(short, long)]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    overwriting: Overwriting,
}

#[derive(Clone, Copy, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Target {
    /// Tacit's own file or folder, which holds whatever there is
    Tacit,
    /// mlx-lm's folder: affine, mxfp4, mxfp8 and nvfp4 codes, and symmetric codes and K-quants of 4 and 5 bits as affine ones; others become floats
    MlxLm,
    /// The folder of Hugging Face's libraries: floats
    HuggingFace,
    /// bitsandbytes' file: nf4, fp4 and int8 codes
    Bitsandbytes,
    /// llama.cpp's file, with configuration and tokenizer: floats, and codes that one of its types has
    Gguf,
    /// A file of floats under their own names
    Floats,
}

#[derive(Serialize)]
pub(crate) struct Written {
    read_by: String,
    target: Target,
    parameters: usize,
    before: usize,
    /// Nothing where a device or a pipe was given what is counted in the file.
    after: Option<usize>,
    /// Parameters in codes that the target does not have, and that are floats there.
    became_floats: usize,
    /// Parameters that were quantized anew, as `--format` asks.
    quantized: usize,
}

impl Target {
    /// Whose folder is written at a place, if it is one.
    fn library(self, output: &Path) -> Option<Library> {
        match self {
            Self::MlxLm => Some(Library::MlxLm),
            Self::HuggingFace => Some(Library::HuggingFace),
            // Names of models have points in them.
            Self::Tacit if output.is_dir() || (!output.exists() && !is_file_name(output)) => Some(Library::Tacit),
            Self::Tacit | Self::Bitsandbytes | Self::Gguf | Self::Floats => None,
        }
    }
}

fn is_file_name(output: &Path) -> bool {
    output.extension().is_some_and(|ending| ending == "safetensors")
}

pub(crate) fn convert(options: &Options) -> Result<Written> {
    let (input, output) = (&options.input, &options.output);
    let library = options.to.library(output);
    let others = others(options)?;
    if library.is_some() && output.exists() && !output.is_dir() {
        let reader = if library == Some(Library::MlxLm) { "mlx-lm" } else { "transformers" };
        return Err(Error::invalid(
            format!("{} is no folder, and {reader} reads one", output.display()),
            "name a folder, which is made if it is not there",
        ));
    }
    let is_gguf = matches!(options.to, Target::Gguf);
    // What is read of a folder is of one save.
    let steady = input.is_dir().then(|| Steady::at(input));
    // Before any work: the input may be large, and a file of the output in the way.
    let model = if library.is_some() || is_gguf { Some(ModelFolder::open(input)?) } else { None };
    let folder = library.zip(model.as_ref());
    let files = match &folder {
        Some((_, folder)) if output.exists() => {
            folder.names().chain(folder.stale(output)).map(|name| output.join(name)).collect()
        }
        Some(_) => Vec::new(),
        None => vec![output.clone()],
    };
    // Whether files can be made is tried.
    interruption::clear_up(None);
    options.overwriting.check(files, [input])?;
    let kind = FileKind::detect(input)?;
    let mut read = kind.read(input)?;
    drop(steady);
    if library == Some(Library::MlxLm) {
        // Before parameters are counted: the experts of a layer are one there.
        read = layout::as_mlx_lm(input, read)?;
    }
    let nbytes = |parameters: &Parameters| parameters.values().map(Value::nbytes).sum();
    let codes = |parameters: &Parameters| parameters.values().filter(|value| value.is_implicit()).count();
    let (before, codes_before) = (nbytes(&read), codes(&read));
    let parameters = match (library, options.to) {
        (Some(library), _) => library.holdable(input, read)?,
        (None, Target::Floats) => dense(read)?,
        _ => read,
    };
    let mut written = Written {
        read_by: kind.to_string(),
        target: options.to,
        parameters: parameters.len(),
        before,
        after: Some(nbytes(&parameters)),
        became_floats: codes_before.saturating_sub(codes(&parameters)),
        quantized: 0,
    };
    // They are given away, and let go of one by one as they are written.
    match (&folder, options.to) {
        (Some((library, folder)), _) => folder.write(output, parameters, *library)?,
        (None, Target::Gguf) => {
            let quantized = model.as_ref().map(|model| model.write_gguf(output, parameters, others));
            written.quantized = quantized.transpose()?.unwrap_or_default();
            let is_file = Place::at(output)? == Place::File;
            written.after = fs::metadata(output).ok().filter(|_| is_file).map(|file| file.len() as usize);
        }
        (None, Target::Bitsandbytes) => bitsandbytes::write(output, parameters, BitsAndBytesLayout::default())?,
        (None, Target::Floats) => hugging_face::write(output, parameters)?,
        (None, _) => save_with(output, parameters, Writing::default())?,
    }
    Ok(written)
}

/// The type of GGUF that is asked for.
fn others(options: &Options) -> Result<Option<GgufType>> {
    let Some(name) = &options.format else { return Ok(None) };
    if !matches!(options.to, Target::Gguf) {
        let help = "leave it out, or quantize by `tacit quantize` first";
        return Err(Error::invalid("`--format` is a type of GGUF, and another checkpoint is written", help));
    }
    let known = GgufType::named(name);
    let help = "take one of f32, f16, bf16, q4_0, q4_1, q5_0, q5_1 and q8_0";
    known.map(Some).ok_or_else(|| Error::invalid(format!("GGUF has no type {name}"), help))
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} parameters, {} bytes before", self.parameters, self.before)?;
        if let Some(after) = self.after {
            write!(f, ", {after} after")?;
        }
        if self.became_floats > 0 {
            let why = if matches!(self.target, Target::MlxLm) { ": mlx-lm does not have their format" } else { "" };
            write!(f, "\n{} are floats now{why}", self.became_floats)?;
        }
        if self.quantized > 0 {
            write!(f, "\n{} were quantized anew", self.quantized)?;
        }
        Ok(())
    }
}
