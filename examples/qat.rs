//! The book's chapter on quantization-aware training from start to finish: schedules, and curves of runs that go well and wrong.
//!
//!     cargo run --release --example qat

#[path = "data/digits.rs"]
mod digits;

// ANCHOR: use
use std::path::Path;

use mlx_rs::builder::Builder;
use mlx_rs::error::Exception;
use mlx_rs::losses::{CrossEntropy, CrossEntropyBuilder, LossReduction};
use mlx_rs::module::{FlattenedModuleParam, Module};
use mlx_rs::nn::{self, Sequential};
use mlx_rs::optimizers::Adam;
use mlx_rs::{Array, ops, random};
use tacit::arrays::Prepared;
use tacit::model::training::Schedule;
use tacit::model::{Missing, QatConfig};
use tacit::prelude::*;
use tacit::record::{Bars, Chart, Record, Recorder};
use tacit::tree;

use digits::{Digits, shuffled};

// ANCHOR_END: use

/// A title, and the function that makes what the chapter shows.
type Section = (&'static str, fn() -> Result<String>);

/// In the chapter's order.
pub(crate) const SECTIONS: [Section; 3] = [("schedule", schedule), ("prepared", prepared), ("converted", converted)];

/// Where the records and drawings of the program are.
pub(crate) const FOLDER: &str = "target/qat";

const TRAIN: usize = 1437;
const BATCH: usize = 64;
/// Steps in floats, and in two bits after them.
const FLOAT: u64 = 150;
const AWARE: u64 = 150;
/// How often what takes longer than a number is recorded.
const OFTEN: u64 = 10;

// ANCHOR: model
/// Three layers of mlx-rs, whose matrices are to be stored in two bits.
fn classifier() -> Result<Model<Sequential>> {
    random::seed(0)?;
    let layers = Sequential::new()
        .append(nn::Linear::new(64, 64)?)
        .append(nn::Relu)
        .append(nn::Linear::new(64, 64)?)
        .append(nn::Relu)
        .append(nn::Linear::new(64, 10)?);
    Model::new(layers)
}

const QUANTIZED: &str = "*.weight";
// ANCHOR_END: model

// ANCHOR: schedule
/// A learning rate that rises for a tenth of the steps, and then falls to nothing along a cosine.
fn rate(highest: f32, made: u64, steps: u64) -> f32 {
    Schedule::cosine(highest, steps).with_warmup(steps / 10).at(made)
}

fn schedule() -> Result<String> {
    let rates = [0, 8, 15, 82, 149].map(|made| format!("{made:3}: {:.5}", rate(3e-3, made, FLOAT)));
    Ok(rates.join("\n"))
}
// ANCHOR_END: schedule

// ANCHOR: phase
/// Some steps that follow others, at which learning rate, and what is trained.
struct Phase {
    before: u64,
    steps: u64,
    rate: f32,
    trained: ParameterFilter,
}

fn train(model: &mut Model<Sequential>, phase: &Phase, task: &Task, recorder: &mut Recorder) -> Result<()> {
    // A scale moves a whole block of weights, and is about as large as one of them.
    let (mut optimizer, mut of_scales) = (Adam::new(0.0), Adam::new(0.0));
    for made in 0..phase.steps {
        let rate = rate(phase.rate, made, phase.steps);
        optimizer.lr = Array::from_f32(rate);
        of_scales.lr = Array::from_f32(0.1 * rate);

        let batch = task.batch(phase.before + made)?;
        let loss =
            |model: &mut Model<Sequential>, (x, y): (&Array, &Array)| task.cross_entropy.apply(&model.forward(x)?, y);
        let (loss, gradients) = model.value_and_grad(phase.trained.clone(), (&batch.images, &batch.labels), loss)?;
        let (scales, others): (FlattenedModuleParam, FlattenedModuleParam) =
            gradients.into_iter().partition(|(path, _)| path.ends_with(".scales") || path.ends_with(".biases"));
        model.update(&mut optimizer, &others)?;
        model.update(&mut of_scales, &scales)?;
        tree::eval(&(&*model, &loss))?;

        let step = phase.before + made + 1;
        recorder.scalar(step, "loss", loss.item_exact::<f32>())?;
        recorder.scalar(step, "rate", rate)?;
        if step.is_multiple_of(OFTEN) {
            look(model, step, task, recorder)?;
        }
    }
    Ok(())
}
// ANCHOR_END: phase

// ANCHOR: prepared
/// Two bits in blocks of so many, with scales that are trained.
fn two_bits(group: usize) -> QatConfig {
    QatConfig::new(Affine { bits: 2, group }).trained_scales()
}

fn prepared() -> Result<String> {
    let model = classifier()?.prepare(QUANTIZED, two_bits(32))?;
    Ok(model.report().to_string())
}
// ANCHOR_END: prepared

// ANCHOR: converted
/// What was trained is what is stored.
fn converted() -> Result<String> {
    let task = Task::new()?;
    let mut model = classifier()?.prepare(QUANTIZED, two_bits(32))?;
    let mut recorder = Recorder::create(std::env::temp_dir().join(format!("tacit-book-{}.jsonl", std::process::id())))?;
    let _deny = Policy::Deny.scope();
    train(&mut model, &Phase { before: 0, steps: 5, rate: 2e-3, trained: everything() }, &task, &mut recorder)?;
    let trained = model.forward(&task.test.images)?;
    model.convert()?;
    let same = model.forward(&task.test.images)?.eq_exact(&trained)?;
    drop(std::fs::remove_file(recorder.path()));
    Ok(format!("{}\nthe same to the last bit: {same}", model.get("layers.0.weight")?))
}

/// What is trained from the switch on.
fn everything() -> ParameterFilter {
    ParameterFilter::default().or(ParameterFilter::Scales)
}
// ANCHOR_END: converted

// ANCHOR: look
/// What takes longer than a number: how much of the test is right, the scales, and the memory.
fn look(model: &mut Model<Sequential>, step: u64, task: &Task, recorder: &mut Recorder) -> Result<()> {
    recorder.scalar(step, "right", task.right(model)?)?;
    for (path, value) in model.values()? {
        if let Some(scales) = value.downcast::<Prepared>().and_then(Prepared::scales) {
            recorder.histogram(step, &format!("scales/{path}"), &scales.abs()?)?;
        }
    }
    recorder.memory(step)
}
// ANCHOR_END: look

fn cross_entropy() -> Result<CrossEntropy<'static>, Exception> {
    Ok(CrossEntropyBuilder::new().reduction(LossReduction::Mean).build()?)
}

