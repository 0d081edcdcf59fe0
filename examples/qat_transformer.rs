//! Trains a transformer on the characters of the book of Genesis: in float32, quantized after training, and
//! quantization-aware, in 4 bits, 2 bits and ternary.
//!
//! The layers and the optimizer are mlx-rs's own and know nothing of quantization. Every pass on quantized weights runs under
//! `Policy::Deny`, so that a dense weight anywhere would be an error. After training, what was prepared is converted, and what
//! the converted model computes is the same to the bit. Each then goes on with a verse.
//!
//!     cargo run --release --example qat_transformer
//!     cargo run --release --example qat_transformer -- --quick

mod characters;

use std::ops::Range;
use std::time::Instant;

use characters::{Corpus, Outcome, Shape, TEXT, Transformer, bits, spread};
use indicatif::{ProgressBar, ProgressStyle};
use mlx_rs::module::{FlattenedModuleParam, Module};
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::optimizers::Adam;
use mlx_rs::{Array, ops, random};
use tacit::model::generate::{self, Sampler, generate};
use tacit::model::{Model, ParameterFilter, QatConfig};
use tacit::prelude::*;
use tacit::record::{Chart, Record, Recorder};
use tacit::tree;

/// How the verse begins that each model goes on with.
const VERSE: &str = "And God said";
const RECORD: &str = "target/qat_transformer.jsonl";
const CHART: &str = "target/qat_transformer.svg";
/// The projections of attention, both layers of each MLP, and the head; embeddings and norms stay as they are.
const QUANTIZED: &str = "{blocks.*,head}.weight";

/// How large and how long.
#[derive(Clone, Copy)]
struct Size {
    shape: Shape,
    batch: usize,
    /// Steps of plain training, and of the rest, which each method uses in its own way.
    common: usize,
    more: usize,
    /// Windows of the held-out text that a loss is taken of.
    held_out: usize,
}

const FULL: Size = Size {
    shape: Shape { dims: 128, blocks: 2, heads: 4, context: 64 },
    batch: 12,
    common: 600,
    more: 300,
    held_out: 64,
};
const QUICK: Size =
    Size { shape: Shape { dims: 64, blocks: 1, heads: 2, context: 32 }, batch: 8, common: 120, more: 80, held_out: 16 };

/// The methods after float32: a name, a format, and whether the scales are trained, too.
const METHODS: [(&str, &str, bool); 4] = [
    ("4-bit", "affine:4:64", false),
    ("2-bit", "affine:2:64", false),
    ("2-bit, scales", "affine:2:64", true),
    ("ternary", "ternary:64", false),
];

struct Trainer<'a> {
    corpus: &'a Corpus,
    held_out: &'a [u32],
    size: Size,
    bar: &'a ProgressBar,
    recorder: Recorder,
}

impl Trainer<'_> {
    /// Trains for some steps, whose numbers decide their batches, and records the loss of each.
    fn train(&mut self, model: &mut Model<Transformer>, name: &str, steps: Range<usize>) -> Outcome<()> {
        let Size { shape: Shape { context, .. }, batch, .. } = self.size;
        // A scale moves a whole block of weights, and is about as large as they are.
        let (mut optimizer, mut of_scales) = (Adam::new(1e-3), Adam::new(5e-5));
        for step in steps {
            let batch = self.corpus.batch(step, batch, context)?;
            // Scales are leaves only where they are trained.
            let trained = ParameterFilter::default().or(ParameterFilter::Scales);
            let (loss, gradients) =
                model.value_and_grad(trained, batch, |model, (x, y): (Array, Array)| bits(&model.forward(&x)?, &y))?;
            let (scales, others): (FlattenedModuleParam, FlattenedModuleParam) =
                gradients.into_iter().partition(|(path, _)| path.ends_with(".scales") || path.ends_with(".biases"));
            model.update(&mut optimizer, &others)?;
            model.update(&mut of_scales, &scales)?;
            tree::eval(&(&*model, &loss))?;
            self.recorder.scalar(step as u64 + 1, name, loss.try_item_exact::<f32>()?)?;
            self.bar.inc(1);
        }
        Ok(())
    }

    /// The loss on the held-out text.
    fn evaluate(&self, model: &mut Model<Transformer>) -> Outcome<f32> {
        let Size { shape: Shape { context, .. }, held_out, .. } = self.size;
        let (x, y) = spread(self.held_out, held_out, context);
        Ok(bits(&model.forward(&x)?, &y)?.try_item_exact::<f32>()?)
    }
}

/// What a model makes of a verse, one of the few likeliest characters after the other.
fn verse(model: &mut Model<Transformer>, corpus: &Corpus, size: Size) -> Result<String> {
    // The last characters are all that the model sees, and all that is kept from step to step.
    let step = |new: &Array, seen: &mut Array| -> Result<Array> {
        let all = ops::concatenate(&[&*seen, new], 1)?;
        *seen = all.try_index((.., (all.dim(1) - size.shape.context as i32).max(0)..))?;
        Ok(model.forward(&*seen)?.try_index((.., -1, ..))?)
    };
    let sampler = Sampler { temperature: 0.5, top_k: 5, ..Sampler::default() };
    let options =
        generate::GenerateOptions { sampler, seed: 1, max_tokens: 60, ..generate::GenerateOptions::default() };
    let mut seen = ops::zeros::<u32>(&[1, 0])?;
    let made = generate(step, &mut seen, &[corpus.numbers(VERSE)], &options)?;
    made.map(|token| Ok(char::from(corpus.characters[token?.id as usize]))).collect()
}

