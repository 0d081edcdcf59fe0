//! Logits and greedy tokens, step by step with caches, eager and compiled.

use std::path::{Path, PathBuf};

use mlx_rs::ops::indexing::{TryIndexOp, argmax_axis};
use mlx_rs::{Array, Dtype, transforms};
use tacit::compile::{CompileOptions, compile_with_state};
use tacit::io::Tensors;
use tacit::io::json::Json;
use tacit::model::generate::Sequences;
use tacit::model::{Cache, Missing, generate};
use tacit::prelude::*;
use tacit_models::{Config, Decoder, Formats, Positions, adapt, caches, load, quantize};

use crate::refused::{changed, parsed};

pub(crate) const ARCHITECTURES: [&str; 13] = [
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "gemma2",
    "gemma3_text",
    "phi3",
    "olmo2",
    "granite",
    "smollm3",
];

/// The positions at the end of the prompt whose logits are known.
const KNOWN: i32 = 4;

pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decoder/golden").join(name)
}

/// What mlx-lm made of a checkpoint.
pub(crate) struct Golden {
    pub(crate) prompt: Array,
    prompt_logits: Array,
    pub(crate) tokens: Vec<u32>,
    /// The numbers of steps, and the logits after them.
    steps: Vec<u32>,
    logits: Array,
}

impl Golden {
    pub(crate) fn read(name: &str) -> Result<Self> {
        let tensors = Tensors::open(folder(&format!("{name}.safetensors")))?;
        let prompt = tensors.get("prompt")?;
        Ok(Self {
            prompt: prompt.reshape(&[1, prompt.dim(0)])?,
            prompt_logits: tensors.get("prompt_logits")?,
            tokens: tensors.get("tokens")?.as_slice::<u32>().to_vec(),
            steps: tensors.get("steps")?.as_slice::<u32>().to_vec(),
            logits: tensors.get("logits")?,
        })
    }
}

/// The model of a folder in f32, in which the golden logits were computed.
pub(crate) fn loaded(name: &str) -> Result<(Config, Model<Decoder>)> {
    let (config, mut model) = load(folder(name))?;
    let wide = |(path, value): (String, Value)| {
        let value = match value.as_dense() {
            Some(array) => array.as_dtype(Dtype::Float32)?.into(),
            None => value,
        };
        Ok((path, value))
    };
    model.assign(model.values()?.into_iter().map(wide).collect::<Result<_>>()?, Missing::Refuse)?;
    Ok((config, model))
}

pub(crate) type State = (Model<Decoder>, Vec<Cache>);

#[allow(clippy::needless_pass_by_value, reason = "a compiled function owns its arguments")]
pub(crate) fn step((model, caches): &mut State, tokens: Array) -> Result<Array> {
    model.run_with(caches, |decoder, caches| decoder.forward(&tokens, caches, Positions::All))
}

pub(crate) fn reserve(caches: &mut [Cache], tokens: i32) -> Result<()> {
    caches.iter_mut().try_for_each(|cache| cache.reserve(tokens))
}

/// How far logits are from the expected ones, in terms of the largest.
pub(crate) fn difference(found: &Array, expected: &Array) -> Result<f32> {
    let largest = |array: &Array| Ok::<_, Error>(array.abs()?.max(None)?.item_exact::<f32>());
    Ok(largest(&found.subtract(expected)?)? / largest(expected)?)
}

