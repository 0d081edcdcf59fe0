//! `tacit perplexity`: how well a decoder predicts a text, in several formats.

use std::fmt;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, ValueEnum};
use serde::Serialize;
use tacit_core::{Aval, Error, Policy, Result, printable};
use tacit_drawing::{Dot, Dots};
use tacit_files::replace;
use tacit_io::{Progress, progress_bar};
use tacit_models::{Formats, Windows};

use crate::decoding;
use crate::decoding::source::{Source, files_of_text};
use crate::decoding::text;
use crate::output::{Failure, Output};
use crate::overwriting::Overwriting;

#[derive(Args)]
#[command(group = ArgGroup::new("what").required(true).args(["text", "tokens"]))]
pub(crate) struct Options {
    /// A GGUF file, or a folder with config.json and tensors, of mlx-lm or of Hugging Face
    model: PathBuf,
    /// A file of text, which the model's tokenizer reads
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// A file of tokens: their numbers, with spaces, commas or ends of lines between them, or a list in JSON
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// What the weights of the products become: a format, of which the embedding and the head have at least 6 bits, a file of
    /// rules, or none, which leaves the weights as they are; may be given several times. Codes of the checkpoint stay
    #[arg(long, value_name = "FORMAT", default_value = "none")]
    formats: Vec<String>,
    /// The folder of an adapter, of mlx-lm or of PEFT
    #[arg(long, value_name = "FOLDER")]
    lora: Option<PathBuf>,
    /// Round activations to 8 bits in products with weights whose format has products of integers, as
    /// `tacit generate --int8` does
    #[arg(long)]
    int8: bool,
    /// How many tokens a window has
    #[arg(long, value_name = "N", default_value_t = 512)]
    window: usize,
    /// The most windows that are read
    #[arg(long, value_name = "N")]
    windows: Option<NonZero<usize>>,
    /// Which tokens of a window count
    #[arg(long, value_enum, default_value_t = Convention::LlamaCpp)]
    convention: Convention,
    /// Draw the perplexities with their errors into this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    #[command(flatten)]
    overwriting: Overwriting,
}

/// Which tokens of a window count.
#[derive(Clone, Copy, PartialEq, Serialize, ValueEnum)]
enum Convention {
    /// Those of its later half but the first; the first token of each window is replaced by the one that begins a text, where the
    /// tokenizer puts one there, and what looks like a special token in the text is text
    #[value(name = "llama.cpp")]
    #[serde(rename = "llama.cpp")]
    LlamaCpp,
    /// All but its first; what looks like a special token in the text is that token
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
    /// The tokens that counted.
    tokens: usize,
    /// Whether activations were rounded to 8 bits.
    int8: bool,
    /// The folder of the adapter, with U+FFFD for what is no UTF-8: serde refuses such a path.
    #[serde(skip_serializing_if = "Option::is_none")]
    adapter: Option<String>,
}

#[derive(Serialize)]
struct Row {
    format: String,
    perplexity: f64,
    /// `None` for a single token.
    standard_error: Option<f64>,
    /// The bits for a weight, over all parameters.
    bits_per_weight: f64,
    bytes: usize,
}

/// Measures and prints, for people row by row, so that what was measured stays where a later format fails.
pub(crate) fn perplexity(options: &Options, output: &mut Output) -> Result<(), Failure> {
    let _deny = Policy::Deny.scope();
    // What is wrong is said before anything is measured.
    let source = Source::find(&options.model);
    let of_text = files_of_text(&source);
    options.overwriting.check(options.svg.as_deref(), options.inputs().chain(of_text.iter().map(PathBuf::as_path)))?;
    let read = |text: &String| (text != "none").then(|| Formats::read(text)).transpose();
    let asked = options.formats.iter().map(read).collect::<Result<Vec<_>>>()?;
    let (mut tokens, first) = tokens(options, &source?)?;
    let length = options.window;
    tokens.truncate(options.windows.map_or(usize::MAX, NonZero::get).saturating_mul(length));
    let convention = match options.convention {
        Convention::LlamaCpp => tacit_models::Convention::LlamaCpp,
        Convention::MlxLm => tacit_models::Convention::MlxLm,
    };
    let windows = Windows { tokens: &tokens, length, convention, first };
    let labels: Vec<_> = options.formats.iter().map(|text| printable::name(text)).collect();
    let width = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0).max("format".len());
    let (mut formats, mut counted) = (Vec::new(), 0);
    for ((text, asked), label) in options.formats.iter().zip(&asked).zip(&labels) {
        let (config, mut model) = decoding::read(&options.model, asked.as_ref(), options.lora.as_deref())?;
        if options.int8 {
            decoding::round_activations(&mut model)?;
        }
        let mut bar = progress_bar();
        let measured =
            tacit_models::perplexity(&config, &mut model, &windows, |done, total| bar(Progress { done, total }))?;
        counted = measured.tokens;
        let bytes = model.nbytes();
        let elements: usize = model.avals().values().map(Aval::size).sum();
        let row = Row {
            format: text.clone(),
            perplexity: measured.perplexity,
            standard_error: measured.error,
            bits_per_weight: 8.0 * bytes as f64 / elements as f64,
            bytes,
        };
        if formats.is_empty() {
            output.piece(&line(width, ["format", "perplexity", "error", "bits", "bytes"]))?;
        }
        let [perplexity, error, bits] = row.cells();
        output.piece(&line(width, [label, &perplexity, &error, &bits, &bytes.to_string()]))?;
        formats.push(row);
    }
    let windows = tokens.len() / length;
    let measured = Perplexities {
        formats,
        convention: options.convention,
        window: length,
        windows,
        tokens: counted,
        int8: options.int8,
        adapter: options.lora.as_ref().map(|folder| folder.display().to_string()),
    };
    // What was measured is not lost where it cannot be drawn.
    output.show(&measured)?;
    if let Some(file) = &options.svg {
        replace(file, measured.chart().to_svg().as_bytes())?;
    }
    Ok(())
}

