//! A whole quantization-aware training step as one compiled function of its state.
//!
//! The state is the model, the optimizer with its momentum, and the random key that dropout draws from. It goes into the
//! graph as inputs and comes out as outputs, so that nothing is frozen. Forward and backward pass run on NF4 weights, and
//! the gradient goes to the float ones.
//!
//!     cargo run --release --example compiled_training

use std::time::Instant;

use mlx_rs::builder::Builder;
use mlx_rs::error::Exception;
use mlx_rs::losses::{CrossEntropyBuilder, LossReduction};
use mlx_rs::module::Module as _;
use mlx_rs::nn::{self, Sequential};
use mlx_rs::optimizers::{Optimizer, Sgd};
use mlx_rs::random::{self, RandomState};
use mlx_rs::{Array, Dtype, ops, transforms};
use tacit::compile::compile_with_state;
use tacit::compile::{CompileOptions, Constants};
use tacit::model::{Module, Stateful, with_parameters};
use tacit::pass::Passes;
use tacit::prelude::*;
use tacit::tree::Open;
use tacit::{Tree, tree};

const BATCH: i32 = 128;
const STEPS: usize = 200;
const KEEP: f32 = 0.9;

/// Everything that a step changes.
#[derive(Tree)]
struct Training {
    model: Module<Sequential>,
    optimizer: Stateful<Sgd>,
    random: Stateful<RandomState>,
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
        let mut optimizer = Sgd::new(0.05);
        optimizer.momentum = 0.9;
        Ok(Self {
            model: Module::in_place(model),
            optimizer: Stateful(optimizer),
            random: Stateful(RandomState::with_seed(1)?),
        })
    }
}

/// One step: dropout on the input, a forward pass on NF4 weights, the gradient, and mlx-rs's own optimizer.
fn step(training: &mut Training, (x, labels): (Array, Array)) -> Result<Array, Exception> {
    let keep = Array::from_f32(KEEP);
    let mask = random::bernoulli(&keep, x.shape(), &training.random.next_key()?)?;
    let x = x.multiply(mask.as_dtype(Dtype::Float32)?)?.divide(&keep)?;
    let cross_entropy = CrossEntropyBuilder::new().reduction(LossReduction::Mean).build()?;
    let loss = move |model: &mut Sequential, (x, labels): (Array, Array)| {
        let weights = straight_through(model, |path, w| {
            Ok(if path.ends_with("weight") { Some(Nf4Array::quantize(w, 64)?.into()) } else { None })
        })?;
        let logits = with_parameters(model, &weights, |model| model.forward(&x))?.dense()?;
        cross_entropy.apply(&logits, &labels)
    };
    let (loss, gradients) = nn::value_and_grad(loss)(&mut training.model, (x, labels))?;
    training.optimizer.update(&mut *training.model, gradients)?;
    Ok(loss)
}

/// Images whose class is the sign pattern of a few projections.
fn batch(step: usize) -> Result<(Array, Array)> {
    let x = random::normal::<f32>(&[BATCH, 784], None, None, &random::key(100 + step as u64)?)?;
    let projections = random::normal::<f32>(&[784, 10], None, None, &random::key(99)?)?;
    let labels = ops::indexing::argmax_axis(&x.matmul(projections)?, 1, None)?;
    transforms::eval([&x, &labels])?;
    Ok((x, labels))
}

/// Runs `f` on every batch, evaluating the state each time: the losses, and the steps per second after the first ten.
fn train(
    training: &mut Training,
    batches: &[(Array, Array)],
    mut f: impl FnMut(&mut Training, &(Array, Array)) -> Result<Array>,
) -> Result<(Vec<f32>, f64)> {
    let mut losses = Vec::new();
    let mut start = Instant::now();
    for (i, batch) in batches.iter().enumerate() {
        if i == 10 {
            start = Instant::now();
        }
        let loss = f(training, batch)?;
        tree::eval(&(&*training, &loss))?;
        losses.push(loss.item_exact());
    }
    Ok((losses, (batches.len() - 10) as f64 / start.elapsed().as_secs_f64()))
}

fn main() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let batches: Vec<(Array, Array)> = (0..STEPS).map(batch).collect::<Result<_>>()?;

    let mut eager = Training::new()?;
    let (expected, eager_speed) = train(&mut eager, &batches, |training, batch| Ok(step(training, batch.clone())?))?;

    // The passes of a compiled graph sum rows in another order than MLX. Without them the step is compared bit for bit.
    let options = CompileOptions {
        name: "the training step".into(),
        constants: Constants::Deny,
        passes: Passes::Off,
        ..CompileOptions::default()
    };
    let mut compiled_step = compile_with_state(options, step);
    let mut compiled = Training::new()?;
    let (losses, compiled_speed) =
        train(&mut compiled, &batches, |training, (x, labels)| compiled_step.call(training, &(x, labels))?.dense())?;

    let stats = compiled_step.stats();
    println!("eager    {eager_speed:7.1} steps/s, loss {:.4} -> {:.4}", expected[0], expected[STEPS - 1]);
    println!("compiled {compiled_speed:7.1} steps/s, loss {:.4} -> {:.4}", losses[0], losses[STEPS - 1]);
    println!("{} calls, {} traces: {}", stats.calls, stats.traces, stats.retraces().collect::<Vec<_>>().join("; "));
    // MLX prints scalars with seven digits into the source of a fused kernel. Those of this step have no more, so the
    // compiled run is the eager one to the last bit.
    assert_eq!(losses, expected);
    let parameters = tree::zip(&eager, &compiled, Open::Fully)?;
    for (path, a, b) in &parameters {
        assert!(a.dense()?.eq(b.dense()?)?.all(None)?.item_exact::<bool>(), "{path} differs");
    }
    println!("all {STEPS} losses and all {} arrays of the state are equal to the last bit", parameters.len());
    Ok(())
}
