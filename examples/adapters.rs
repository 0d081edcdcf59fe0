//! The book's chapter on adapters: a model in four bits is loaded, adapted, trained, merged and saved.
//!
//!     cargo run --release --example adapters

#[path = "data/digits.rs"]
mod digits;

// ANCHOR: use
use std::ops::Range;
use std::path::{Path, PathBuf};

use mlx_rs::builder::Builder;
use mlx_rs::error::Exception;
use mlx_rs::losses::{CrossEntropy, CrossEntropyBuilder, LossReduction};
use mlx_rs::module::Module;
use mlx_rs::nn::{self, Sequential};
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::optimizers::Adam;
use mlx_rs::{Array, ops, random};
use tacit::arrays::AsStored;
use tacit::io::{self, json::Json, peft};
use tacit::model::Missing;
use tacit::prelude::*;
use tacit::record::{Bars, Chart, Record, Recorder};
use tacit::tree;

use digits::{Digits, shuffled};

// ANCHOR_END: use

/// A title, and the function that makes what the chapter shows.
type Section = (&'static str, fn() -> Result<String>);

/// In the chapter's order.
pub(crate) const SECTIONS: [Section; 4] = [("loaded", loaded), ("adapted", adapted), ("sets", sets), ("files", files)];

/// Where the records and drawings of the program are.
pub(crate) const FOLDER: &str = "target/adapters";

const TRAIN: usize = 1437;
const BATCH: usize = 64;
const STEPS: u64 = 150;

// ANCHOR: base
const NF4: Nf4 = Nf4 { block: 64, double: false };

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

/// The model of a file, with the codes that are there.
fn load(file: &Path) -> Result<Model<Sequential>> {
    let mut model = classifier()?;
    model.assign(io::read(file)?, Missing::Refuse)?;
    Ok(model)
}
// ANCHOR_END: base

// ANCHOR: config
fn config() -> LoraConfig {
    LoraConfig { rank: 8, alpha: 16.0, ..LoraConfig::default() }
}
// ANCHOR_END: config

/// A file that a run of bitsandbytes could have left: the classifier with its matrices in four bits.
fn store(model: Model<Sequential>, name: &str) -> Result<PathBuf> {
    let file = std::env::temp_dir().join(format!("tacit-book-{name}-{}.safetensors", std::process::id()));
    let model = model.quantize("*.weight", NF4)?;
    io::bitsandbytes::write(&file, &model.values()?, io::bitsandbytes::BitsAndBytesLayout::default())?;
    Ok(file)
}

// ANCHOR: loaded
fn loaded() -> Result<String> {
    let file = store(classifier()?, "loaded")?;
    let model = load(&file);
    drop(std::fs::remove_file(&file));
    let values = model?.values()?;
    let lines = values.iter().map(|(path, value)| format!("{path}  {value}, {} bytes", value.nbytes()));
    Ok(lines.collect::<Vec<_>>().join("\n"))
}
// ANCHOR_END: loaded

// ANCHOR: adapted
fn adapted() -> Result<String> {
    let model = classifier()?.quantize("*.weight", NF4)?.lora("*.weight", config())?;
    let leaves = model.leaves(&ParameterFilter::Lora);
    let trained: usize = leaves.iter().map(|(_, leaf)| leaf.size()).sum();
    let all: usize = model.avals().values().map(Aval::size).sum();
    let lines = leaves.iter().map(|(path, leaf)| format!("{path}  {}", Aval::from(*leaf)));
    Ok(format!("{}\n\n{trained} numbers are trained, of {all}", lines.collect::<Vec<_>>().join("\n")))
}
// ANCHOR_END: adapted

// ANCHOR: train
/// Trains a part of the model, and records the loss of each step.
fn train(
    model: &mut Model<Sequential>,
    digits: &Digits,
    part: &ParameterFilter,
    (steps, rate): (Range<u64>, f32),
    mut told: Option<&mut Recorder>,
) -> Result<()> {
    let cross_entropy = cross_entropy()?;
    let mut optimizer = Adam::new(rate);
    for step in steps {
        let batch = digits.select(&rows(step)?)?;
        let loss = |model: &mut Model<Sequential>, (x, y): (&Array, &Array)| cross_entropy.apply(&model.forward(x)?, y);
        let (loss, gradients) = model.value_and_grad(part.clone(), (&batch.images, &batch.labels), loss)?;
        model.update(&mut optimizer, &gradients)?;
        tree::eval(&(&*model, &loss))?;
        if let Some(recorder) = &mut told {
            recorder.scalar(step + 1, "loss", loss.item_exact::<f32>())?;
        }
    }
    Ok(())
}
// ANCHOR_END: train

fn cross_entropy() -> Result<CrossEntropy<'static>, Exception> {
    Ok(CrossEntropyBuilder::new().reduction(LossReduction::Mean).build()?)
}

