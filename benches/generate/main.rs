//! What a decoder generates in a second, beside reading its weights from memory; and the memory that it takes.
//!
//! The decoder is that of `tacit-models`, with the sizes of Qwen3-0.6B and drawn weights. All formats take their
//! turns in one run. `-- --quick` is a small decoder in some seconds; other words, such as `decode/nf4/compiled`, are parts of
//! the names of the cases that are wanted. `--beside=COMMAND` starts a program that decodes with the same sizes in the same
//! rounds, as `benches/peers/llama.py --beside` does, and compares with it, too.
//!
//! `TACIT_GEMMA=FILE` measures a real decoder of one file in place of the drawn one: in the file's own codes and with its layers in NF4,
//! with floats and with activations in 8 bits (`decode/file/`, `prompt512/file`). `benches/peers/llama.py --file FILE --beside` is what goes beside it.
//! `lookup/` is decoding with drafts from the text so far, and without them.

mod lookup;
mod runner;

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use runner::{AFFINE, BEFORE, BF16, Extent, FULL, NF4, NF4_INT8, OF_A_FILE, QUICK, Runner, tokens};
use tacit::compile::StageTimes;
use tacit::prelude::*;
use tacit::tree::{self, Open, leaves};
use tacit_figures::{Bench, Beside, Unit, resident};
use tacit_kernels::machine;

/// Formats that a program beside may decode.
const THEIRS: [&str; 4] = ["q4_0", "q4_k", "bf16", "file"];

fn main() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let bench = tacit_figures::bench!("generate");
    let extent = if bench.is_quick() { QUICK } else { FULL };
    let file = std::env::var_os("TACIT_GEMMA");
    if file.is_none() && bench.wants(&memory_case(&extent)) {
        memory(&bench, &extent)?;
    }
    let all = if file.is_some() { OF_A_FILE } else { [BF16, AFFINE, NF4, NF4_INT8] };
    let all = all.into_iter().filter(|weights| cases(&extent, weights.name).iter().any(|case| bench.wants(case)));
    let runner = |weights| match &file {
        Some(file) => Ok(RefCell::new(Runner::read(Path::new(file), weights)?)),
        None => Ok(RefCell::new(Runner::drawn(&extent, weights)?)),
    };
    let runners = all.map(runner).collect::<Result<Vec<_>>>()?;
    let beside = answered(Beside::given())?.map(RefCell::new);
    decoding(&bench, &extent, &runners, beside.as_ref())?;
    runners.iter().try_for_each(|runner| breakdown(&bench, &extent, &mut runner.borrow_mut()))?;
    prompts(&bench, &extent, &runners, beside.as_ref())?;
    let text = lookup::text(file.is_some());
    runners.iter().try_for_each(|runner| {
        let case = &cases(&extent, runner.borrow().weights.name)[4];
        if bench.wants(case) { lookup::with_and_without(&bench, &extent, runner, case, &text) } else { Ok(()) }
    })
}

/// The cases of a format: compiled and eager steps, a prompt, the parts of a step, and drafts.
fn cases(extent: &Extent, name: &str) -> [String; 5] {
    let [compiled, eager] = ["compiled", "eager"].map(|way| format!("decode/{name}/{way}"));
    let [prompt, step] = [format!("prompt{}/{name}", extent.prompt), format!("step/{name}/")];
    [compiled, eager, prompt, step, format!("lookup/{name}/")]
}

/// The case of the memory that decoding takes.
fn memory_case(extent: &Extent) -> String {
    format!("memory/nf4/{}", extent.context)
}

/// Whether the case of this number is asked for in some format.
fn asked(bench: &Bench, extent: &Extent, runners: &[RefCell<Runner>], number: usize) -> bool {
    runners.iter().any(|runner| bench.wants(&cases(extent, runner.borrow().weights.name)[number]))
}

/// What the program beside answers, as an error of ours.
fn answered<T>(answer: io::Result<T>) -> Result<T> {
    answer.map_err(|error| {
        Error::invalid(error.to_string(), "give `--beside` a program and its arguments, as `benches/peers` says")
    })
}

/// The cases that the program beside knows, with the name that they have among ours and the seconds of one step.
fn theirs(beside: Option<&RefCell<Beside>>, case: &str) -> Result<Vec<(String, String, f64)>> {
    let mut known = Vec::new();
    for format in THEIRS {
        let Some(beside) = beside else { break };
        let asked = format!("{case}/{format}");
        // The first step warms up.
        let seconds = |steps| answered(beside.borrow_mut().seconds(&asked, steps));
        if seconds(2)?.is_some() {
            let took = seconds(2)?.unwrap_or(f64::NAN);
            known.push((format!("{format}, the program beside"), asked, took));
        }
    }
    Ok(known)
}

/// The name of a contender, and its runner.
fn named<'a>(suffix: &str, runners: &'a [RefCell<Runner>]) -> Vec<(String, &'a RefCell<Runner>)> {
    runners.iter().map(|runner| (format!("{}{suffix}", runner.borrow().weights.name), runner)).collect()
}