/// Feeds the golden tokens to `step` and compares what it gives.
fn compare(
    name: &str,
    golden: &Golden,
    tolerance: f32,
    state: &mut State,
    mut step: impl FnMut(&mut State, &Array) -> Result<Array>,
) -> Result<()> {
    reserve(&mut state.1, golden.prompt.dim(1))?;
    let logits = step(state, &golden.prompt)?;
    let known = logits.try_index((0, -KNOWN.., ..))?;
    let far = difference(&known, &golden.prompt_logits)?;
    assert!(far <= tolerance, "{name}: the prompt's logits differ by {far}");
    let mut last = logits.try_index((.., -1, ..))?;
    for (number, &expected) in (0..).zip(&golden.tokens) {
        let token = argmax_axis(&last, -1, None)?.item_exact::<u32>();
        assert_eq!(token, expected, "{name}: step {number}");
        reserve(&mut state.1, 1)?;
        last = step(state, &Array::from_slice(&[token], &[1, 1]))?.try_index((.., 0, ..))?;
        if let Some(row) = golden.steps.iter().position(|&step| step == number) {
            let far = difference(&last.try_index(0)?, &golden.logits.try_index(row as i32)?)?;
            assert!(far <= tolerance, "{name}: the logits of step {number} differ by {far}");
        }
    }
    Ok(())
}

fn check(name: &str, tolerance: f32) -> Result<()> {
    // A kernel that MLX fuses takes the C++ compiler half a second.
    if std::env::var("TACIT_SWEEP").as_deref() != Ok("full") {
        tacit::compile::disable_fusion();
    }
    let golden = Golden::read(name)?;
    let (config, model) = loaded(name)?;
    let mut state = (model, caches(&config, 1, Dtype::Float32)?);
    let before = state.1.clone();
    let eager = |state: &mut State, tokens: &Array| {
        let logits = step(state, tokens.clone())?;
        transforms::eval([&logits])?;
        Ok(logits)
    };
    compare(name, &golden, tolerance, &mut state, eager)?;

    state.1 = before;
    let mut compiled = compile_with_state(CompileOptions::default(), step);
    compare(name, &golden, tolerance, &mut state, |state, tokens| compiled.call(state, &tokens)?.dense())?;
    // One for the prompt, and one for all steps.
    assert_eq!(compiled.stats().traces, 2, "{name}");
    Ok(())
}

/// As transformers reads it.
#[test]
fn qwen2_has_the_biases_that_it_has_whatever_its_file_says() -> Result<()> {
    let read = |changes| changed("qwen2", &parsed(changes)).map(|config| format!("{config:?}"));
    let as_it_is = read("{}")?;
    for changes in [r#"{"attention_bias": true}"#, r#"{"attention_bias": false}"#] {
        assert_eq!(read(changes)?, as_it_is);
    }
    Ok(())
}

#[test]
fn floats_give_what_they_give_in_mlx_lm() -> Result<()> {
    let _deny = Policy::Deny.scope();
    ARCHITECTURES.iter().try_for_each(|name| check(&format!("float/{name}"), 1e-4))
}

#[test]
fn codes_give_what_they_give_in_mlx_lm() -> Result<()> {
    let _deny = Policy::Deny.scope();
    ARCHITECTURES.iter().try_for_each(|name| check(&format!("affine/{name}"), 1e-3))
}

#[test]
fn an_adapter_of_mlx_lm_changes_the_logits_as_there() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let golden = Golden::read("affine/qwen2")?;
    let (config, mut model) = loaded("affine/qwen2")?;
    adapt(&mut model, &folder("lora"))?;
    assert_eq!(model.get("model.layers.0.mlp.down_proj.weight")?.to_string(), "Lora(f32[32,32])");
    let mut state = (model, caches(&config, 1, Dtype::Float32)?);
    reserve(&mut state.1, golden.prompt.dim(1))?;
    let known = step(&mut state, golden.prompt)?.try_index((0, -KNOWN.., ..))?;
    let expected = Tensors::open(folder("lora.safetensors"))?.get("prompt_logits")?;
    let far = difference(&known, &expected)?;
    assert!(far <= 1e-3, "they differ by {far}");
    assert!(difference(&known, &golden.prompt_logits)? > 0.1, "the adapter changes nothing");
    Ok(())
}