/// Digits to train with, digits to test with, and the loss.
struct Task {
    train: Digits,
    test: Digits,
    cross_entropy: CrossEntropy<'static>,
}

impl Task {
    fn new() -> Result<Self> {
        let digits = Digits::load();
        let order = shuffled(digits.labels.size(), 0)?;
        let (train, test) = (digits.select(&order[..TRAIN])?, digits.select(&order[TRAIN..])?);
        Ok(Self { train, test, cross_entropy: cross_entropy()? })
    }

    /// The digits of a step, which its number decides.
    fn batch(&self, step: u64) -> Result<Digits> {
        let batches = (TRAIN / BATCH) as u64;
        let order = shuffled(TRAIN, 1 + step / batches)?;
        let first = (step % batches) as usize * BATCH;
        self.train.select(&order[first..first + BATCH])
    }

    /// The percentage of the test that a model has right.
    fn right(&self, model: &mut Model<Sequential>) -> Result<f32> {
        let logits = model.forward(&self.test.images)?;
        let right = ops::indexing::argmax_axis(&logits, 1, None)?.eq(&self.test.labels)?.as_type::<f32>()?;
        Ok(100.0 * right.mean(None)?.item_exact::<f32>())
    }
}

// ANCHOR: runs
/// A run that goes well, and four that do not; each leaves its record in the folder.
fn run(folder: &Path) -> Result<()> {
    let task = Task::new()?;
    let recorder = |name: &str| Recorder::create(folder.join(format!("{name}.jsonl")));
    let floats = Phase { before: 0, steps: FLOAT, rate: 3e-3, trained: ParameterFilter::default() };
    let aware = |rate: f32, trained: ParameterFilter| Phase { before: FLOAT, steps: AWARE, rate, trained };

    let mut float = classifier()?;
    train(&mut float, &floats, &task, &mut recorder("float")?)?;
    // A model in two bits that goes on from these floats.
    let switched = |values: Parameters, group: usize| {
        let mut model = classifier()?;
        model.assign(values, Missing::Refuse)?;
        model.prepare(QUANTIZED, two_bits(group))
    };
    for (name, rate) in [("aware", 2e-3), ("too fast", 1e-1), ("too slow", 2e-5)] {
        let mut model = switched(float.values()?, 32)?;
        train(&mut model, &aware(rate, everything()), &task, &mut recorder(name)?)?;
    }

    // Prepared before the floats were trained, so that the scales are those of random weights; and then never trained.
    let mut model = classifier()?.prepare(QUANTIZED, two_bits(32))?;
    model.switch_quantization(false)?;
    train(&mut model, &floats, &task, &mut recorder("stale floats")?)?;
    model.switch_quantization(true)?;
    train(&mut model, &aware(2e-3, ParameterFilter::default()), &task, &mut recorder("stale scales")?)?;

    // The same function of the same digits, the upper half of whose pixels is in units that are 16 times smaller.
    let (task, values) = in_other_units(task, float.values()?)?;
    for (name, group) in [("blocks of 32", 32), ("blocks of 64", 64)] {
        let mut model = switched(values.clone(), group)?;
        let mut recorder = recorder(name)?;
        for (name, error) in errors(&task, &values, group)? {
            recorder.scalar(FLOAT, &name, error)?;
        }
        train(&mut model, &aware(2e-3, everything()), &task, &mut recorder)?;
    }
    Ok(())
}
// ANCHOR_END: runs

