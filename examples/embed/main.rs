//! Embeds sentences with the pretrained encoder all-MiniLM-L6-v2, in float32 and with its weights held in few bits.
//!
//! The encoder is plain mlx-rs modules (`bert.rs`). Everything runs under `Policy::Deny`, so that a dense weight that is
//! built anywhere would be an error.
//!
//!     cargo run --release --features text --example embed -- --weights nf4:64,int8 sentences.txt

mod bert;
mod finetune;
mod pairs;
mod source;
mod text;

use std::collections::HashMap;
use std::error::Error;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{fs, slice};

use clap::Parser;
use mlx_rs::module::ModuleParameters;
use mlx_rs::{Array, memory};
use tacit::nn::ImplicitModule;
use tacit::prelude::*;

use bert::{Bert, Config};
use source::Source;
use text::{Text, Tokens, progress};

type Outcome<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Embeds sentences, one a line, and prints the nearest pairs
#[derive(Parser, Debug)]
struct Options {
    /// The file with the sentences; the standard input where it is left out
    file: Option<PathBuf>,
    #[command(flatten)]
    source: Source,
    /// What the weights of the linear layers become: `f32`, or formats such as `nf4:64`, `affine:4:64` and `int8`
    #[arg(long, value_delimiter = ',', default_value = "nf4:64")]
    weights: Vec<String>,
    /// The sentences of a batch
    #[arg(long, default_value_t = 32)]
    batch: usize,
    /// How many of the nearest pairs are printed
    #[arg(long, default_value_t = 5)]
    nearest: usize,
    /// Fine-tune
    #[arg(long)]
    finetune: bool,
    /// A safetensors file with the `embeddings` that float32 is compared with
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
}

/// The encoder with the parameters in `folder`.
fn encoder(folder: &Path) -> Outcome<Bert> {
    let config: Config = serde_json::from_slice(&fs::read(folder.join("config.json"))?)?;
    let mut bert = Bert::new(&config)?;
    let stored = Array::load_safetensors(folder.join("model.safetensors"))?;
    load(&mut bert, stored)?;
    Ok(bert)
}

/// Every parameter of the encoder takes its own array; what else is stored, such as a pooler, is left.
fn load(bert: &mut Bert, mut stored: HashMap<String, Array>) -> Outcome<()> {
    for (path, parameter) in bert.parameters_mut().flatten() {
        let name = bert::checkpoint_name(&path);
        let array = stored.remove(&name).ok_or_else(|| format!("the checkpoint has no {name}"))?;
        if array.shape() != parameter.shape() {
            return Err(format!("{name} is {:?}, and {path} is {:?}", array.shape(), parameter.shape()).into());
        }
        *parameter = array;
    }
    Ok(())
}

/// What an encoder made of the sentences, and what it took.
struct Row {
    name: String,
    embeddings: Array,
    bytes: usize,
    seconds: f64,
    peak: usize,
    materialized: u64,
}

fn embed(name: &str, folder: &Path, text: &Text, sentences: &[Tokens], options: &Options) -> Outcome<Row> {
    let bert = encoder(folder)?;
    let mut model = if name == "f32" {
        ImplicitModule::new(bert, Parameters::new())?
    } else {
        let format = tacit::format::parse(name)?;
        ImplicitModule::quantize(bert, |path, w| {
            let linear = path.starts_with("layers") && path.ends_with("weight") && w.ndim() == 2;
            linear.then(|| format.quantize(w)).transpose()
        })?
    };
    let bar = progress(name, sentences.len(), "sentences")?;
    let mut run = |batch: &bert::Batch| Ok(model.run(|bert| bert.embed(batch))?.dense()?);
    // The first batch reads the file, and compiles what is compiled.
    if let Some(first) = sentences.first() {
        run(&text.batch(&[first])?)?.eval()?;
    }
    memory::clear_cache()?;
    memory::reset_peak_memory()?;
    let start = Instant::now();
    let (embeddings, counters) = Counters::of(|| text.embedded(sentences, options.batch, &bar, run));
    let (embeddings, seconds) = (embeddings?, start.elapsed().as_secs_f64());
    bar.finish_and_clear();
    let (peak, materialized) = (memory::peak_memory()?, counters.materialized_bytes);
    Ok(Row { name: name.to_owned(), embeddings, bytes: model.nbytes(), seconds, peak, materialized })
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
        let rows: Vec<i32> = (first..total.min(first + ROWS)).collect();
        let block = embeddings.take_axis(Array::from_slice(&rows, &[rows.len() as i32]), 0)?;
        let cosines = block.matmul(embeddings.t())?;
        for (row, cosines) in rows.iter().map(|&row| row as usize).zip(cosines.try_as_slice::<f32>()?.chunks(total as usize)) {
            pairs.extend(cosines.iter().enumerate().skip(row + 1).map(|(other, &cosine)| (cosine, row, other)));
        }
        pairs.sort_by(|a, b| b.0.total_cmp(&a.0));
        pairs.truncate(count);
    }
    Ok(pairs)
}

fn main() -> Outcome<()> {
    let options = Options::parse();
    let _deny = Policy::Deny.scope();
    let folder = options.source.fetch()?;
    let text = Text::open(&folder)?;
    let mut input = String::new();
    match &options.file {
        Some(file) => input = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?,
        None => drop(io::stdin().read_to_string(&mut input)?),
    }
    let lines: Vec<&str> = input.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        return Err("there are no sentences: give one a line".into());
    }
    if options.finetune {
        let format = tacit::format::parse(&options.weights[0])?;
        return finetune::finetune(encoder(&folder)?, &*format, &text);
    }
    let sentences = text.tokens(&lines)?;

    let float = embed("f32", &folder, &text, &sentences, &options)?;
    if let Some(file) = &options.reference {
        let stored = Array::load_safetensors(file)?;
        let expected = stored.get("embeddings").ok_or("the reference has no `embeddings`")?;
        let largest: f32 = float.embeddings.subtract(expected)?.abs()?.max(None)?.try_item_exact()?;
        println!("float32 differs from the reference by at most {largest:.1e}");
    }
    let mut rows = Vec::new();
    for name in options.weights.iter().filter(|name| *name != "f32") {
        rows.push(embed(name, &folder, &text, &sentences, &options)?);
    }

    println!("{} sentences of {} tokens", lines.len(), sentences.iter().map(Vec::len).sum::<usize>());
    println!(
        "{:<14} {:>11} {:>12} {:>12} {:>12} {:>9} {:>19}",
        "weights", "mean cosine", "least cosine", "bytes", "sentences/s", "peak MB", "materialized bytes"
    );
    for row in slice::from_ref(&float).iter().chain(&rows) {
        let [mean, least] = cosines(&row.embeddings, &float.embeddings)?;
        let (rate, peak) = (lines.len() as f64 / row.seconds, row.peak as f64 / 1e6);
        let Row { name, bytes, materialized, .. } = row;
        println!("{name:<14} {mean:>11.5} {least:>12.5} {bytes:>12} {rate:>12.1} {peak:>9.1} {materialized:>19}");
    }
    let last = rows.last().unwrap_or(&float);
    println!("\nnearest by {}:", last.name);
    for (cosine, a, b) in nearest(&last.embeddings, options.nearest)? {
        println!("{cosine:.3}  {}\n       {}", lines[a], lines[b]);
    }
    Ok(())
}
