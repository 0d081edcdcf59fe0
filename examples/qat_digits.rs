//! Trains a classifier of handwritten digits: in float32, quantized after training, and quantization-aware.
//!
//! The layers and the optimizer are mlx-rs's own and know nothing of quantization. Every forward pass on quantized
//! weights runs under `Policy::Deny`, so that a dense weight anywhere would be an error.
//!
//!     cargo run --release --example qat_digits

#[path = "data/digits.rs"]
mod digits;

use std::error::Error;
use std::ops::Range;
use std::rc::Rc;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use mlx_rs::losses::{CrossEntropy, CrossEntropyBuilder};
use mlx_rs::module::{FlattenedModuleParam, Module, ModuleParameters};
use mlx_rs::nn::{self, Sequential};
use mlx_rs::optimizers::{Adam, Optimizer};
use mlx_rs::{Array, builder::Builder, ops, random, transforms};
use tacit::format::Affine;
use tacit::model::with_parameters;
use tacit::prelude::*;
use tacit::record::{Chart, Record, Recorder};

use digits::{Digits, shuffled};

type Outcome<T> = std::result::Result<T, Box<dyn Error>>;

const SEEDS: [u64; 3] = [0, 1, 2];
const TRAIN: usize = 1437;
const BATCH: usize = 64;
/// Epochs of plain training, and of the rest, which each method uses in its own way.
const EPOCHS: usize = 30;
const MORE: usize = 30;
const RECORD: &str = "target/qat_digits.jsonl";
const CHART: &str = "target/qat_digits.svg";

/// A way to quantize a weight matrix.
type Rule = fn(&Array) -> Result<Value>;

/// The methods after float32: a name, and how a weight becomes implicit.
const RULES: [(&str, Rule); 2] = [
    ("NF4", |w| Ok(Nf4Array::quantize(w, 64)?.into())),
    ("affine 2-bit", |w| Ok(AffineArray::quantize(w, Affine { bits: 2, group: 64 })?.into())),
];

fn classifier() -> Outcome<Sequential> {
    Ok(Sequential::new()
        .append(nn::Linear::new(64, 64)?)
        .append(nn::Relu)
        .append(nn::Linear::new(64, 64)?)
        .append(nn::Relu)
        .append(nn::Linear::new(64, 10)?))
}

/// The weight matrices are quantized, the biases are not.
fn chosen(path: &str, w: &Array, rule: Rule) -> Result<Option<Value>> {
    path.ends_with("weight").then(|| rule(w)).transpose()
}

fn snapshot(model: &Sequential) -> FlattenedModuleParam {
    model.parameters().flatten().into_iter().map(|(path, array)| (Rc::clone(&path), array.clone())).collect()
}

struct Trainer<'a> {
    train: &'a Digits,
    seed: u64,
    bar: &'a ProgressBar,
    /// Of the first seed.
    recorder: Option<Recorder>,
}

impl Trainer<'_> {
    /// Trains for some epochs, through straight-through weights where there is a rule, and records the mean loss of each.
    fn train(&mut self, model: &mut Sequential, name: &str, epochs: Range<usize>, rule: Option<Rule>) -> Outcome<()> {
        let cross_entropy: CrossEntropy =
            CrossEntropyBuilder::new().reduction(mlx_rs::losses::LossReduction::Mean).build()?;
        let loss = move |model: &mut Sequential, (x, y): (Array, Array)| {
            let logits = match rule {
                None => model.forward(&x)?,
                Some(rule) => {
                    let weights = straight_through(model, |path, w| chosen(path, w, rule))?;
                    with_parameters(model, &weights, |model| model.forward(&x))?.dense()?
                }
            };
            cross_entropy.apply(&logits, &y)
        };
        let mut step = nn::value_and_grad(loss);
        let mut optimizer = Adam::new(1e-3);
        let first = epochs.start;
        for epoch in epochs {
            // Each method has the same order of examples in its second half as the first had.
            let order = shuffled(self.train.labels.size(), self.seed * 1000 + (epoch - first) as u64)?;
            let mut losses = Vec::new();
            for rows in order.chunks_exact(BATCH) {
                let batch = self.train.select(rows)?;
                let (value, gradients) = step(model, (batch.images, batch.labels))?;
                optimizer.update(model, gradients)?;
                transforms::eval(model.parameters().flatten().values().copied().chain([&value]))?;
                losses.push(value.try_item_exact::<f32>()?);
            }
            if let Some(recorder) = &mut self.recorder {
                recorder.scalar(epoch as u64 + 1, name, losses.iter().sum::<f32>() / losses.len() as f32)?;
            }
            self.bar.inc(1);
        }
        Ok(())
    }
}

