//! A decoder with its caches, and how it is run.

use std::path::Path;
use std::time::{Duration, Instant};

use mlx_rs::ops::indexing::argmax_axis;
use mlx_rs::{Array, Dtype, ops, random};
use tacit::compile::{CompileOptions, CompiledWithState, compile_with_state};
use tacit::io::json::Json;
use tacit::model::{Cache, Missing};
use tacit::prelude::*;
use tacit::{format, tree};
use tacit_models::{Config, Decoder, Positions};

/// Tokens before those that are timed.
pub(crate) const BEFORE: i32 = 8;

/// How much is measured.
pub(crate) struct Extent {
    layers: i32,
    words: i32,
    /// Tokens of a prompt that is read at once.
    pub(crate) prompt: i32,
    /// Tokens that are made behind a text that repeats itself.
    pub(crate) answer: usize,
    /// Tokens that the caches of the memory's case have room for.
    pub(crate) context: i32,
    pub(crate) rounds: usize,
    /// How long each way of decoding has its turn.
    pub(crate) turn: Duration,
}

pub(crate) const FULL: Extent = Extent {
    layers: 28,
    words: 151_936,
    prompt: 512,
    answer: 96,
    context: 32_768,
    rounds: 5,
    turn: Duration::from_millis(600),
};
pub(crate) const QUICK: Extent =
    Extent { layers: 2, words: 4096, prompt: 64, answer: 24, context: 512, rounds: 3, turn: Duration::from_millis(60) };

/// How the weights are held.
#[derive(Clone, Copy)]
pub(crate) struct Weights {
    pub(crate) name: &'static str,
    /// None is dense, and of a file what it has.
    format: Option<&'static str>,
    int8: bool,
    /// Of activations and caches.
    dtype: Dtype,
}

pub(crate) const BF16: Weights = Weights { name: "bf16", format: Some("bf16"), int8: false, dtype: Dtype::Bfloat16 };
pub(crate) const AFFINE: Weights =
    Weights { name: "affine4", format: Some("affine:4:64"), int8: false, dtype: Dtype::Float32 };
pub(crate) const NF4: Weights = Weights { name: "nf4", format: Some("nf4:64"), int8: false, dtype: Dtype::Float32 };
pub(crate) const NF4_INT8: Weights =
    Weights { name: "nf4-int8", format: Some("nf4:64"), int8: true, dtype: Dtype::Float32 };

/// Of a file; their dtype is the file's.
const FILE: Weights = Weights { name: "file", format: None, int8: false, dtype: Dtype::Float32 };
pub(crate) const OF_A_FILE: [Weights; 4] = [
    FILE,
    Weights { name: "file-int8", int8: true, ..FILE },
    Weights { name: "file-nf4", format: Some("nf4:64"), ..FILE },
    Weights { name: "file-nf4-int8", format: Some("nf4:64"), int8: true, ..FILE },
];

/// What of a file is quantized: its embedding has eight bits.
const LAYERS: &str = "model.layers.*_proj.weight";

/// A model and its caches.
pub(crate) type State = (Model<Decoder>, Vec<Cache>);

/// The likeliest token after `tokens: u32[1, n]`, `u32[1, 1]`.
#[allow(clippy::needless_pass_by_value, reason = "a compiled function owns its arguments")]
fn step((model, caches): &mut State, tokens: Array) -> Result<Array> {
    model.run_with(caches, |decoder, caches| {
        Ok::<_, Error>(argmax_axis(decoder.forward(&tokens, caches, Positions::Last)?, -1, false)?)
    })
}

pub(crate) struct Runner {
    pub(crate) weights: Weights,
    config: Config,
    pub(crate) state: State,
    compiled: CompiledWithState<'static, State, Array, Array>,
}

impl Runner {
    pub(crate) fn drawn(extent: &Extent, weights: Weights) -> Result<Self> {
        let config = sizes(extent)?;
        let mut model = Model::new(Decoder::new(&config)?)?;
        let own = model.avals();
        let mut drawn = Vec::new();
        let parameter = |(path, aval): (String, Aval)| Ok((path, weight(&weights, &aval, &mut drawn)?));
        let parameters = own.into_iter().map(parameter).collect::<Result<_>>()?;
        model.assign(parameters, Missing::Refuse)?;
        Self::new(weights, config, model)
    }

    pub(crate) fn read(file: &Path, weights: Weights) -> Result<Self> {
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

    pub(crate) fn bytes(&self) -> usize {
        self.state.0.nbytes()
    }

    /// Empty caches in a format with room for so many tokens.
    pub(crate) fn begin(&mut self, tokens: i32, format: &AnyFormat) -> Result<()> {
        let caches = tacit_models::caches(&self.config, 1, self.weights.dtype)?.into_iter();
        self.state.1 =
            caches.map(|cache| cache.stored(Some(format.clone()), Some(format.clone()))).collect::<Result<_>>()?;
        self.state.1.iter_mut().try_for_each(|cache| cache.reserve(tokens))
    }

    /// Half floats, those of the activations where they are such.
    pub(crate) fn half(&self) -> Result<AnyFormat> {
        if self.weights.dtype == Dtype::Bfloat16 { "bf16" } else { "f16" }.parse()
    }

    pub(crate) fn call(&mut self, compiled: bool, tokens: Array) -> Result<Array> {
        let next = if compiled {
            self.compiled.call(&mut self.state, &tokens)?.dense()?
        } else {
            step(&mut self.state, tokens)?
        };
        tree::eval(&(&self.state.1, &next))?;
        Ok(next)
    }

    /// The seconds of each token, as many as there is time for.
    pub(crate) fn decode(&mut self, compiled: bool, turn: Duration) -> Result<f64> {
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

    /// The seconds that the first call of a new compiled step takes beyond the second, and how many nodes it leaves to MLX.
    pub(crate) fn first(&mut self) -> Result<(f64, usize)> {
        self.compiled = compile_with_state(CompileOptions::default(), step);
        self.begin(256, &self.half()?)?;
        let mut seconds = [0.0; 2];
        for seconds in &mut seconds {
            let start = Instant::now();
            self.call(true, tokens(1)?)?;
            *seconds = start.elapsed().as_secs_f64();
        }
        let [first, second] = seconds;
        Ok((first - second, self.compiled.stats().nodes.values().sum()))
    }

    /// The seconds of a prompt.
    pub(crate) fn prompt(&mut self, tokens_read: i32) -> Result<f64> {
        self.begin(tokens_read, &self.half()?)?;
        let tokens = tokens(tokens_read)?;
        let start = Instant::now();
        self.call(true, tokens)?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// The seconds of the products of a prompt and nothing else.
    pub(crate) fn products(&self, rows: i32) -> Result<f64> {
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
    Config::from_json(&json, Path::new("config.json"))
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

pub(crate) fn tokens(count: i32) -> Result<Array> {
    Ok(ops::arange::<_, u32>(1, count + 1, None)?.reshape(&[1, count])?)
}