#[test]
fn the_last_logits_are_the_last_of_all() -> Result<()> {
    let golden = Golden::read("float/llama")?;
    let (config, mut model) = loaded("float/llama")?;
    let mut asked = |positions| {
        let mut caches = caches(&config, 1, Dtype::Float32)?;
        reserve(&mut caches, golden.prompt.dim(1))?;
        model.run_with(&mut caches, |decoder, caches| decoder.forward(&golden.prompt, caches, positions))
    };
    let (last, all) = (asked(Positions::Last)?, asked(Positions::All)?);
    assert_eq!((last.shape(), all.shape()), (&[1, 1, 128][..], &[1, golden.prompt.dim(1), 128][..]));
    assert!(difference(&last, &all.try_index((.., -1.., ..))?)? < 1e-5);
    Ok(())
}

/// A sequence of a batch gives what it gives alone, and a prompt in pieces what it gives as one.
#[test]
fn batches_and_pieces_of_a_prompt_change_nothing() -> Result<()> {
    for name in ["float/gemma3_text", "float/qwen3_moe", "float/qwen3_next"] {
        let golden = Golden::read(name)?;
        let (config, mut model) = loaded(name)?;
        let other = golden.prompt.add(Array::from_slice(&[1u32], &[1]))?;
        let both = mlx_rs::ops::concatenate(&[&golden.prompt, &other], 0)?;
        let mut caches = caches(&config, 2, Dtype::Float32)?;
        let mut logits = None;
        for piece in both.split_at_indices(&[7, 18], 1)? {
            reserve(&mut caches, piece.dim(1))?;
            let run = |decoder: &mut Decoder, caches: &mut Vec<Cache>| decoder.forward(&piece, caches, Positions::All);
            logits = Some(model.run_with(&mut caches, run)?);
        }
        let last = logits.expect("there are pieces").try_index((0, -1, ..))?;
        let far = difference(&last, &golden.prompt_logits.try_index(-1)?)?;
        assert!(far <= 1e-4, "{name}: the logits differ by {far}");
    }
    Ok(())
}

/// A prompt beside longer ones, filled up on the left, gives what it gives alone: in every architecture and float type.
#[test]
fn padding_on_the_left_changes_nothing() -> Result<()> {
    let _deny = Policy::Deny.scope();
    for name in ARCHITECTURES {
        let (config, mut model) = loaded(&format!("float/{name}"))?;
        let values = model.values()?;
        let prompt = Golden::read(&format!("float/{name}"))?.prompt;
        let whole: Vec<u32> = prompt.as_dtype(Dtype::Uint32)?.as_slice::<u32>().to_vec();
        let prompts = [&whole[..], &whole[..7], &whole[3..5]];
        let longest = whole.len();
        for (dtype, tolerance) in [(Dtype::Float32, 1e-4), (Dtype::Bfloat16, 0.15), (Dtype::Float16, 0.02)] {
            // MLX has no gathered product of dense halves on a CPU.
            if ["mixtral", "qwen3_moe", "qwen3_next"].contains(&name) && dtype != Dtype::Float32 {
                continue;
            }
            let narrow = |(path, value): (String, Value)| Ok((path, value.dense()?.as_dtype(dtype)?.into()));
            model.assign(values.clone().into_iter().map(narrow).collect::<Result<_>>()?, Missing::Refuse)?;
            let mut logits = |caches: &mut Vec<Cache>, tokens: &[u32], batch: i32| {
                let tokens = Array::from_slice(tokens, &[batch, tokens.len() as i32 / batch]);
                reserve(caches, tokens.dim(1))?;
                let run =
                    |decoder: &mut Decoder, caches: &mut Vec<Cache>| decoder.forward(&tokens, caches, Positions::Last);
                model.run_with(caches, run)?.as_dtype(Dtype::Float32).map_err(Error::from)
            };
            let mut all = caches(&config, 3, dtype)?;
            let lengths = prompts.map(|prompt| prompt.len() as i32);
            all.pad_left(longest as i32, &lengths)?;
            let filled = |prompt: &&[u32]| [&vec![0; longest - prompt.len()], *prompt].concat();
            let together = logits(&mut all, &prompts.iter().flat_map(filled).collect::<Vec<_>>(), 3)?;
            let then = logits(&mut all, &[9, 9, 9], 3)?;
            for (row, prompt) in (0..).zip(prompts) {
                let mut own = caches(&config, 1, dtype)?;
                for (found, alone) in [(&together, logits(&mut own, prompt, 1)?), (&then, logits(&mut own, &[9], 1)?)] {
                    let far = difference(&found.try_index((row, .., ..))?, &alone.try_index((0, .., ..))?)?;
                    assert!(far <= tolerance, "{name} {dtype:?}: the logits of prompt {row} differ by {far}");
                }
            }
        }
    }
    Ok(())
}

