//! Trains a transformer with the moments of Adam in 32, 8 and 4 bits: the same steps of the same optimizer.
//!
//! The weights are quantized to 4 bits in each step, under `Policy::Deny`, and the step is compiled. Each line is a mean over seeds.
//!
//!     cargo run --release --example little_memory
//!     cargo run --release --example little_memory -- --quick

mod characters;

use std::time::Instant;

use characters::{Corpus, Outcome, Shape, Transformer, bits, spread};
use mlx_rs::module::Module;
use mlx_rs::optimizers::Adam;
use mlx_rs::{Array, random};
use tacit::compile::{CompileOptions, compile_with_state};
use tacit::model::{Model, ParameterFilter, QuantizedState, Rules};
use tacit::prelude::*;
use tacit::tree;

/// How large and how long.
#[derive(Clone, Copy)]
struct Size {
    shape: Shape,
    batch: usize,
    steps: usize,
    seeds: u64,
    /// Windows of the held-out text that a loss is taken of.
    held_out: usize,
}

const FULL: Size = Size {
    shape: Shape { dims: 128, blocks: 2, heads: 4, context: 64 },
    batch: 12,
    steps: 600,
    seeds: 5,
    held_out: 64,
};
const QUICK: Size =
    Size { shape: Shape { dims: 64, blocks: 1, heads: 2, context: 32 }, batch: 8, steps: 120, seeds: 2, held_out: 16 };

type State = (Model<Transformer>, QuantizedState<Adam>);

// ANCHOR: moments
/// Adam with its moments in so many bits.
fn adam(bits: u32) -> Result<QuantizedState<Adam>> {
    let adam = Adam::new(1e-3);
    match bits {
        8 => QuantizedState::eight_bits(adam),
        4 => QuantizedState::four_bits(adam),
        // No rule names a moment: all stay floats.
        _ => QuantizedState::new(adam, &Rules::new()),
    }
}
// ANCHOR_END: moments

// ANCHOR: step
fn step((model, adam): &mut State, batch: (Array, Array)) -> Result<Array> {
    let (loss, gradients) =
        model.value_and_grad(ParameterFilter::default(), batch, |model, (x, y): (Array, Array)| {
            bits(&model.forward(&x)?, &y)
        })?;
    model.update(adam, &gradients)?;
    Ok(loss)
}
// ANCHOR_END: step

/// What a run came to.
struct Run {
    bits: f32,
    bytes: usize,
    parameters: usize,
    seconds: f64,
}

fn run(corpus: &Corpus, held_out: &[u32], size: Size, of_moments: u32, seed: u64) -> Outcome<Run> {
    random::seed(seed)?;
    let Size { shape, batch, steps, .. } = size;
    let model = Model::new(Transformer::new(shape, corpus.characters.len())?)?;
    let model = model.prepare("{blocks.*,head}.weight", "affine:4:64")?;
    let mut state = (model, adam(of_moments)?);
    let mut compiled = compile_with_state(CompileOptions::default(), step);
    let mut begun = Instant::now();
    for at in 0..steps {
        // The first two steps are traced.
        if at == 2 {
            begun = Instant::now();
        }
        let loss = compiled.call(&mut state, corpus.batch(at + steps * seed as usize, batch, shape.context)?)?;
        tree::eval(&(&state, &loss))?;
    }
    let seconds = begun.elapsed().as_secs_f64() / (steps - 2) as f64;
    let (mut model, adam) = state;
    let parameters = model.leaves(&ParameterFilter::default()).iter().map(|(_, array)| array.size()).sum();
    let (x, y) = spread(held_out, size.held_out, shape.context);
    let bits = bits(&model.forward(&x)?, &y)?.try_item_exact::<f32>()?;
    Ok(Run { bits, bytes: adam.nbytes(), parameters, seconds })
}

fn main() -> Outcome<()> {
    let size = if std::env::args().any(|arg| arg == "--quick") { QUICK } else { FULL };
    let (corpus, held_out) = Corpus::read();
    let _deny = Policy::Deny.scope();
    println!("Adam's moments   bits/character   bytes a parameter   ms a step");
    for of_moments in [32, 8, 4] {
        let runs =
            (0..size.seeds).map(|seed| run(&corpus, &held_out, size, of_moments, seed)).collect::<Outcome<Vec<_>>>()?;
        let mean = |of: &dyn Fn(&Run) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
        let bits = mean(&|run| run.bits.into());
        let bytes = mean(&|run| run.bytes as f64 / run.parameters as f64);
        let name = format!("{of_moments} bits");
        println!("{name:<16} {bits:>14.4} {bytes:>19.2} {:>11.2}", mean(&|run| run.seconds * 1e3));
    }
    Ok(())
}