impl Options {
    /// What is read, with formats that may name files of rules.
    fn inputs(&self) -> impl Iterator<Item = &Path> {
        let files = [&self.text, &self.tokens, &self.lora].into_iter().flatten().chain([&self.model]);
        files.map(PathBuf::as_path).chain(self.formats.iter().map(Path::new))
    }
}

/// A row of the table, whose widths are known before its numbers are.
fn line(width: usize, [format, perplexity, error, bits, bytes]: [&str; 5]) -> String {
    format!("{format:<width$}  {perplexity:>12}  {error:>10}  {bits:>6}  {bytes:>12}\n")
}

/// The tokens of the text, and the one with which windows begin, if there is one.
fn tokens(options: &Options, source: &Source) -> Result<(Vec<u32>, Option<u32>)> {
    let begins = options.convention == Convention::LlamaCpp;
    if let Some(file) = &options.tokens {
        // A tokenizer is read only for what begins a text.
        let first = if begins && source.has_tokenizer()? { text::begin(&source.tokenizer()?)? } else { None };
        return Ok((numbers(file)?, first));
    }
    let file = options.text.as_deref().unwrap_or(Path::new(""));
    let text = fs::read_to_string(file).map_err(Error::file("read", file))?;
    let mut tokenizer = source.tokenizer()?;
    // A text that has the name of a special token, as `</s>`, means its letters to llama-perplexity, and the token to mlx-lm.
    tokenizer.set_encode_special_tokens(options.convention == Convention::LlamaCpp);
    let tokens = text::tokens(&tokenizer, &file.display().to_string(), &text, true)?;
    Ok((tokens, if begins { text::begin(&tokenizer)? } else { None }))
}

fn numbers(file: &Path) -> Result<Vec<u32>> {
    let text = fs::read_to_string(file).map_err(Error::file("read", file))?;
    // A JSON list is read as well.
    let between = |c: char| c.is_whitespace() || [',', '[', ']'].contains(&c);
    let number = |word: &str| {
        word.parse().map_err(|_| {
            let help = "write the numbers of tokens alone, or give the text with `--text`";
            // A file of text may have no space at all.
            let (end, more) = word.char_indices().nth(32).map_or((word.len(), ""), |(end, _)| (end, ".."));
            Error::checkpoint(file, None, format!("{}{more} is not the number of a token", &word[..end]), help)
        })
    };
    text.split(between).filter(|word| !word.is_empty()).map(number).collect()
}

impl Row {
    /// Perplexity, error and bits, as the table and the drawing have them.
    fn cells(&self) -> [String; 3] {
        let error = self.standard_error.map_or(String::new(), |error| format!("{error:.4}"));
        [format!("{:.4}", self.perplexity), error, format!("{:.3}", self.bits_per_weight)]
    }

    fn dot(&self) -> Dot {
        let [perplexity, error, bits] = self.cells();
        let around = if error.is_empty() { error } else { format!(" ± {error}") };
        Dot {
            label: printable::name(&self.format).into_owned(),
            text: format!("{perplexity}{around}, {bits} bits"),
            value: self.perplexity,
            spread: self.standard_error.map(|error| [self.perplexity - error, self.perplexity + error]),
            ours: true,
        }
    }
}

impl Perplexities {
    /// The perplexities, each with a bar from its error below it to its error above.
    fn chart(&self) -> Dots {
        let Self { formats, convention, tokens, .. } = self;
        let conditions = self.conditions();
        Dots {
            title: "Perplexity by format".to_owned(),
            axis: format!("perplexity of {tokens} tokens, counted as {} does{conditions}", convention.name()),
            groups: vec![(String::new(), formats.iter().map(Row::dot).collect())],
        }
    }

    /// How activations were rounded, and by which adapter weights were changed, behind what else is said of the numbers.
    fn conditions(&self) -> String {
        let rounded = if self.int8 { ", with activations in 8 bits" } else { "" };
        let adapter = self.adapter.as_ref().map(|folder| format!(", with the adapter {}", printable::name(folder)));
        format!("{rounded}{}", adapter.unwrap_or_default())
    }
}

impl Convention {
    fn name(self) -> &'static str {
        match self {
            Self::LlamaCpp => "llama.cpp",
            Self::MlxLm => "mlx-lm",
        }
    }
}

impl fmt::Display for Perplexities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let which = match self.convention {
            Convention::LlamaCpp => "the later half of each",
            Convention::MlxLm => "all but the first of each",
        };
        let Self { tokens, windows, window, convention, .. } = self;
        let (name, conditions) = (convention.name(), self.conditions());
        write!(f, "{tokens} tokens in {windows} windows of {window} counted as {name} does: {which}{conditions}")
    }
}