/// The bytes of the weights that a format may hold.
fn bytes(model: &Model<Transformer>) -> Outcome<usize> {
    let pattern: tacit::model::Pattern = QUANTIZED.parse()?;
    let mut bytes = 0;
    for (path, value) in model.values()? {
        let aval = value.aval()?;
        if aval.shape.len() > 1 && pattern.matches(&path, &aval) {
            bytes += value.nbytes();
        }
    }
    Ok(bytes)
}

/// One row of the table.
struct Row {
    name: String,
    bits: f32,
    bytes: usize,
    materialized: u64,
    /// What it makes of the verse.
    verse: String,
}

fn run(trainer: &mut Trainer<'_>) -> Outcome<Vec<Row>> {
    let Size { common, more, .. } = trainer.size;
    let mut rows = Vec::new();
    trainer.bar.set_message("float32");
    random::seed(0)?;
    let mut model = Model::new(Transformer::new(trainer.size.shape, trainer.corpus.characters.len())?)?;
    trainer.train(&mut model, "float32", 0..common)?;
    let halfway = model.clone();
    trainer.train(&mut model, "float32", common..common + more)?;
    let bits = trainer.evaluate(&mut model)?;
    let (corpus, size) = (trainer.corpus, trainer.size);
    let spoken = |model: &mut Model<Transformer>| verse(model, corpus, size);
    let verse = spoken(&mut model)?;
    rows.push(Row { name: "float32".to_owned(), bits, bytes: bytes(&model)?, materialized: 0, verse });
    for (name, text, trained_scales) in METHODS {
        let format: AnyFormat = text.parse()?;
        if !trained_scales {
            let mut quantized = model.clone().prepare(QUANTIZED, QatConfig::new(&format))?;
            quantized.convert()?;
            let (bits, counters) = Counters::during(|| trainer.evaluate(&mut quantized));
            let (name, materialized) = (format!("{name}, post-training"), counters.materialized_bytes);
            let (bytes, verse) = (bytes(&quantized)?, spoken(&mut quantized)?);
            rows.push(Row { name, bits: bits?, bytes, materialized, verse });
        }

        let name = format!("{name}, aware");
        trainer.bar.set_message(name.clone());
        let aware = QatConfig::new(format);
        let aware = if trained_scales { aware.trained_scales() } else { aware };
        let mut prepared = halfway.clone().prepare(QUANTIZED, aware)?;
        let (result, mut counters) = Counters::during(|| {
            trainer.train(&mut prepared, &name, common..common + more)?;
            trainer.evaluate(&mut prepared)
        });
        let before = result?;
        prepared.convert()?;
        let (bits, after) = Counters::during(|| trainer.evaluate(&mut prepared));
        let bits = bits?;
        if bits.to_bits() != before.to_bits() {
            return Err(format!("{name} has {before} bits prepared and {bits} converted").into());
        }
        counters.materialized_bytes += after.materialized_bytes;
        let materialized = counters.materialized_bytes;
        let verse = spoken(&mut prepared)?;
        rows.push(Row { name, bits, bytes: bytes(&prepared)?, materialized, verse });
    }
    Ok(rows)
}

fn main() -> Outcome<()> {
    let start = Instant::now();
    let size = if std::env::args().any(|arg| arg == "--quick") { QUICK } else { FULL };
    let (corpus, held_out) = Corpus::read();
    let bar = ProgressBar::new((size.common + size.more * (1 + METHODS.len())) as u64);
    bar.set_style(ProgressStyle::with_template("{msg:24} [{bar:40}] {pos}/{len} steps {elapsed}")?);
    let recorder = Recorder::create(RECORD)?;
    let mut trainer = Trainer { corpus: &corpus, held_out: &held_out, size, bar: &bar, recorder };
    let rows = {
        let _deny = Policy::Deny.scope();
        run(&mut trainer)?
    };
    bar.finish_and_clear();
    print_table(&rows, size);
    draw(size)?;
    println!("\nloss curves: {CHART}; {:.0} s in all", start.elapsed().as_secs_f64());
    Ok(())
}

fn print_table(rows: &[Row], size: Size) {
    let Size { shape: Shape { dims, blocks, .. }, common, more, .. } = size;
    println!("Genesis, {} characters; {blocks} blocks of {dims} dimensions, {common} + {more} steps\n", TEXT.len());
    println!("{:<24} {:>15} {:>13} {:>19}", "", "bits/character", "weight bytes", "materialized bytes");
    for Row { name, bits, bytes, materialized, .. } in rows {
        println!("{name:<24} {bits:>15.3} {bytes:>13} {materialized:>19}");
    }
    println!("\nAfter {VERSE:?}:");
    for Row { name, verse, .. } in rows {
        println!("{name:<24} {verse:?}");
    }
}

/// Draws the loss by step, as means of a few steps.
fn draw(size: Size) -> Outcome<()> {
    let record = Record::read(RECORD)?;
    let mut chart = Chart::new("training loss in bits/character").mark(size.common as u64, "in each format from here");
    for name in record.scalars() {
        chart = chart.line(name, record.scalar(name)?.means(10));
    }
    Ok(chart.save(CHART)?)
}