/// A token that is no word is an error with its number, dense or in codes, eager or compiled, and never foreign memory.
#[test]
fn tokens_beyond_the_vocabulary_are_named() -> Result<()> {
    for weights in [None, Some("affine:4:32")] {
        let (config, mut model) = loaded("float/llama")?;
        if let Some(weights) = weights {
            model = quantize(model, &Formats::read(weights)?)?;
        }
        let words = config.vocab_size;
        let mut compiled = compile_with_state(CompileOptions::default(), step);
        let mut state = (model, Vec::new());
        for token in [words, 5000, i32::MAX, -1] {
            let wrong = Array::from_slice(&[3, token, 4], &[1, 3]);
            let mut of_type = vec![wrong.clone()];
            if token > 0 {
                of_type.push(wrong.as_dtype(Dtype::Uint32)?);
            }
            for tokens in of_type {
                let mut empty = caches(&config, 1, Dtype::Float32)?;
                reserve(&mut empty, 3)?;
                state.1 = empty.clone();
                let eager = step(&mut state, tokens.clone()).and_then(|logits| Ok(transforms::eval([&logits])?));
                state.1 = empty;
                let compiled =
                    compiled.call(&mut state, &tokens).and_then(|logits| Ok(transforms::eval([&logits.dense()?])?));
                for error in [eager, compiled].map(|made| made.expect_err("it is no word").to_string()) {
                    let expected = format!(
                        "kernel Indices failed: token {token} (entry 1) is not in the range 0 to {}\n\
                         help: use the tokenizer of this model, and begin again with new caches",
                        words - 1
                    );
                    assert_eq!(error, expected);
                }
            }
        }
        for tokens in [Array::from_slice(&[1f32, 2.0], &[1, 2]), Array::from_slice(&[1u32, 2], &[2])] {
            let expected = format!(
                "the tokens of a step are {}\n\
                 help: give their places in the vocabulary as u32 or i32, `[batch, n]`",
                Value::from(&tokens)
            );
            state.1 = caches(&config, 1, Dtype::Float32)?;
            assert_eq!(step(&mut state, tokens).expect_err("no tokens of a batch").to_string(), expected);
        }
    }
    Ok(())
}

#[test]
fn a_prompt_with_a_token_beyond_the_vocabulary_generates_nothing() -> Result<()> {
    let (config, mut model) = loaded("float/gemma2")?;
    for (prompt, prefill) in [(&[1u32, 128, 3][..], 512), (&[1, 2, 3, 5000], 1), (&[4_000_000_000], 512)] {
        let mut state = caches(&config, 1, Dtype::Float32)?;
        let step = |tokens: &Array, caches: &mut Vec<Cache>| {
            reserve(caches, tokens.dim(1))?;
            model.run_with(caches, |decoder, caches| decoder.forward(tokens, caches, Positions::All))
        };
        let options = generate::GenerateOptions { max_tokens: 4, prefill, ..generate::GenerateOptions::default() };
        let made = generate(step, &mut state, &[prompt], &options)
            .and_then(|tokens| tokens.map(|token| Ok(token?.id)).collect::<Result<Vec<u32>>>());
        let error = made.expect_err("it is no word").to_string();
        assert!(error.contains("is not in the range 0 to 127\nhelp: use the tokenizer of this model"), "{error}");
    }
    Ok(())
}