// ANCHOR: units
/// Pixels times 16, and the weights that read them by 16: the floats compute what they did.
fn in_other_units(mut task: Task, mut values: Parameters) -> Result<(Task, Parameters)> {
    let units: Vec<f32> = (0..64).map(|pixel| if pixel < 32 { 16.0 } else { 1.0 }).collect();
    let units = Array::from_slice(&units, &[64]);
    for digits in [&mut task.train, &mut task.test] {
        digits.images = digits.images.multiply(&units)?;
    }
    let first = values["layers.0.weight"].dense()?.divide(&units)?;
    values.insert("layers.0.weight".to_owned(), first.into());
    Ok((task, values))
}

/// How far each weight is from its two bits, and how far what it computes is from what the float weight computes.
fn errors(task: &Task, values: &Parameters, group: usize) -> Result<Vec<(String, f64)>> {
    let mut model = classifier()?;
    model.assign(values.clone(), Missing::Refuse)?;
    let model = model.quantize(QUANTIZED, Affine { bits: 2, group })?;
    let _allow = Policy::Allow.scope();
    let (mut x, mut errors) = (task.test.images.clone(), Vec::new());
    for layer in ["layers.0", "layers.2", "layers.4"] {
        let (weight, bias) = (values[&format!("{layer}.weight")].dense()?, values[&format!("{layer}.bias")].dense()?);
        let quantized = model.get(&format!("{layer}.weight"))?.dense()?;
        errors.push((format!("weights/{layer}"), relative_error(&quantized, &weight)?));
        let (y, rounded) = (x.matmul(weight.t())?, x.matmul(quantized.t())?);
        errors.push((format!("outputs/{layer}"), relative_error(&rounded, &y)?));
        x = nn::relu(y.add(bias)?)?;
    }
    Ok(errors)
}

fn relative_error(y: &Array, expected: &Array) -> Result<f64> {
    let length = |array: &Array| array.square()?.sum(None)?.sqrt();
    Ok(f64::from(length(&y.subtract(expected)?)?.divide(length(expected)?)?.item_exact::<f32>()))
}
// ANCHOR_END: units

// ANCHOR: drawing
/// The loss of a run in floats and of the one that goes on in two bits.
fn losses(float: &Record, aware: &Record) -> Result<Chart> {
    Ok(Chart::new("training loss, means of 5 steps")
        .logarithmic()
        .line("floats", float.scalar("loss")?.means(5))
        .line("2 bits", aware.scalar("loss")?.means(5))
        .mark(FLOAT, "2 bits from here"))
}
// ANCHOR_END: drawing

