//! The book's chapter on compiled steps: what goes into one, what comes out of it, and what must stay outside.

#[path = "data/digits.rs"]
mod digits;

// ANCHOR: use
use mlx_rs::builder::Builder;
use mlx_rs::error::Exception;
use mlx_rs::losses::{CrossEntropyBuilder, LossReduction};
use mlx_rs::module::Module;
use mlx_rs::nn::{self, Sequential};
use mlx_rs::optimizers::Adam;
use mlx_rs::random::{self, RandomState};
use mlx_rs::{Array, Dtype, transforms};
use tacit::compile::{CompileOptions, Constants, compile_with_state};
use tacit::io::Training;
use tacit::model::Stateful;
use tacit::pass::Passes;
use tacit::prelude::*;
use tacit::{Tree, tree};

use digits::{Digits, shuffled};

// ANCHOR_END: use

/// A title, and the function that makes what the chapter shows.
type Section = (&'static str, fn() -> Result<String>);

/// In the chapter's order.
pub(crate) const SECTIONS: [Section; 5] =
    [("compiled", compiled), ("rates", rates), ("resumed", resumed), ("failed", failed), ("looked", looked)];

// ANCHOR: state
/// Everything that a step changes.
#[derive(Tree)]
struct State {
    model: Model<Sequential>,
    optimizer: Stateful<Adam>,
    random: Stateful<RandomState>,
}

impl State {
    fn new() -> Result<Self> {
        random::seed(0)?;
        let layers =
            Sequential::new().append(nn::Linear::new(64, 64)?).append(nn::Relu).append(nn::Linear::new(64, 10)?);
        Ok(Self {
            model: Model::new(layers)?.prepare("*.weight", Affine { bits: 4, group: 32 })?,
            optimizer: Stateful(Adam::new(0.0)),
            random: Stateful(RandomState::with_seed(1)?),
        })
    }
}
// ANCHOR_END: state

// ANCHOR: step
/// A step with dropout, at a learning rate that is one of its arguments.
fn step(state: &mut State, (images, labels, rate): (Array, Array, Array)) -> Result<Array, Exception> {
    let kept = random::bernoulli(&Array::from_f32(0.9), images.shape(), &state.random.next_key()?)?;
    let images = images.multiply(kept.as_dtype(Dtype::Float32)?)?;
    let cross_entropy = CrossEntropyBuilder::new().reduction(LossReduction::Mean).build()?;
    let loss = |model: &mut Model<Sequential>, (x, y): (&Array, &Array)| cross_entropy.apply(&model.forward(x)?, y);
    let (loss, gradients) =
        state.model.value_and_grad(ParameterFilter::default(), (&images, &labels), loss).map_err(Exception::from)?;
    state.optimizer.lr = rate;
    state.model.update(&mut state.optimizer, &gradients).map_err(Exception::from)?;
    Ok(loss)
}
// ANCHOR_END: step

/// The arguments of the steps of a few epochs.
fn batches(steps: usize) -> Result<Vec<(Array, Array, Array)>> {
    let digits = Digits::load();
    let order = shuffled(digits.labels.size(), 0)?;
    let batches = order.chunks_exact(64).cycle().take(steps).enumerate();
    let batches = batches.map(|(step, rows)| {
        let Digits { images, labels } = digits.select(rows)?;
        // Falling, and never twice the same.
        Ok((images, labels, Array::from_f32(3e-3 * (1.0 - step as f32 / steps as f32))))
    });
    batches.collect()
}

// ANCHOR: compiled
fn compiled() -> Result<String> {
    // The passes of a compiled graph sum in another order. Without them the two runs are compared bit for bit.
    let options = CompileOptions { constants: Constants::Deny, passes: Passes::Off, ..CompileOptions::default() };
    let mut compiled = compile_with_state(options, step);
    let (mut eager, mut state) = (State::new()?, State::new()?);
    let _deny = Policy::Deny.scope();
    let mut same = 0;
    let mut last = f32::NAN;
    let batches = batches(40)?;
    for (images, labels, rate) in batches {
        let expected = step(&mut eager, (images.clone(), labels.clone(), rate.clone()))?;
        let loss = compiled.call(&mut state, (images, labels, rate))?.dense()?;
        tree::eval(&(&eager, &state))?;
        same += usize::from(loss.eq_exact(&expected)?);
        last = loss.item_exact();
    }
    let stats = compiled.stats();
    let reasons: Vec<&str> = stats.retraces().collect();
    Ok(format!(
        "{same} losses of {} have the same bits, the last is below 1: {}\ntraces: {}; {}",
        stats.calls,
        last < 1.0,
        stats.traces,
        reasons.join("; ")
    ))
}
// ANCHOR_END: compiled

// ANCHOR: rates
/// A rate that is set outside is the one that was traced, for ever.
fn rates() -> Result<String> {
    let mut of_field =
        compile_with_state(CompileOptions::default(), |state: &mut State, (images, labels): (Array, Array)| {
            let rate = state.optimizer.lr.clone();
            step(state, (images, labels, rate))
        });
    let mut of_argument = compile_with_state(CompileOptions::default(), step);
    let (mut a, mut b) = (State::new()?, State::new()?);
    let bias = |state: &State| state.model.leaves(&ParameterFilter::Dense)[0].1.clone();
    let moved = |state: &State, before: &Array| -> Result<bool> { Ok(!bias(state).eq_exact(before)?) };
    let mut told = Vec::new();
    // The first call makes the optimizer's moments, and the second is the trace that later ones replay.
    for (step, (images, labels, _)) in batches(4)?.into_iter().enumerate() {
        let rate = if step == 3 { 0.0 } else { 1e-3 };
        let before = (bias(&a), bias(&b));
        a.optimizer.lr = Array::from_f32(rate);
        of_field.call(&mut a, (images.clone(), labels.clone()))?;
        of_argument.call(&mut b, (images, labels, Array::from_f32(rate)))?;
        if step == 3 {
            told.push(format!("at a rate of 0 set outside the weights move: {}", moved(&a, &before.0)?));
            told.push(format!("at a rate of 0 as an argument: {}", moved(&b, &before.1)?));
        }
    }
    Ok(told.join("\n"))
}
// ANCHOR_END: rates

// ANCHOR: resumed
/// Ten steps, a checkpoint, and ten more steps twice: of the state itself and of one that the file made.
fn resumed() -> Result<String> {
    let file = std::env::temp_dir().join(format!("tacit-book-step-{}.safetensors", std::process::id()));
    let mut compiled = compile_with_state(CompileOptions::default(), step);
    let (mut state, batches) = (State::new()?, batches(20)?);
    for batch in &batches[..10] {
        compiled.call(&mut state, batch.clone())?;
        tree::eval(&state)?;
    }
    Training::new(10)
        .with_model(&state.model, &ParameterFilter::All)?
        .with_optimizer(&state.optimizer)?
        .with_random(&state.random)
        .save(&file)?;

    let (saved, mut again) = (Training::load(&file)?, State::new()?);
    saved.restore_model(&mut again.model)?;
    saved.restore_optimizer(&mut again.optimizer)?;
    again.random = Stateful(saved.random()?);
    let mut same = 0;
    for batch in &batches[10..] {
        let expected = compiled.call(&mut state, batch.clone())?.dense()?;
        let loss = compiled.call(&mut again, batch.clone())?.dense()?;
        tree::eval(&(&state, &again))?;
        same += usize::from(loss.eq_exact(&expected)?);
    }
    drop(std::fs::remove_file(&file));
    Ok(format!("{same} losses after step {} have the same bits, traces: {}", saved.step, compiled.stats().traces))
}
// ANCHOR_END: resumed

// ANCHOR: failed
/// A step that fails after it has changed the state.
fn failed() -> Result<String> {
    let mut state = State::new()?;
    let mut failing = compile_with_state(
        CompileOptions::default(),
        |state: &mut State, (images, labels, rate): (Array, Array, Array)| {
            step(state, (images, labels.clone(), rate))?;
            labels.reshape(&[7, 7])
        },
    );
    let before: Vec<Array> =
        state.model.leaves(&ParameterFilter::All).into_iter().map(|(_, leaf)| leaf.clone()).collect();
    let (images, labels, rate) = batches(1)?.remove(0);
    let error = failing.call(&mut state, (images, labels, rate)).expect_err("64 are not 49");
    let mut same = true;
    for ((_, leaf), before) in state.model.leaves(&ParameterFilter::All).into_iter().zip(&before) {
        same &= leaf.eq_exact(before)?;
    }
    Ok(format!("{}\nthe model is what it was: {same}", error.clause()))
}
// ANCHOR_END: failed

// ANCHOR: looked
/// A step that wants to see its loss.
fn looked() -> Result<String> {
    let mut state = State::new()?;
    let mut looking =
        compile_with_state(CompileOptions::default(), |state: &mut State, batch: (Array, Array, Array)| {
            let loss = step(state, batch)?;
            transforms::eval([&loss])?;
            Ok::<_, Error>(loss)
        });
    let (images, labels, rate) = batches(1)?.remove(0);
    let error = looking.call(&mut state, (images, labels, rate)).expect_err("it looks");
    Ok(error.to_string())
}
// ANCHOR_END: looked

pub(crate) fn main() -> Result<()> {
    for (title, section) in SECTIONS {
        println!("== {title}\n{}\n", section()?);
    }
    Ok(())
}
