//! Trains a transformer with the moments of Adam in 32, 8 and 4 bits: the same steps of the same optimizer. Then with a learning
//! rate that falls, and with moments of an eighth of the rank.
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
use tacit::model::training::Schedule;
use tacit::model::{Apollo, Model, ParameterFilter, QuantizedState, Rules};
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
/// How Adam holds its moments.
#[derive(Clone, Copy)]
enum Moments {
    Bits(u32),
    /// As floats, of gradients of this rank.
    Rank(i32),
}

/// Adam, whose rate each step is given.
fn adam(moments: Moments) -> Result<QuantizedState<Adam>> {
    let adam = Adam::new(0.0);
    match moments {
        Moments::Bits(8) => QuantizedState::eight_bits(adam),
        Moments::Bits(4) => QuantizedState::four_bits(adam),
        // No rule names a moment: all stay floats.
        Moments::Bits(_) => QuantizedState::new(adam, &Rules::new()),
        // Embeddings and the head keep their moments.
        Moments::Rank(rank) => {
            let apollo = Apollo { scale: 16.0, ..Apollo::new(rank as usize) };
            QuantizedState::new(adam, &Rules::new())?.apollo("blocks.*", apollo)
        }
    }
}
// ANCHOR_END: moments

// ANCHOR: step
fn step((model, adam): &mut State, (batch, rate): ((Array, Array), Array)) -> Result<Array> {
    adam.lr = rate;
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

fn run(
    corpus: &Corpus,
    held_out: &[u32],
    size: Size,
    (moments, rates): (Moments, Schedule),
    seed: u64,
) -> Outcome<Run> {
    random::seed(seed)?;
    let Size { shape, batch, steps, .. } = size;
    let model = Model::new(Transformer::new(shape, corpus.characters.len())?)?;
    let model = model.prepare("{blocks.*,head}.weight", "affine:4:64")?;
    let mut state = (model, adam(moments)?);
    let mut compiled = compile_with_state(CompileOptions::default(), step);
    let mut begun = Instant::now();
    for at in 0..steps {
        // The first two steps are traced.
        if at == 2 {
            begun = Instant::now();
        }
        let rows = corpus.batch(at + steps * seed as usize, batch, shape.context)?;
        let loss = compiled.call(&mut state, (rows, rates.array(at as u64)))?;
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
    let constant = Schedule::constant(1e-3);
    let falling = Schedule::cosine(1e-3, size.steps as u64).with_warmup(size.steps as u64 / 10);
    let rank = size.shape.dims / 8;
    for (name, how) in [
        ("32 bits".to_owned(), (Moments::Bits(32), constant)),
        ("8 bits".to_owned(), (Moments::Bits(8), constant)),
        ("4 bits".to_owned(), (Moments::Bits(4), constant)),
        ("32 bits, falling".to_owned(), (Moments::Bits(32), falling)),
        (format!("rank {rank}, falling"), (Moments::Rank(rank), falling)),
    ] {
        let runs = (0..size.seeds).map(|seed| run(&corpus, &held_out, size, how, seed)).collect::<Outcome<Vec<_>>>()?;
        let mean = |of: &dyn Fn(&Run) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
        let bits = mean(&|run| run.bits.into());
        let bytes = mean(&|run| run.bytes as f64 / run.parameters as f64);
        println!("{name:<16} {bits:>14.4} {bytes:>19.2} {:>11.2}", mean(&|run| run.seconds * 1e3));
    }
    Ok(())
}
