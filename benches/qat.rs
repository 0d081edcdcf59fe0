//! What quantization-aware training costs a step: NF4 weights with straight-through gradients, next to float ones.
//!
//! The model of the peers' figures: 784-512-512-10, a batch of 128, plain SGD, the whole step compiled. Both runs take
//! their steps in turn, so that they see the same machine.

mod figures;

use std::time::Instant;

use figures::Figure;
use mlx_rs::builder::Builder;
use mlx_rs::error::Exception;
use mlx_rs::losses::{CrossEntropy, CrossEntropyBuilder, LossReduction};
use mlx_rs::module::{Module as _, ModuleParameters};
use mlx_rs::nn::{self, Sequential};
use mlx_rs::optimizers::{Optimizer, Sgd};
use mlx_rs::{Array, ops, random, transforms};
use tacit::Tree;
use tacit::compile::compile_with_state;
use tacit::compile::{Constants, Options};
use tacit::nn::{Module, Stateful, with_parameters};
use tacit::prelude::*;

const BATCH: i32 = 128;
const ROUNDS: usize = 40;
/// Steps that one run takes before it is the other's turn.
const STEPS: usize = 10;

#[derive(Tree)]
struct Training {
    model: Module<Sequential>,
    optimizer: Stateful<Sgd>,
}

impl Training {
    fn new() -> Result<Self> {
        random::seed(0)?;
        let model = Sequential::new()
            .append(nn::Linear::new(784, 512)?)
            .append(nn::Relu)
            .append(nn::Linear::new(512, 512)?)
            .append(nn::Relu)
            .append(nn::Linear::new(512, 10)?);
        Ok(Self { model: Module::in_place(model), optimizer: Stateful(Sgd::new(0.05)) })
    }
}

type Batch = (Array, Array);

fn cross_entropy() -> Result<CrossEntropy<'static>, Exception> {
    Ok(CrossEntropyBuilder::new().reduction(LossReduction::Mean).build()?)
}

fn plain(training: &mut Training, batch: Batch) -> Result<Array, Exception> {
    let cross_entropy = cross_entropy()?;
    let loss = move |model: &mut Sequential, (x, labels): Batch| cross_entropy.apply(model.forward(&x)?, labels);
    let (loss, gradients) = nn::value_and_grad(loss)(&mut training.model, batch)?;
    training.optimizer.update(&mut *training.model, gradients)?;
    Ok(loss)
}

fn quantized(training: &mut Training, batch: Batch) -> Result<Array, Exception> {
    let cross_entropy = cross_entropy()?;
    let loss = move |model: &mut Sequential, (x, labels): Batch| {
        let weights = straight_through(model, |path, w| {
            Ok(if path.ends_with("weight") { Some(Nf4Array::quantize(w, 64)?.into()) } else { None })
        })?;
        let logits = with_parameters(model, &weights, |model| model.forward(&x))?.dense()?;
        cross_entropy.apply(&logits, &labels)
    };
    let (loss, gradients) = nn::value_and_grad(loss)(&mut training.model, batch)?;
    training.optimizer.update(&mut *training.model, gradients)?;
    Ok(loss)
}

fn batch(seed: u64) -> Result<Batch> {
    let x = random::normal::<f32>(&[BATCH, 784], None, None, &random::key(100 + seed)?)?;
    let projections = random::normal::<f32>(&[784, 10], None, None, &random::key(99)?)?;
    let labels = ops::indexing::argmax_axis(&x.matmul(projections)?, 1, None)?;
    transforms::eval([&x, &labels])?;
    Ok((x, labels))
}

/// Takes [`STEPS`] steps; the seconds of one.
fn steps(
    training: &mut Training,
    batches: &[Batch],
    mut step: impl FnMut(&mut Training, &Batch) -> Result<Array>,
) -> Result<f64> {
    let start = Instant::now();
    for batch in batches {
        let loss = step(training, batch)?;
        transforms::eval(training.model.parameters().flatten().into_values().chain([&loss]))?;
    }
    Ok(start.elapsed().as_secs_f64() / batches.len() as f64)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let batches: Vec<Batch> = (0..STEPS as u64).map(batch).collect::<Result<_>>()?;
    let options = |name: &str| Options { name: name.into(), constants: Constants::Deny, ..Options::default() };
    let mut plain = compile_with_state(plain, options("the f32 step"));
    let mut quantized = compile_with_state(quantized, options("the nf4 step"));
    let mut states = [Training::new()?, Training::new()?];
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..=ROUNDS {
        let [float, nf4] = &mut states;
        let taken = [
            steps(float, &batches, |s, (x, labels)| plain.call(s, &(x.into(), labels.into()))?.dense())?,
            steps(nf4, &batches, |s, (x, labels)| quantized.call(s, &(x.into(), labels.into()))?.dense())?,
        ];
        // The first round traces.
        if round > 0 {
            times.iter_mut().zip(taken).for_each(|(times, taken)| times.push(taken));
        }
    }
    let [float, nf4] = times.map(median);
    let record = |case, seconds: f64, baseline, ratio| {
        Figure { bench: "qat", case, value: 1.0 / seconds, unit: "steps/s", baseline, ratio }.record();
    };
    record("f32", float, "itself", 1.0);
    record("nf4", nf4, "the f32 step", float / nf4);
    Ok(())
}