fn decoding(
    bench: &Bench,
    extent: &Extent,
    runners: &[RefCell<Runner>],
    beside: Option<&RefCell<Beside>>,
) -> Result<()> {
    if !asked(bench, extent, runners, 0) && !asked(bench, extent, runners, 1) {
        return Ok(());
    }
    let theirs = theirs(beside, "decode")?;
    let [compiled, eager, reading] =
        ["/compiled", "/eager", ": the time to read the weights"].map(|suffix| named(suffix, runners));
    let mut turns = bench.turns().within(20 * extent.turn, extent.rounds);
    for (all, compile) in [(&compiled, true), (&eager, false)] {
        for (name, runner) in all {
            turns = turns.measure(name, move || runner.borrow_mut().decode(compile, extent.turn));
        }
    }
    for ((name, asked, took), beside) in theirs.iter().zip(beside.into_iter().cycle()) {
        let tokens = ((extent.turn.as_secs_f64() / took) as usize).clamp(2, 240);
        turns =
            turns.measure(name, move || Ok(answered(beside.borrow_mut().seconds(asked, tokens))?.unwrap_or(f64::NAN)));
    }
    for (name, runner) in &reading {
        turns = turns.seldom(name, move || {
            let bytes = runner.borrow().bytes();
            Ok(bytes as f64 / machine::read_bandwidth(bytes))
        });
    }
    let rounds = turns.take()?;
    for (name, (limit, _)) in compiled.iter().chain(&eager).map(|(name, _)| name).zip(reading.iter().cycle()) {
        let case = format!("decode/{name}");
        for limit in [limit].into_iter().chain(theirs.iter().map(|(name, ..)| name)) {
            rounds.record_of(&case, name, limit, Unit::rate("tokens/s", 1.0));
        }
    }
    Ok(())
}

/// Steps whose parts are timed.
const STEPS: u32 = 64;

/// Where the time of a compiled step goes: products, attention, the other stages of its plan, what is between the stages, and
/// what is outside of it, which is the host's and MLX's; what compiling it takes, and how many nodes are left to MLX.
fn breakdown(bench: &Bench, extent: &Extent, runner: &mut Runner) -> Result<()> {
    let name = runner.weights.name;
    if !bench.wants(&cases(extent, name)[3]) {
        return Ok(());
    }
    runner.decode(true, extent.turn)?;
    runner.begin(256, &runner.half()?)?;
    let mut next = runner.call(true, tokens(BEFORE)?)?;
    next = runner.call(true, next)?;
    let start = Instant::now();
    let (made, times) = StageTimes::during(|| (0..STEPS).try_fold(next, |next, _| runner.call(true, next)));
    made?;
    let step = start.elapsed();
    let of = |chosen: &dyn Fn(&str) -> bool| -> Duration {
        times.stages.iter().filter(|(name, _)| chosen(name)).map(|(_, (_, time))| *time).sum()
    };
    let product = |name: &str| name.ends_with("Matmul");
    let attention = |name: &str| name.ends_with("Attention");
    let small = of(&|name| !product(name) && !attention(name));
    let stages = of(&|_| true);
    let parts = [
        ("products", of(&product)),
        ("attention", of(&attention)),
        ("small stages", small),
        ("between stages", times.total.saturating_sub(stages)),
        ("host and MLX", step.saturating_sub(times.total)),
    ];
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3 / f64::from(STEPS);
    for (part, time) in parts {
        bench.amount(&format!("step/{name}/{part}"), milliseconds(time), "ms", "the step", milliseconds(step));
    }
    let (first, nodes) = runner.first()?;
    bench.amount(&format!("step/{name}/first call"), first, "s", "the aim", 1.5);
    bench.amount(&format!("step/{name}/nodes"), nodes as f64, "nodes", "the aim", 60.0);
    Ok(())
}

fn prompts(
    bench: &Bench,
    extent: &Extent,
    runners: &[RefCell<Runner>],
    beside: Option<&RefCell<Beside>>,
) -> Result<()> {
    if !asked(bench, extent, runners, 2) {
        return Ok(());
    }
    let theirs = theirs(beside, &format!("prompt{}", extent.prompt))?;
    let [prompts, products] = ["", ": its products alone"].map(|suffix| named(suffix, runners));
    let mut turns = bench.turns().within(20 * extent.turn, extent.rounds.min(3));
    for ((name, runner), (alone, _)) in prompts.iter().zip(&products) {
        turns = turns.measure(name, move || runner.borrow_mut().prompt(extent.prompt));
        turns = turns.measure(alone, move || runner.borrow().products(extent.prompt));
    }
    for ((name, asked, _), beside) in theirs.iter().zip(beside.into_iter().cycle()) {
        turns = turns.measure(name, move || Ok(answered(beside.borrow_mut().seconds(asked, 1))?.unwrap_or(f64::NAN)));
    }
    let rounds = turns.take()?;
    for ((name, _), (alone, _)) in prompts.iter().zip(&products) {
        let case = format!("prompt{}/{name}", extent.prompt);
        for limit in [alone].into_iter().chain(theirs.iter().map(|(name, ..)| name)) {
            rounds.record_of(&case, name, limit, Unit::rate("tokens/s", f64::from(extent.prompt)));
        }
    }
    Ok(())
}

/// The most memory that decoding takes with caches for a long context, beside the weights and the caches themselves.
fn memory(bench: &Bench, extent: &Extent) -> Result<()> {
    let before = resident::now();
    let mut runner = Runner::drawn(extent, NF4)?;
    runner.begin(extent.context, &"affine:4:64".parse()?)?;
    let caches: Vec<Value> = leaves(&runner.state.1, Open::Fully)?;
    tree::eval(&caches)?;
    let held = runner.bytes() + caches.iter().map(Value::nbytes).sum::<usize>();
    drop(caches);
    mlx_rs::memory::clear_cache()?;
    resident::reset_peak();
    let mut next = runner.call(true, tokens(BEFORE)?)?;
    for _ in 0..4 {
        next = runner.call(true, next)?;
    }
    bench.amount(
        &memory_case(extent),
        (resident::peak() - before) / 1e6,
        "MB",
        "the weights and the caches",
        held as f64 / 1e6,
    );
    Ok(())
}
