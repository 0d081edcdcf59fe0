//! Drafts from the text so far, beside one token a step.

use std::cell::{Cell, RefCell};

use mlx_rs::Array;
use serde::Deserialize;
use tacit::compile::{CompileOptions, CompiledWithState, compile_with_state};
use tacit::model::Cache;
use tacit::model::generate::{GenerateOptions, GenerateStats, Lookup, generate, speculate};
use tacit::prelude::*;
use tacit_figures::{Bench, Unit};
use tacit_models::Positions;

use crate::runner::{BEFORE, Extent, Runner, State};

/// Tokens that are proposed at a time: with the one before them they are the rows that the kernels of products take at once.
const DRAFTED: usize = 3;

/// Tokens of the text of a real decoder, and how many of them stand in it again.
const TOLD: usize = 256;
const AGAIN: usize = 64;

/// The beginning of Genesis as tokens of Gemma 3.
#[derive(Deserialize)]
struct Golden {
    tokens: Vec<u32>,
}

/// A text whose end has been in it before. Of a real decoder it is one that begins anew, so that the answer goes on as the text did. A
/// decoder of drawn weights soon says the same again and again, whatever it is given: most that is proposed to it is right.
pub(crate) fn text(is_real: bool) -> Vec<u32> {
    if !is_real {
        return (1..=BEFORE as u32).collect();
    }
    let golden = include_str!("../../tests/decoder/golden/gemma3_270m.json");
    let Golden { tokens } = serde_json::from_str(golden).expect("the file has tokens");
    // The first one begins a text, which happens once.
    [&tokens[..TOLD], &tokens[1..AGAIN]].concat()
}

type Step = CompiledWithState<'static, State, Array, Array>;

/// The logits after each token of a round, `[1, n, words]`, or after the last of others, `[1, words]`.
#[allow(clippy::needless_pass_by_value, reason = "a compiled function owns its arguments")]
fn judged((model, caches): &mut State, tokens: Array) -> Result<Array> {
    let each = (2..=DRAFTED as i32 + 1).contains(&tokens.dim(1));
    let asked = if each { Positions::All } else { Positions::Last };
    let logits = model.run_with(caches, |decoder, caches| decoder.forward(&tokens, caches, asked))?;
    if each { Ok(logits) } else { Ok(logits.squeeze_axes(&[1])?) }
}

/// What an answer to the text takes.
fn answer(runner: &mut Runner, step: &mut Step, text: &[u32], tokens: usize, drafts: bool) -> Result<GenerateStats> {
    runner.begin((text.len() + tokens + DRAFTED) as i32, &runner.half()?)?;
    let state = &mut runner.state;
    let mut caches = std::mem::take(&mut state.1);
    let step = |tokens: &Array, caches: &mut Vec<Cache>| -> Result<Array> {
        caches.iter_mut().try_for_each(|cache| cache.reserve(tokens.dim(1)))?;
        std::mem::swap(&mut state.1, caches);
        let logits = step.call(state, tokens).and_then(|logits| logits.dense());
        std::mem::swap(&mut state.1, caches);
        logits
    };
    let options = GenerateOptions { max_tokens: tokens, ..GenerateOptions::default() };
    let mut made = if drafts {
        speculate(step, &mut caches, Lookup::new(DRAFTED), text, &options)?
    } else {
        generate(step, &mut caches, &[text], &options)?
    };
    for token in made.by_ref() {
        token?;
    }
    Ok(made.stats())
}

/// The seconds of each token behind the first one.
fn seconds(stats: &GenerateStats) -> f64 {
    stats.rate().map_or(f64::NAN, f64::recip)
}

/// The tokens in a second with drafts and without them, and how many of those that are drafted stay.
pub(crate) fn with_and_without(
    bench: &Bench,
    extent: &Extent,
    runner: &RefCell<Runner>,
    case: &str,
    text: &[u32],
) -> Result<()> {
    let step = RefCell::new(compile_with_state(CompileOptions::default(), judged));
    let turn = |drafts| answer(&mut runner.borrow_mut(), &mut step.borrow_mut(), text, extent.answer, drafts);
    let [drafts, alone] = ["drafts", "alone"].map(|way| format!("{case}{way}"));
    let stats = Cell::new(GenerateStats::default());
    let turns = bench.turns().within(10 * extent.turn, extent.rounds.min(3));
    let turns = turns.measure(&drafts, || turn(true).inspect(|made| stats.set(*made)).map(|made| seconds(&made)));
    let rounds = turns.measure(&alone, || turn(false).map(|made| seconds(&made))).take()?;
    rounds.record_of(&drafts, &drafts, &alone, Unit::rate("tokens/s", 1.0));
    rounds.record_of(&alone, &alone, &drafts, Unit::rate("tokens/s", 1.0));
    let (accepted, drafted) = (stats.get().accepted as f64, stats.get().drafted.max(1) as f64);
    bench.amount(&format!("{case}accepted"), accepted, "tokens", "those that are drafted", drafted);
    Ok(())
}
