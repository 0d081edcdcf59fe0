//! Low-rank adaptation of the encoder on a base of few bits: it learns to tell who does something from whom it is done to.

use std::time::Instant;

use mlx_rs::error::Exception;
use mlx_rs::optimizers::Adam;
use mlx_rs::{Array, ops};
use tacit::prelude::*;

use crate::bert::{Batch, Bert};
use crate::pairs::{Example, HELD_OUT, TRAINING};
use crate::text::{Text, progress};
use crate::{LINEAR, Outcome};

const RANK: usize = 8;
const ALPHA: f32 = 16.0;
const LEARNING_RATE: f32 = 3e-4;
const STEPS: usize = 12;
/// The examples of a step.
const BATCH: usize = 16;
/// How far the loss spreads cosines, as the default of sentence-transformers' `CoSENTLoss` does.
const SPREAD: f32 = 20.0;

/// How well cosines tell the pairs that say the same from those that do not.
struct Score {
    /// How often a pair of the first kind has the larger cosine.
    auc: f64,
    /// How many pairs the best threshold puts on the right side.
    accuracy: f64,
}

/// Puts a low-rank term beside every linear weight, trains the terms alone, and prints what that gave.
pub(crate) fn finetune(model: Model<Bert>, text: &Text) -> Outcome<()> {
    let base = model.nbytes();
    let config = LoraConfig { rank: RANK, alpha: ALPHA, ..LoraConfig::default() };
    let mut model = model.lora(LINEAR, config)?;
    let factors = (model.nbytes() - base) / size_of::<f32>();
    let training = batches(text, &TRAINING.examples())?;
    let held_out = batches(text, &HELD_OUT.examples())?;
    let before = score(&mut model, &held_out)?;

    let mut optimizer = Adam::new(LEARNING_RATE);
    let bar = progress("fine-tuning", STEPS, "steps")?;
    let start = Instant::now();
    let (trained, counters) = Counters::during(|| -> Outcome<()> {
        for batch in training.iter().cycle().take(STEPS) {
            let loss = |model: &mut Model<Bert>, batch: &Batch| loss(&model.run(|bert| bert.embed(batch))?);
            let (_, gradients) = model.value_and_grad(ParameterFilter::Lora, batch, loss)?;
            model.update(&mut optimizer, &gradients)?;
            model.eval()?;
            bar.inc(1);
        }
        Ok(())
    });
    trained?;
    bar.finish_and_clear();
    let seconds = start.elapsed().as_secs_f64();
    let after = score(&mut model, &held_out)?;

    println!("{factors} numbers trained beside a base of {base} bytes, {STEPS} steps in {seconds:.1} s");
    println!("materialized bytes: {}", counters.materialized_bytes);
    println!("{:<16} {:>8} {:>10}", "held-out pairs", "AUC", "accuracy");
    for (name, Score { auc, accuracy }) in [("before", before), ("after", after)] {
        println!("{name:<16} {auc:>8.3} {accuracy:>10.3}");
    }
    Ok(())
}

/// Batches of three sentences an example: first all anchors, then all that say the same, then all others.
fn batches(text: &Text, examples: &[Example]) -> Outcome<Vec<Batch>> {
    let batch = |examples: &[Example]| {
        let sentences = (0..3).flat_map(|column| examples.iter().map(move |example| &example.sentences[column]));
        let tokens = text.tokens(&sentences.collect::<Vec<_>>())?;
        text.batch(&tokens.iter().collect::<Vec<_>>())
    };
    examples.chunks(BATCH).map(batch).collect()
}

/// The cosines of the anchors to what says the same and to what does not, each `f32[n]`.
fn cosines(embeddings: &Array) -> Result<[Array; 2], Exception> {
    let third = embeddings.dim(0) / 3;
    let parts = embeddings.split_at_indices(&[third, 2 * third], 0)?;
    let cosine = |other: &Array| parts[0].multiply(other)?.sum_axis(-1, None);
    Ok([cosine(&parts[1])?, cosine(&parts[2])?])
}

/// `log(1 + sum exp(SPREAD (other - same)))` over all pairs of cosines (Su, `CoSENT`, 2022).
fn loss(embeddings: &Array) -> tacit::Result<Array> {
    let [same, other] = cosines(embeddings)?;
    let differences = other.expand_dims(0)?.subtract(same.expand_dims(1)?)?;
    let all = differences.multiply(Array::from_f32(SPREAD))?.logsumexp(None)?;
    Ok(ops::logaddexp(all, Array::from_f32(0.0))?)
}

fn score(model: &mut Model<Bert>, batches: &[Batch]) -> Outcome<Score> {
    let mut all: [Vec<f32>; 2] = Default::default();
    for batch in batches {
        for (all, cosines) in all.iter_mut().zip(cosines(&model.run(|bert| bert.embed(batch))?)?) {
            all.extend(cosines.try_as_slice::<f32>()?);
        }
    }
    let [same, other] = &all;
    let ordered: usize = same.iter().map(|same| other.iter().filter(|&other| same > other).count()).sum();
    let right = |threshold: &f32| {
        same.iter().filter(|&cosine| cosine >= threshold).count()
            + other.iter().filter(|&cosine| cosine < threshold).count()
    };
    let best = same.iter().chain(other).map(right).max().unwrap_or(0);
    Ok(Score {
        auc: ordered as f64 / (same.len() * other.len()) as f64,
        accuracy: best as f64 / (same.len() + other.len()) as f64,
    })
}