/// What the chapter shows, by name.
pub(crate) fn drawings(folder: &Path) -> Result<Vec<(&'static str, String)>> {
    let read = |name: &str| Record::read(folder.join(format!("{name}.jsonl")));
    let loss = |name: &str| Ok::<_, Error>(read(name)?.scalar("loss")?.means(5));
    let (float, aware, stale) = (read("float")?, read("aware")?, read("stale scales")?);
    let scales = "scales/layers.0.weight";
    let megabytes = |name: &str| Ok::<_, Error>(aware.scalar(name)?.map(|bytes| bytes / 1e6));
    Ok(vec![
        ("loss", losses(&float, &aware)?.to_svg()?),
        (
            "right",
            Chart::new("percent of the test that is right")
                .line("floats", float.scalar("right")?)
                .line("2 bits", aware.scalar("right")?)
                .mark(FLOAT, "2 bits from here")
                .to_svg()?,
        ),
        (
            "rate",
            Chart::new("learning rate")
                .line("floats", float.scalar("rate")?)
                .line("2 bits", aware.scalar("rate")?)
                .to_svg()?,
        ),
        (
            "rates",
            Chart::new("training loss in 2 bits, by the highest rate")
                .logarithmic()
                .line("0.002", loss("aware")?)
                .line("0.1, too fast", loss("too fast")?)
                .line("0.00002, too slow", loss("too slow")?)
                .to_svg()?,
        ),
        (
            "stale",
            Chart::new("training loss in 2 bits, by the scales")
                .logarithmic()
                .line("trained", loss("aware")?)
                .line("stale and frozen", loss("stale scales")?)
                .to_svg()?,
        ),
        (
            "scales",
            Chart::new("scales of layers.0.weight: all, middle half, median")
                .bands("trained", aware.histogram(scales)?)
                .bands("stale and frozen", stale.histogram(scales)?)
                .to_svg()?,
        ),
        (
            "units",
            Chart::new("training loss in 2 bits, inputs in two units")
                .logarithmic()
                .line("blocks of 32", loss("blocks of 32")?)
                .line("blocks of 64", loss("blocks of 64")?)
                .to_svg()?,
        ),
        (
            "weights",
            Bars::new("relative error of the weights")
                .bars("blocks of 32", read("blocks of 32")?.latest("weights/"))
                .bars("blocks of 64", read("blocks of 64")?.latest("weights/"))
                .to_svg()?,
        ),
        (
            "outputs",
            Bars::new("relative error of what they compute")
                .bars("blocks of 32", read("blocks of 32")?.latest("outputs/"))
                .bars("blocks of 64", read("blocks of 64")?.latest("outputs/"))
                .to_svg()?,
        ),
        (
            "memory",
            Chart::new("megabytes of arrays, of 10 steps each")
                .line("at most", megabytes("memory/peak")?)
                .line("between steps", megabytes("memory/active")?)
                .to_svg()?,
        ),
    ])
}

/// What the runs had right at their end, in percent.
pub(crate) fn right(folder: &Path, name: &str) -> Result<f64> {
    let record = Record::read(folder.join(format!("{name}.jsonl")))?;
    Ok(record.scalar("right")?.last().unwrap_or(f64::NAN))
}

pub(crate) fn main() -> Result<()> {
    let folder = Path::new(FOLDER);
    for (title, section) in SECTIONS {
        println!("== {title}\n{}\n", section()?);
    }
    {
        let _deny = Policy::Deny.scope();
        run(folder)?;
    }
    println!("== right at the end");
    for name in ["float", "aware", "too fast", "too slow", "stale scales", "blocks of 32", "blocks of 64"] {
        println!("{name:<14} {:5.1} %", right(folder, name)?);
    }
    for (name, svg) in drawings(folder)? {
        std::fs::write(folder.join(format!("{name}.svg")), svg).map_err(|error| Error::file("write", folder)(error))?;
    }
    println!("\ncurves: {FOLDER}");
    Ok(())
}