/// The numbers of the digits of a step.
fn rows(step: u64) -> Result<Vec<u32>> {
    let batches = (TRAIN / BATCH) as u64;
    let first = (step % batches) as usize * BATCH;
    Ok(shuffled(TRAIN, 1 + step / batches)?[first..first + BATCH].to_vec())
}

/// The percentage of digits that a model has right.
fn right(model: &mut Model<Sequential>, digits: &Digits) -> Result<f64> {
    let logits = model.forward(&digits.images)?;
    let right = ops::indexing::argmax_axis(&logits, 1, None)?.eq(&digits.labels)?.as_type::<f32>()?;
    Ok(f64::from(100.0 * right.mean(None)?.item_exact::<f32>()))
}

/// What a run made of the digits on their side, in percent.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) base: f64,
    /// With each adapter, and after each of the merges.
    pub(crate) adapted: Vec<f64>,
    pub(crate) merged: Vec<f64>,
}

// ANCHOR: run
/// What an adapter is merged into.
const WAYS: [&str; 3] = ["8 bits", "the 4 bits of the base", "4 bits that it was trained in"];

/// Two adapters on one base, the first of which is merged in two ways.
pub(crate) fn run(folder: &Path) -> Result<Told> {
    let digits = Digits::load();
    let order = shuffled(digits.labels.size(), 0)?;
    let (upright, test) = (digits.select(&order[..TRAIN])?, digits.select(&order[TRAIN..])?.on_their_side()?);
    let side = upright.on_their_side()?;
    let mut float = classifier()?;
    train(&mut float, &upright, &ParameterFilter::All, (0..STEPS, 3e-3), None)?;
    let file = store(float, "base")?;

    let _deny = Policy::Deny.scope();
    let mut told = Told { base: right(&mut load(&file)?, &test)?, adapted: Vec::new(), merged: Vec::new() };
    let eight = Affine { bits: 8, group: 64 };
    for name in ["beside", "as stored"] {
        let mut model = load(&file)?.lora("*.weight", config())?;
        let mut recorder = Recorder::create(folder.join(format!("{name}.jsonl")))?;
        train(&mut model, &side, &ParameterFilter::Lora, (0..STEPS, 3e-3), Some(&mut recorder))?;
        let mut merges = vec![(WAYS[0], AnyFormat::from(eight)), (WAYS[1], NF4.into())];
        if name == "as stored" {
            // From here on the sum is rounded as the file will have it, in the forward pass alone.
            model.replace("*.weight", |_, sum| Ok(Some(AsStored::new(sum, NF4)?.into())))?;
            merges = vec![(WAYS[2], NF4.into())];
        }
        train(&mut model, &side, &ParameterFilter::Lora, (STEPS..2 * STEPS, 5e-4), Some(&mut recorder))?;
        told.adapted.push(right(&mut model, &test)?);
        for (into, format) in merges {
            let report = model.merge(format)?;
            for (path, row) in &report.rows {
                recorder.scalar(2 * STEPS, &format!("{into}/{path}"), 100.0 * row.loss.of_change)?;
            }
            told.merged.push(right(&mut model, &test)?);
            model.unmerge(report)?;
        }
    }
    drop(std::fs::remove_file(&file));
    Ok(told)
}
// ANCHOR_END: run