/// The percentage of `test` that the model gets right, with its weights quantized where there is a rule; and the bytes
/// of the weight matrices.
fn evaluate(model: &mut Sequential, test: &Digits, rule: Option<Rule>) -> Outcome<(f64, usize)> {
    let weights = match rule {
        None => Parameters::new(),
        Some(rule) => quantized(model, |path, w| chosen(path, w, rule))?,
    };
    let logits = with_parameters(model, &weights, |model| model.forward(&test.images))?.dense()?;
    let right = ops::indexing::argmax_axis(&logits, 1, None)?.eq(&test.labels)?.as_type::<f32>()?.mean(None)?;
    let bytes = model
        .parameters()
        .flatten()
        .iter()
        .filter(|(path, _)| path.ends_with("weight"))
        .map(|(path, dense)| weights.get(&**path).map_or(dense.nbytes(), Value::nbytes))
        .sum();
    Ok((f64::from(right.try_item_exact::<f32>()?) * 100.0, bytes))
}

/// One row of the table, over all seeds.
struct Row {
    name: String,
    accuracies: Vec<f64>,
    bytes: usize,
    materialized: u64,
}

fn row<'a>(rows: &'a mut Vec<Row>, name: &str) -> &'a mut Row {
    let found = rows.iter().position(|row| row.name == name).unwrap_or_else(|| {
        rows.push(Row { name: name.to_owned(), accuracies: Vec::new(), bytes: 0, materialized: 0 });
        rows.len() - 1
    });
    &mut rows[found]
}

fn main() -> Outcome<()> {
    let start = Instant::now();
    let digits = Digits::load();
    let bar = ProgressBar::new((SEEDS.len() * (EPOCHS + MORE * (1 + RULES.len()))) as u64);
    bar.set_style(ProgressStyle::with_template("{msg:24} [{bar:40}] {pos}/{len} epochs {elapsed}")?);
    let mut rows: Vec<Row> = Vec::new();
    let _deny = Policy::Deny.scope();
    for seed in SEEDS {
        let order = shuffled(digits.labels.size(), seed)?;
        let (train, test) = (digits.select(&order[..TRAIN])?, digits.select(&order[TRAIN..])?);
        let recorder = (seed == SEEDS[0]).then(|| Recorder::create(RECORD)).transpose()?;
        let mut trainer = Trainer { train: &train, seed, bar: &bar, recorder };

        bar.set_message("float32");
        random::seed(seed)?;
        let mut model = classifier()?;
        trainer.train(&mut model, "float32", 0..EPOCHS, None)?;
        let halfway = snapshot(&model);
        trainer.train(&mut model, "float32", EPOCHS..EPOCHS + MORE, None)?;
        let (result, counters) = Counters::during(|| evaluate(&mut model, &test, None));
        let (accuracy, bytes) = result?;
        let mut add = |name: &str, accuracy: f64, bytes: usize, counters: Counters| {
            let row = row(&mut rows, name);
            row.accuracies.push(accuracy);
            row.bytes = bytes;
            row.materialized += counters.materialized_bytes;
        };
        add("float32", accuracy, bytes, counters);
        for (name, rule) in RULES {
            let (result, counters) = Counters::during(|| evaluate(&mut model, &test, Some(rule)));
            let (accuracy, bytes) = result?;
            add(&format!("{name}, post-training"), accuracy, bytes, counters);
        }
        for (name, rule) in RULES {
            let name = format!("{name}, aware");
            bar.set_message(name.clone());
            model.update_flattened(halfway.clone());
            let (result, counters) = Counters::during(|| -> Outcome<_> {
                trainer.train(&mut model, &name, EPOCHS..EPOCHS + MORE, Some(rule))?;
                evaluate(&mut model, &test, Some(rule))
            });
            let (accuracy, bytes) = result?;
            add(&name, accuracy, bytes, counters);
        }
    }
    bar.finish_and_clear();
    print_table(&rows);
    draw()?;
    println!("\nloss curves: {CHART}; {:.0} s in all", start.elapsed().as_secs_f64());
    Ok(())
}

fn print_table(rows: &[Row]) {
    println!("1,797 handwritten digits, {TRAIN} for training; mean and spread over {} seeds\n", SEEDS.len());
    println!("{:<26} {:>10} {:>8} {:>13} {:>19}", "", "accuracy %", "spread", "weight bytes", "materialized bytes");
    for row in rows {
        let mean = row.accuracies.iter().sum::<f64>() / row.accuracies.len() as f64;
        let most = row.accuracies.iter().copied().fold(f64::MIN, f64::max);
        let least = row.accuracies.iter().copied().fold(f64::MAX, f64::min);
        let (spread, bytes, materialized) = (most - least, row.bytes, row.materialized);
        println!("{:<26} {mean:>10.2} {spread:>8.2} {bytes:>13} {materialized:>19}", row.name);
    }
}

/// Draws the loss of the first seed by epoch.
fn draw() -> Outcome<()> {
    let record = Record::read(RECORD)?;
    let mut chart =
        Chart::new("training loss").by("epoch").logarithmic().mark(EPOCHS as u64, "in each format from here");
    for name in ["float32", "NF4, aware", "affine 2-bit, aware"] {
        chart = chart.line(name, record.scalar(name)?);
    }
    Ok(chart.save(CHART)?)
}
