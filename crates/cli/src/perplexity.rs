//! `tacit perplexity`: how well a decoder predicts a text, in several formats.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, ValueEnum};
use serde::Serialize;
use tacit_arrays::format::AnyFormat;
use tacit_core::{Aval, Error, Policy, Result};
use tacit_io::{Progress, progress_bar};
use tacit_models::Windows;

use crate::decoding::Weights;
use crate::decoding::source::Source;
use crate::decoding::text;
use crate::table::Table;

#[derive(Args)]
#[command(group = ArgGroup::new("what").required(true).args(["text", "tokens"]))]
pub(crate) struct Options {
    /// A GGUF file, or a folder with config.json and tensors, of mlx-lm or of Hugging Face
    model: PathBuf,
    /// A file of text, which the model's tokenizer reads
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// A file of tokens: their numbers, with spaces, commas or ends of lines between them
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// What the weights of the products become, with commas between: formats, of which the embedding and the head have at
    /// least 6 bits, files of rules, or none, which leaves the weights as they are; codes of the checkpoint stay in any case
    #[arg(long, value_delimiter = ',', default_value = "none")]
    formats: Vec<String>,
    /// The folder of an adapter, of mlx-lm or of PEFT
    #[arg(long, value_name = "FOLDER")]
    lora: Option<PathBuf>,
    /// How many tokens a window has
    #[arg(long, value_name = "N", default_value_t = 512)]
    window: usize,
    /// The most windows that are read
    #[arg(long, value_name = "N")]
    windows: Option<usize>,
    /// Which tokens of a window count
    #[arg(long, value_enum, default_value_t = Convention::LlamaCpp)]
    convention: Convention,
}

/// Which tokens of a window count.
#[derive(Clone, Copy, PartialEq, Serialize, ValueEnum)]
enum Convention {
    /// Those of its later half; the first token of each window is the one that begins a text, where the tokenizer has one
    #[value(name = "llama.cpp")]
    #[serde(rename = "llama.cpp")]
    LlamaCpp,
    /// All but its first
    #[value(name = "mlx-lm")]
    #[serde(rename = "mlx-lm")]
    MlxLm,
}

/// What was measured.
#[derive(Serialize)]
pub(crate) struct Perplexities {
    formats: Vec<Row>,
    convention: Convention,
    window: usize,
    windows: usize,
    /// Those that counted.
    tokens: usize,
}

#[derive(Serialize)]
struct Row {
    format: String,
    perplexity: f64,
    standard_error: f64,
    /// Of all parameters.
    bits_per_weight: f64,
    bytes: usize,
}

pub(crate) fn perplexity(options: &Options) -> Result<Perplexities> {
    let _deny = Policy::Deny.scope();
    // What is wrong is said before anything is measured.
    for format in options.formats.iter().filter(|&format| format != "none" && Path::new(format).extension().is_none()) {
        format.parse::<AnyFormat>()?;
    }
    let (mut tokens, begin) = tokens(options)?;
    let length = options.window;
    tokens.truncate(options.windows.unwrap_or(usize::MAX).saturating_mul(length));
    let (convention, first) = match options.convention {
        Convention::LlamaCpp => (tacit_models::Convention::LlamaCpp, begin),
        Convention::MlxLm => (tacit_models::Convention::MlxLm, None),
    };
    let windows = Windows { tokens: &tokens, length, convention, first };
    let (mut formats, mut counted) = (Vec::new(), 0);
    for format in &options.formats {
        let weights = Some(format.clone()).filter(|format| format != "none");
        let (config, mut model) = Weights { weights, lora: options.lora.clone() }.read(&options.model)?;
        let mut bar = progress_bar();
        let found =
            tacit_models::perplexity(&config, &mut model, &windows, |done, total| bar(Progress { done, total }))?;
        counted = found.tokens;
        let bytes = model.nbytes();
        let elements: usize = model.avals().values().map(Aval::size).sum();
        formats.push(Row {
            format: format.clone(),
            perplexity: found.perplexity,
            standard_error: found.error,
            bits_per_weight: 8.0 * bytes as f64 / elements as f64,
            bytes,
        });
    }
    let windows = tokens.len() / length;
    Ok(Perplexities { formats, convention: options.convention, window: length, windows, tokens: counted })
}

/// The tokens of the text, and the one that begins a text, if there is one.
fn tokens(options: &Options) -> Result<(Vec<u32>, Option<u32>)> {
    let source = Source::of(&options.model)?;
    if let Some(file) = &options.tokens {
        let begin = if source.has_tokenizer() { text::begin(&source.tokenizer()?)? } else { None };
        return Ok((numbers(file)?, begin));
    }
    let file = options.text.as_deref().unwrap_or(Path::new(""));
    let text = fs::read_to_string(file).map_err(Error::file("read", file))?;
    let tokenizer = source.tokenizer()?;
    Ok((text::tokens(&tokenizer, &text, true)?, text::begin(&tokenizer)?))
}

/// The numbers in a file of tokens.
fn numbers(file: &Path) -> Result<Vec<u32>> {
    let text = fs::read_to_string(file).map_err(Error::file("read", file))?;
    // A list as JSON has it is one as well.
    let between = |c: char| c.is_whitespace() || [',', '[', ']'].contains(&c);
    let number = |word: &str| {
        word.parse().map_err(|_| {
            let help = "write the numbers of tokens alone, or give the text with `--text`";
            Error::checkpoint(file, None, format!("{word} is no number of a token"), help)
        })
    };
    text.split(between).filter(|word| !word.is_empty()).map(number).collect()
}

impl fmt::Display for Perplexities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&["format", ">perplexity", ">error", ">bits", ">bytes"]);
        for Row { format, perplexity, standard_error, bits_per_weight, bytes } in &self.formats {
            table.row([
                format.clone(),
                format!("{perplexity:.4}"),
                format!("{standard_error:.4}"),
                format!("{bits_per_weight:.3}"),
                bytes.to_string(),
            ]);
        }
        let (name, which) = match self.convention {
            Convention::LlamaCpp => ("llama.cpp", "the later half of each"),
            Convention::MlxLm => ("mlx-lm", "all but the first of each"),
        };
        let Self { tokens, windows, window, .. } = self;
        write!(f, "{table}\n{tokens} tokens in {windows} windows of {window} counted as {name} does: {which}")
    }
}
