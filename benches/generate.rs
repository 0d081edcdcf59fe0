//! What a decoder generates in a second, beside reading its weights from memory; and the memory that it takes.
//!
//! The decoder is that of `tacit-models`, with the sizes of Qwen3-0.6B and drawn weights. All formats take their
//! turns in one run. `-- --quick` is a small decoder in some seconds; other words, such as `decode/nf4/compiled`, are parts of
//! the names of the cases that are wanted. `--beside=COMMAND` starts a program that decodes with the same sizes in the same
//! rounds, as `benches/peers/llama.py --beside` does, and compares with it, too.
//!
//! `TACIT_GEMMA=FILE` measures a real decoder of one file in place of the drawn one: in the file's own codes and with its layers in NF4,
//! with floats and with activations in 8 bits (`decode/file/`, `prompt512/file`). `benches/peers/llama_file.py FILE` is what goes beside it.

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use mlx_rs::ops::indexing::argmax_axis;
use mlx_rs::{Array, Dtype, ops, random};
use tacit::compile::{CompileOptions, CompiledWithState, StageTimes, compile_with_state};
use tacit::io::json::Json;
use tacit::model::{Cache, Missing};
use tacit::prelude::*;
use tacit::tree::{self, Open, leaves};
use tacit::{Aval, format};
use tacit_figures::{Bench, Beside, Unit, resident};
use tacit_kernels::machine;
use tacit_models::{Config, Decoder, Positions};

/// Tokens before those that are timed.
const BEFORE: i32 = 8;

/// How much is measured.
struct Extent {
    layers: i32,
    words: i32,
    /// Tokens of a prompt that is read at once.
    prompt: i32,
    /// Tokens that the caches of the memory's case have room for.
    context: i32,
    rounds: usize,
    /// How long each way of decoding has its turn.
    turn: Duration,
}

const FULL: Extent =
    Extent { layers: 28, words: 151_936, prompt: 512, context: 32_768, rounds: 5, turn: Duration::from_millis(600) };
const QUICK: Extent =
    Extent { layers: 2, words: 4096, prompt: 64, context: 512, rounds: 3, turn: Duration::from_millis(60) };

/// Formats that a program beside may decode.
const THEIRS: [&str; 4] = ["q4_0", "q4_k", "bf16", "file"];

/// How the weights are held.
#[derive(Clone, Copy)]
struct Weights {
    name: &'static str,
    /// None is dense, and of a file what it has.
    format: Option<&'static str>,
    int8: bool,
    /// Of activations and caches.
    dtype: Dtype,
}

const BF16: Weights = Weights { name: "bf16", format: Some("bf16"), int8: false, dtype: Dtype::Bfloat16 };
const AFFINE: Weights = Weights { name: "affine4", format: Some("affine:4:64"), int8: false, dtype: Dtype::Float32 };
const NF4: Weights = Weights { name: "nf4", format: Some("nf4:64"), int8: false, dtype: Dtype::Float32 };
const NF4_INT8: Weights = Weights { name: "nf4-int8", format: Some("nf4:64"), int8: true, dtype: Dtype::Float32 };

/// Of a file; their dtype is the file's.
const FILE: Weights = Weights { name: "file", format: None, int8: false, dtype: Dtype::Float32 };
const OF_A_FILE: [Weights; 4] = [
    FILE,
    Weights { name: "file-int8", int8: true, ..FILE },
    Weights { name: "file-nf4", format: Some("nf4:64"), ..FILE },
    Weights { name: "file-nf4-int8", format: Some("nf4:64"), int8: true, ..FILE },
];

/// What of a file is quantized: its embedding has eight bits.
const LAYERS: &str = "model.layers.*_proj.weight";

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
    prompts(&bench, &extent, &runners, beside.as_ref())
}