/// Keys and values of few bits, under a policy that lets nobody build the floats.
#[test]
fn caches_of_few_bits_give_nearly_the_same() -> Result<()> {
    let wide = Json::parse(r#"{"head_dim": 64, "hidden_size": 128}"#).expect("an object");
    let config = changed("qwen3", &wide)?;
    mlx_rs::random::seed(0)?;
    let mut model = Model::new(Decoder::new(&config)?)?;
    let prompt = Golden::read("float/qwen3")?.prompt;
    let mut last = |formats: Option<[AnyFormat; 2]>| {
        let mut caches = caches(&config, 1, Dtype::Float32)?;
        if let Some([keys, values]) = formats {
            let stored = |cache: Cache| cache.stored(Some(keys.clone()), Some(values.clone()));
            caches = caches.into_iter().map(stored).collect::<Result<_>>()?;
        }
        let _deny = Policy::Deny.scope();
        let mut logits = None;
        for piece in prompt.split_at_indices(&[17, 20], 1)? {
            reserve(&mut caches, piece.dim(1))?;
            let run = |decoder: &mut Decoder, caches: &mut Vec<Cache>| decoder.forward(&piece, caches, Positions::Last);
            logits = Some(model.run_with(&mut caches, run)?);
        }
        Ok::<_, Error>(logits.expect("there are pieces"))
    };
    let dense = last(None)?;
    for (keys, values, most) in [("affine:8:64", "affine:8:64", 0.02), ("affine:8:64", "affine:4:64", 0.2)] {
        let far = difference(&last(Some([keys.parse()?, values.parse()?]))?, &dense)?;
        assert!(far > 1e-6 && far < most, "{keys}, {values}: the logits differ by {far}");
    }
    Ok(())
}

/// Of Hugging Face's names that of the first expert decides.
#[test]
fn rules_name_experts_as_either_library_does() -> Result<()> {
    let layer = "model.layers.1.mlp";
    for named in
        ["*.experts.*.up_proj.weight", "model.layers.1.mlp.experts.0.up_proj.weight", "*.switch_mlp.up_proj.weight"]
    {
        let rules = Rules::new().quantize(named, "int8")?.quantize("model.layers.9.*", "int8")?;
        let model = quantize(load(folder("float/qwen3_moe"))?.1, &Formats::Rules(rules))?;
        assert_eq!(model.get(&format!("{layer}.switch_mlp.up_proj.weight"))?.to_string(), "Int8(bf16[4,32,32])");
        assert_eq!(model.get(&format!("{layer}.switch_mlp.gate_proj.weight"))?.to_string(), "bf16[4,32,32]");
        assert_eq!(model.report().unused, ["model.layers.9.*"], "{named}");
    }
    Ok(())
}

#[test]
fn weights_take_a_format_and_the_router_and_norms_stay() -> Result<()> {
    let (_, model) = load(folder("float/qwen3_moe"))?;
    let model = quantize(model, &Formats::read("affine:4:32")?)?;
    let formats = |value: Value| value.to_string();
    assert_eq!(formats(model.get("model.layers.1.mlp.switch_mlp.up_proj.weight")?), "Affine(bf16[4,32,32])");
    assert_eq!(formats(model.get("model.embed_tokens.weight")?), "Affine(bf16[128,32])");
    assert_eq!(formats(model.get("model.layers.1.mlp.gate.weight")?), "bf16[4,32]");
    assert_eq!(formats(model.get("model.norm.weight")?), "bf16[32]");
    // The embedding has 8 bits and two half floats for each 32, unless rules say otherwise.
    assert_eq!(model.get("model.embed_tokens.weight")?.nbytes(), 128 * (32 + 4));
    let file = std::env::temp_dir().join(format!("tacit-decoder-rules-{}.toml", std::process::id()));
    std::fs::write(&file, "\"*.embed_tokens.weight\" = \"affine:4:32\"").expect("writes");
    let own = quantize(load(folder("float/qwen3_moe"))?.1, &Formats::read(file.to_str().expect("text"))?)?;
    std::fs::remove_file(&file).ok();
    assert_eq!(own.get("model.embed_tokens.weight")?.nbytes(), 128 * (16 + 4));
    Ok(())
}
