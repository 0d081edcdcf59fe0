//! Logits and greedy tokens, step by step with caches, eager and compiled.

use std::path::{Path, PathBuf};

use mlx_rs::ops::indexing::{TryIndexOp, argmax_axis};
use mlx_rs::{Array, Dtype, transforms};
use tacit::compile::{Options, compile_with_state};
use tacit::io::Tensors;
use tacit::nn::{KvCache, Missing};
use tacit::prelude::*;

use crate::config::Config;
use crate::decoder::{Decoder, Positions, caches};
use crate::load;

pub(crate) const ARCHITECTURES: [&str; 7] =
    ["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text"];

/// The positions at the end of the prompt whose logits are known.
const KNOWN: i32 = 4;

pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/generate/golden").join(name)
}

/// What mlx-lm made of a checkpoint.
struct Golden {
    prompt: Array,
    prompt_logits: Array,
    tokens: Vec<u32>,
    /// The numbers of steps, and the logits after them.
    steps: Vec<u32>,
    logits: Array,
}

impl Golden {
    fn read(name: &str) -> Result<Self> {
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
fn loaded(name: &str) -> Result<(Config, Model<Decoder>)> {
    let (config, mut model) = load::load(&folder(name))?;
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

type State = (Model<Decoder>, Vec<KvCache>);

fn step((model, caches): &mut State, tokens: Array) -> Result<Array> {
    model.run_with(caches, |decoder, caches| decoder.forward(&tokens, caches, Positions::All))
}

/// How far logits are from the expected ones, in terms of the largest.
fn difference(found: &Array, expected: &Array) -> Result<f32> {
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
    let room = golden.prompt.dim(1) + golden.tokens.len() as i32;
    state.1.iter_mut().try_for_each(|cache| cache.reserve(room))?;
    let logits = step(state, &golden.prompt)?;
    let known = logits.try_index((0, -KNOWN.., ..))?;
    let far = difference(&known, &golden.prompt_logits)?;
    assert!(far <= tolerance, "{name}: the prompt's logits differ by {far}");
    let mut last = logits.try_index((.., -1, ..))?;
    for (number, &expected) in (0..).zip(&golden.tokens) {
        let token = argmax_axis(&last, -1, None)?.item_exact::<u32>();
        assert_eq!(token, expected, "{name}: step {number}");
        last = step(state, &Array::from_slice(&[token], &[1, 1]))?.try_index((.., 0, ..))?;
        if let Some(row) = golden.steps.iter().position(|&step| step == number) {
            let far = difference(&last.try_index(0)?, &golden.logits.try_index(row as i32)?)?;
            assert!(far <= tolerance, "{name}: the logits of step {number} differ by {far}");
        }
    }
    Ok(())
}

fn check(name: &str, tolerance: f32) -> Result<()> {
    let golden = Golden::read(name)?;
    let (config, model) = loaded(name)?;
    let mut state = (model, caches(&config, 1, Dtype::Float32)?);
    let before = state.1.clone();
    let eager = |state: &mut State, tokens: &Array| {
        let logits = step(state, tokens.clone())?;
        transforms::eval([&logits])?;
        Ok(logits)
    };
    let t = std::time::Instant::now();
    compare(name, &golden, tolerance, &mut state, eager)?;
    let e = t.elapsed();

    state.1 = before;
    let mut compiled = compile_with_state(step, Options::default());
    compare(name, &golden, tolerance, &mut state, |state, tokens| compiled.call(state, &tokens.into())?.dense())?;
    println!("{name}: {e:?}, {:?}", t.elapsed() - e);
    // One for the prompt, and one for all steps.
    assert_eq!(compiled.stats().traces, 2, "{name}");
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