/// The cases of a format: compiled and eager steps, a prompt, and the parts of a step.
fn cases(extent: &Extent, name: &str) -> [String; 4] {
    let [compiled, eager] = ["compiled", "eager"].map(|way| format!("decode/{name}/{way}"));
    [compiled, eager, format!("prompt{}/{name}", extent.prompt), format!("step/{name}/")]
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

/// A model and its caches.
type State = (Model<Decoder>, Vec<Cache>);

/// The likeliest token after `tokens: u32[1, n]`, `u32[1, 1]`.
#[allow(clippy::needless_pass_by_value, reason = "a compiled function owns its arguments")]
fn step((model, caches): &mut State, tokens: Array) -> Result<Array> {
    model.run_with(caches, |decoder, caches| {
        Ok::<_, Error>(argmax_axis(decoder.forward(&tokens, caches, Positions::Last)?, -1, false)?)
    })
}

struct Runner {
    weights: Weights,
    config: Config,
    state: State,
    compiled: CompiledWithState<'static, State, Array, Array>,
}

impl Runner {
    fn drawn(extent: &Extent, weights: Weights) -> Result<Self> {
        let config = sizes(extent)?;
        let mut model = Model::new(Decoder::new(&config)?)?;
        let own = model.avals();
        let mut drawn = Vec::new();
        let parameter = |(path, aval): (String, Aval)| Ok((path, weight(&weights, &aval, &mut drawn)?));
        let parameters = own.into_iter().map(parameter).collect::<Result<_>>()?;
        model.assign(parameters, Missing::Refuse)?;
        Self::new(weights, config, model)
    }

    fn read(file: &Path, weights: Weights) -> Result<Self> {
        let (config, mut model) = tacit_models::load(file)?;
        if let Some(format) = weights.format {
            let _allow = Policy::Allow.scope();
            model.replace(LAYERS, |_, codes| Ok(Some(codes.dense()?.into())))?;
            model = model.quantize(LAYERS, format)?;
        }
        let dtype = model.get("model.embed_tokens.weight")?.aval()?.dtype;
        Self::new(Weights { dtype, ..weights }, config, model)
    }

    fn new(weights: Weights, config: Config, mut model: Model<Decoder>) -> Result<Self> {
        if weights.int8 {
            model.int8_activations("*")?;
        }
        let compiled = compile_with_state(CompileOptions::default(), step);
        Ok(Self { weights, config, state: (model, Vec::new()), compiled })
    }

    fn bytes(&self) -> usize {
        self.state.0.nbytes()
    }

    /// Empty caches in a format with room for so many tokens.
    fn begin(&mut self, tokens: i32, format: &AnyFormat) -> Result<()> {
        let caches = tacit_models::caches(&self.config, 1, self.weights.dtype)?.into_iter();
        self.state.1 =
            caches.map(|cache| cache.stored(Some(format.clone()), Some(format.clone()))).collect::<Result<_>>()?;
        self.state.1.iter_mut().try_for_each(|cache| cache.reserve(tokens))
    }

    /// Half floats, those of the activations where they are such.
    fn half(&self) -> Result<AnyFormat> {
        if self.weights.dtype == Dtype::Bfloat16 { "bf16" } else { "f16" }.parse()
    }

    fn call(&mut self, compiled: bool, tokens: Array) -> Result<Array> {
        let next = if compiled {
            self.compiled.call(&mut self.state, &tokens)?.dense()?
        } else {
            step(&mut self.state, tokens)?
        };
        tree::eval(&(&self.state.1, &next))?;
        Ok(next)
    }

    /// The seconds of each token, as many as there is time for.
    fn decode(&mut self, compiled: bool, turn: Duration) -> Result<f64> {
        self.begin(256, &self.half()?)?;
        let mut next = self.call(compiled, tokens(BEFORE)?)?;
        // The first token may be traced.
        next = self.call(compiled, next)?;
        let (start, mut made) = (Instant::now(), 0);
        while made < 240 && (made < 2 || start.elapsed() < turn) {
            next = self.call(compiled, next)?;
            made += 1;
        }
        Ok(start.elapsed().as_secs_f64() / f64::from(made))
    }

    /// The seconds of a prompt.
    fn prompt(&mut self, tokens_read: i32) -> Result<f64> {
        self.begin(tokens_read, &self.half()?)?;
        let tokens = tokens(tokens_read)?;
        let start = Instant::now();
        self.call(true, tokens)?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// The seconds of the products of a prompt and nothing else.
    fn products(&self, rows: i32) -> Result<f64> {
        let mut seconds = 0.0;
        for (path, w) in self.state.0.values()? {
            if !path.ends_with("_proj.weight") {
                continue;
            }
            let x = random::normal::<f32>(&[rows, w.aval()?.shape[1]], None, None, &random::key(1)?)?;
            x.eval()?;
            let start = Instant::now();
            implicit((&x, &w), |(x, w)| x.matmul(w.t()))?.dense()?.eval()?;
            seconds += start.elapsed().as_secs_f64();
        }
        Ok(seconds)
    }
}

/// The configuration of Qwen3-0.6B, or of fewer layers and words.
fn sizes(&Extent { layers, words, .. }: &Extent) -> Result<Config> {
    let text = format!(
        r#"{{"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": {layers},
            "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": {words},
            "rms_norm_eps": 1e-6, "rope_theta": 1000000, "tie_word_embeddings": true, "hidden_act": "silu"}}"#
    );
    let json = Json::parse(&text).map_err(|error| Error::invalid(error, "write the sizes as config.json does"))?;
    Config::of(&json, Path::new("config.json"))
}

/// A parameter of this shape: gains of 1, and matrices that are drawn once for each shape.
fn weight(weights: &Weights, aval: &Aval, drawn: &mut Vec<(Vec<i32>, Array)>) -> Result<Value> {
    let value: Value = match (aval.shape.as_slice(), weights.format) {
        ([_], _) => ops::ones_dtype(&aval.shape, weights.dtype)?.into(),
        (shape, None) => draw(shape)?.as_dtype(weights.dtype)?.into(),
        (shape, Some(text)) => {
            if !drawn.iter().any(|(known, _)| known == shape) {
                drawn.push((shape.to_vec(), draw(shape)?));
            }
            let known = drawn.iter().find(|(known, _)| known == shape);
            format::parse(text)?.quantize(known.map_or(&Array::from_f32(0.0), |(_, matrix)| matrix))?
        }
    };
    tree::eval(&value)?;
    Ok(value)
}

fn draw(shape: &[i32]) -> Result<Array> {
    let matrix = random::uniform::<_, f32>(-0.05, 0.05, shape, Some(&random::key(0)?))?;
    matrix.eval()?;
    Ok(matrix)
}

fn tokens(count: i32) -> Result<Array> {
    Ok(ops::arange::<_, u32>(1, count + 1, None)?.reshape(&[1, count])?)
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
/// what is outside of it, which is the host's and MLX's.
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
    let (made, times) = StageTimes::of(|| (0..STEPS).try_fold(next, |next, _| runner.call(true, next)));
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
