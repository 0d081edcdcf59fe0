//! The memory that a forward and a backward pass through one large NF4 layer take beside its packed weight, and that a training step
//! of a transformer takes with moments and activations in few bits, beside the time of that step.
//!
//! `cargo bench --bench memory -- [--quick] [filter]`.

#[path = "../examples/characters/mod.rs"]
#[allow(dead_code, reason = "the examples judge what they trained")]
mod characters;

use std::time::Duration;

use characters::{Corpus, Outcome, Shape, Transformer, bits};
use mlx_rs::module::Module;
use mlx_rs::optimizers::Adam;
use mlx_rs::{Array, memory, ops, random, transforms};
use tacit::compile::{CompileOptions, compile_with_state};
use tacit::format::Parts;
use tacit::model::{Model, ParameterFilter, QuantizedState, Rules};
use tacit::prelude::*;
use tacit::{Aval, implicit, tree};
use tacit_figures::{Bench, Unit, resident};

const SIDE: i32 = 16_384;
const BATCH: i32 = 128;
const BLOCK: i32 = 64;

/// A row of 1,024 characters, whose activations are several times the parameters.
const FULL: Shape = Shape { dims: 256, blocks: 8, heads: 4, context: 1024 };
const QUICK: Shape = Shape { dims: 64, blocks: 2, heads: 2, context: 128 };

/// What the others are measured by.
const FLOATS: &str = "floats";

/// How training holds what it needs beside the parameters: a name, the bits of moments, and the format of activations.
const TRAINED: [(&str, u32, Option<&str>); 5] = [
    (FLOATS, 32, None),
    ("moments8", 8, None),
    ("moments4", 4, None),
    ("activations8", 32, Some("affine:8:32")),
    ("both8", 8, Some("affine:8:32")),
];

fn main() -> Outcome<()> {
    let _deny = Policy::Deny.scope();
    let bench = tacit_figures::bench!("memory");
    let layer = format!("nf4/{SIDE}x{SIDE}");
    if bench.wants(&layer) {
        one_layer(&bench, &layer)?;
    }
    training(&bench)
}

fn one_layer(bench: &Bench, case: &str) -> Result<()> {
    // Codes drawn as such: quantizing would need the dense weight first.
    let bytes = random::randint::<_, u32>(0, 256, &[SIDE * (SIDE / 2)], Some(&random::key(0)?))?;
    let packed = bytes.as_type::<u8>()?;
    let absmax = ops::full::<f32>(&[SIDE * (SIDE / BLOCK)], Array::from_f32(0.02))?;
    let x = random::normal::<f32>(&[BATCH, SIDE], None, None, &random::key(1)?)?;
    transforms::eval([&packed, &absmax, &x])?;
    drop(bytes);
    let weight = Nf4Array::from_parts(
        Parts::new(packed, absmax),
        BLOCK as usize,
        Aval::new(&[SIDE, SIDE], mlx_rs::Dtype::Float32),
    )?;

    memory::clear_cache()?;
    resident::reset_peak();
    let before = resident::now();
    let function = move |x: &[Array]| {
        let y = implicit((&x[0], &weight), |(x, w)| x.matmul(w.t())).and_then(|y| y.dense());
        y.map(|y| vec![y]).map_err(|error| mlx_rs::error::Exception::custom(error.to_string()))
    };
    let cotangent = ops::ones::<f32>(&[BATCH, SIDE])?;
    let (outputs, gradients) = transforms::fallible_vjp(function, &[x], &[cotangent])?;
    transforms::eval(outputs.iter().chain(&gradients))?;
    let taken = resident::peak() - before;

    let dense = f64::from(SIDE) * f64::from(SIDE) * 4.0;
    bench.amount(case, taken / 1e6, "MB", "the dense f32 weight", dense / 1e6);
    assert!(taken < 0.2 * dense, "the limit is 0.2 of the dense weight");
    Ok(())
}

/// The peaks and the times of steps, each beside those of a step with floats.
fn training(bench: &Bench) -> Outcome<()> {
    // The name of the bytes is the beginning of that of the time.
    let wanted = |name: &str| bench.wants(&format!("training/{name}/step"));
    if !TRAINED.iter().any(|&(name, ..)| wanted(name)) {
        return Ok(());
    }
    let shape = if bench.is_quick() { QUICK } else { FULL };
    let (corpus, _) = Corpus::read();
    let chosen: Vec<_> = TRAINED.into_iter().filter(|&(name, ..)| name == FLOATS || wanted(name)).collect();
    let mut floats = None;
    for &(name, moments, activations) in &chosen {
        let taken = peak(|| steps(&corpus, shape, moments, activations))?;
        let floats = *floats.get_or_insert(taken);
        bench.amount(&format!("training/{name}"), taken / 1e6, "MB", "a step with floats", floats / 1e6);
    }
    let mut all = Vec::new();
    for &(name, moments, activations) in &chosen {
        all.push((name, steps(&corpus, shape, moments, activations)?));
    }
    let mut turns = bench.turns().within(Duration::from_secs(20), 5);
    for (name, step) in &mut all {
        turns = turns.run(name, step);
    }
    let rounds = turns.take()?;
    for (name, ..) in chosen.iter().filter(|(name, ..)| *name != FLOATS) {
        rounds.record_of(&format!("training/{name}/step"), name, FLOATS, Unit::time("ms"));
    }
    Ok(())
}

type State = (Model<Transformer>, QuantizedState<Adam>);

fn step((model, adam): &mut State, batch: (Array, Array)) -> Result<Array> {
    let (loss, gradients) =
        model.value_and_grad(ParameterFilter::default(), batch, |model, (x, y): (Array, Array)| {
            bits(&model.forward(&x)?, &y)
        })?;
    model.update(adam, &gradients)?;
    Ok(loss)
}

/// Makes a step of a compiled training at each call.
fn steps(
    corpus: &Corpus,
    shape: Shape,
    moments: u32,
    activations: Option<&'static str>,
) -> Outcome<impl FnMut() -> Result<()>> {
    let model = Model::new(Transformer::new(shape, corpus.characters.len())?)?;
    let mut model = model.prepare("{blocks.*,head}.weight", "affine:4:64")?;
    if let Some(format) = activations {
        model.saved_activations("blocks.*", format)?;
    }
    let adam = Adam::new(1e-3);
    let adam = match moments {
        8 => QuantizedState::eight_bits(adam)?,
        4 => QuantizedState::four_bits(adam)?,
        _ => QuantizedState::new(adam, &Rules::new())?,
    };
    let (mut state, mut compiled) = ((model, adam), compile_with_state(CompileOptions::default(), step));
    let mut at = 0;
    Ok(move || {
        at += 1;
        let loss = compiled.call(&mut state, corpus.batch(at, 1, shape.context)?)?;
        tree::eval(&(&state, &loss))
    })
}

/// The most bytes during a step, of all that was made for it.
fn peak<F: FnMut() -> Result<()>>(make: impl FnOnce() -> Outcome<F>) -> Outcome<f64> {
    memory::clear_cache()?;
    let before = resident::now();
    let mut step = make()?;
    // The first two steps are traced, and memory that only traces take is given back before the last.
    for _ in 0..3 {
        step()?;
    }
    memory::clear_cache()?;
    resident::reset_peak();
    step()?;
    Ok(resident::peak() - before)
}
