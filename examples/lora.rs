//! Adapts a classifier of handwritten digits, stored in a few bits, to digits that lie on their side.
//!
//! The classifier is trained on upright digits and quantized. Then adapters alone are trained, in several ways, and merged
//! into the format of the base. The layers and the optimizer are mlx-rs's own. From the quantization on all runs under
//! `Policy::Deny`, so that a dense weight anywhere, in a merge too, would be an error.
//!
//!     cargo run --release --example lora

#[path = "data/digits.rs"]
mod digits;

use std::error::Error;
use std::time::Instant;

use mlx_rs::losses::{CrossEntropy, CrossEntropyBuilder, LossReduction};
use mlx_rs::module::Module;
use mlx_rs::nn::{self, Sequential};
use mlx_rs::optimizers::Adam;
use mlx_rs::{Array, builder::Builder, ops, random};
use tacit::arrays::AsStored;
use tacit::model::{Method, Missing};
use tacit::prelude::*;

use digits::{Digits, shuffled};

type Outcome<T> = std::result::Result<T, Box<dyn Error>>;

const TRAIN: usize = 1437;
const BATCH: usize = 64;
/// Epochs of each half of the training.
const EPOCHS: usize = 6;

/// What is compared: a name, the format of base and merge, what is trained, and whether in the
/// second half as it will be stored.
const WAYS: [(&str, &str, Method, bool); 8] = [
    ("LoRA", "nf4:64", Method::Lora, false),
    ("DoRA", "nf4:64", Method::Dora, false),
    ("LoRA as stored", "nf4:64", Method::Lora, true),
    ("DoRA as stored", "nf4:64", Method::Dora, true),
    ("LoRA", "affine:3:32", Method::Lora, false),
    ("DoRA", "affine:3:32", Method::Dora, false),
    ("LoRA as stored", "affine:3:32", Method::Lora, true),
    ("QA-LoRA", "affine:3:32", Method::QaLora, false),
];

fn classifier() -> Outcome<Sequential> {
    Ok(Sequential::new()
        .append(nn::Linear::new(64, 64)?)
        .append(nn::Relu)
        .append(nn::Linear::new(64, 64)?)
        .append(nn::Relu)
        .append(nn::Linear::new(64, 10)?))
}

fn cross_entropy() -> Outcome<CrossEntropy<'static>> {
    Ok(CrossEntropyBuilder::new().reduction(LossReduction::Mean).build()?)
}

fn train(model: &mut Model<Sequential>, digits: &Digits, trained: &ParameterFilter, rate: f32) -> Outcome<()> {
    let cross_entropy = cross_entropy()?;
    let mut optimizer = Adam::new(rate);
    for epoch in 0..EPOCHS {
        for rows in shuffled(digits.labels.size(), epoch as u64)?.chunks_exact(BATCH) {
            let batch = digits.select(rows)?;
            let loss =
                |model: &mut Model<Sequential>, (x, y): (&Array, &Array)| cross_entropy.apply(&model.forward(x)?, y);
            let (_, gradients) = model.value_and_grad(trained.clone(), (&batch.images, &batch.labels), loss)?;
            model.update(&mut optimizer, &gradients)?;
            model.eval()?;
        }
    }
    Ok(())
}

/// Which of the digits the model gets right, in percent, and its loss.
fn evaluate(model: &mut Model<Sequential>, digits: &Digits) -> Outcome<[f32; 2]> {
    let logits = model.forward(&digits.images)?;
    let right = ops::indexing::argmax_axis(&logits, 1, None)?.eq(&digits.labels)?.as_type::<f32>()?.mean(None)?;
    let loss = cross_entropy()?.apply(&logits, &digits.labels)?;
    Ok([100.0 * right.try_item_exact::<f32>()?, loss.try_item_exact::<f32>()?])
}

fn main() -> Outcome<()> {
    let start = Instant::now();
    let digits = Digits::load();
    let order = shuffled(digits.labels.size(), 0)?;
    let (upright, test) = (digits.select(&order[..TRAIN])?, digits.select(&order[TRAIN..])?);
    let (side, side_test) = (upright.on_their_side()?, test.on_their_side()?);

    random::seed(0)?;
    let mut float = Model::new(classifier()?)?;
    train(&mut float, &upright, &ParameterFilter::All, 2e-3)?;
    let [accuracy, loss] = evaluate(&mut float, &test)?;
    println!("float32, upright digits: {accuracy:.1} %, loss {loss:.3}\n");

    println!(
        "{:<15} {:<12} {:^14} {:^14} {:^14} {:>9} {:>9} {:>8} {:>7} {:>6}",
        "", "", "base", "trained", "merged", "error of", "of the", "trained", "", "built"
    );
    println!(
        "{:<15} {:<12} {:>6} {:>7} {:>6} {:>7} {:>6} {:>7} {:>9} {:>9} {:>8} {:>7} {:>6}",
        "method", "format", "%", "loss", "%", "loss", "%", "loss", "the merge", "change", "numbers", "bytes", "bytes"
    );
    let _deny = Policy::Deny.scope();
    for (name, text, method, as_stored) in WAYS {
        let format: AnyFormat = text.parse()?;
        let mut model = Model::new(classifier()?)?;
        model.assign(float.values()?, Missing::Refuse)?;
        let mut model = model.quantize("*.weight", text)?;
        let (line, counters) = Counters::during(|| -> Outcome<String> {
            let base = evaluate(&mut model, &side_test)?;
            let config = LoraConfig { rank: 8, alpha: 16.0, method, ..LoraConfig::default() };
            let mut model = model.lora("*.weight", config)?;
            train(&mut model, &side, &ParameterFilter::Lora, 2e-3)?;
            if as_stored {
                model.replace("*.weight", |_, sum| Ok(Some(AsStored::new(sum, &format)?.into())))?;
            }
            train(&mut model, &side, &ParameterFilter::Lora, 5e-4)?;
            let trained = evaluate(&mut model, &side_test)?;
            let numbers: usize = model.leaves(&ParameterFilter::Lora).iter().map(|(_, leaf)| leaf.size()).sum();
            let report = model.merge(&format)?;
            let merged = evaluate(&mut model, &side_test)?;
            let lost = report.rows.values().map(|row| row.loss.of_change).fold(0.0, f64::max);
            let pair = |[accuracy, loss]: [f32; 2]| format!("{accuracy:>6.1} {loss:>7.3}");
            let (base, trained, merged) = (pair(base), pair(trained), pair(merged));
            let (error, bytes) = (report.worst(), model.nbytes());
            Ok(format!(
                "{name:<15} {text:<12} {base} {trained} {merged} {error:>9.4} {:>8.1}% {numbers:>8} {bytes:>7}",
                100.0 * lost
            ))
        });
        println!("{} {:>6}", line?, counters.materialized_bytes);
    }
    println!("\nThe error is relative, that of the worst weight; {:.0} s in all", start.elapsed().as_secs_f64());
    Ok(())
}