/// What the chapter shows, by name.
pub(crate) fn drawings(folder: &Path) -> Result<Vec<(&'static str, String)>> {
    let read = |name: &str| Record::read(folder.join(format!("{name}.jsonl")));
    let mut lost = Bars::new("percent of the change that the merge loses");
    for (name, into) in [("beside", WAYS[0]), ("beside", WAYS[1]), ("as stored", WAYS[2])] {
        lost = lost.bars(into, read(name)?.latest(&format!("{into}/")));
    }
    let loss = |name: &str| Ok::<_, Error>(read(name)?.scalar("loss")?.means(5));
    let curves = Chart::new("training loss of the adapters, means of 5 steps")
        .logarithmic()
        .line("beside 4 bits", loss("beside")?)
        .line("rounded from step 150 on", loss("as stored")?)
        .mark(STEPS, "with a smaller rate");
    Ok(vec![("loss", curves.to_svg()?), ("lost", lost.to_svg()?)])
}

// ANCHOR: sets
/// Two adapters on one base, and a batch whose rows take one, the other or none.
fn sets() -> Result<String> {
    let digits = Digits::load();
    let x = digits.select(&[0, 1, 2])?.images;
    let mut model = classifier()?.quantize("*.weight", NF4)?;
    let mut alone = vec![model.forward(&x)?];
    let mut sets = Vec::new();
    for seed in [1, 2] {
        model = model.lora("*.weight", LoraConfig { seed, ..config() })?;
        train(&mut model, &digits, &ParameterFilter::Lora, (0..5, 3e-3), None)?;
        alone.push(model.forward(&x)?);
        sets.push(model.without_adapters()?);
    }

    model.adapter_sets(&sets)?;
    let _deny = Policy::Deny.scope();
    // Row 0 by the second set, row 1 by the first, and row 2 by none of them.
    model.choose_adapters(&Array::from_slice(&[1_u32, 0, 2], &[3]))?;
    let y = model.forward(&x)?;
    let rows = [&alone[2].try_index(0..1)?, &alone[1].try_index(1..2)?, &alone[0].try_index(2..3)?];
    let same = y.all_close(ops::concatenate(&rows, 0)?, 1e-4, 1e-4, None)?;
    Ok(format!("{}\neach row as with its adapter alone: {same}", model.get("layers.0.weight")?))
}
// ANCHOR_END: sets

// ANCHOR: files
/// The adapter alone, in Tacit's file and in PEFT's folder.
fn files() -> Result<String> {
    let digits = Digits::load();
    let model = || classifier()?.quantize("*.weight", NF4)?.lora("*.weight", config());
    let mut trained = model()?;
    train(&mut trained, &digits, &ParameterFilter::Lora, (0..5, 3e-3), None)?;
    let expected = trained.forward(&digits.images)?;
    let folder = std::env::temp_dir().join(format!("tacit-book-files-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(Error::file("write", &folder))?;

    trained.save(folder.join("adapter.safetensors"), ParameterFilter::Lora)?;
    let mut ours = model()?;
    ours.load(folder.join("adapter.safetensors"))?;

    peft::write(folder.join("peft"), &trained.values()?, &Json::Object(Vec::new()))?;
    let base = classifier()?.quantize("*.weight", NF4)?;
    let mut theirs = classifier()?;
    theirs.assign(peft::read(folder.join("peft"), &base.values()?)?, Missing::Refuse)?;

    drop(std::fs::remove_dir_all(&folder));
    let same = |model: &mut Model<Sequential>| Ok::<_, Error>(model.forward(&digits.images)?.eq_exact(&expected)?);
    Ok(format!("the same bits: of our file {}, of PEFT's {}", same(&mut ours)?, same(&mut theirs)?))
}
// ANCHOR_END: files

pub(crate) fn main() -> Result<()> {
    let folder = Path::new(FOLDER);
    for (title, section) in SECTIONS {
        println!("== {title}\n{}\n", section()?);
    }
    let Told { base, adapted, merged } = run(folder)?;
    println!("== right of the digits on their side\n{:<32} {base:5.1} %", "the base");
    println!("adapted {adapted:.1?} %, merged:");
    for (name, merged) in WAYS.into_iter().zip(merged) {
        println!("{name:<32} {merged:5.1} %");
    }
    for (name, svg) in drawings(folder)? {
        std::fs::write(folder.join(format!("{name}.svg")), svg).map_err(Error::file("write", folder))?;
    }
    println!("\ncurves: {FOLDER}");
    Ok(())
}
