//! Gemma 3 270M from one file, beside what llama.cpp makes of the same weights as floats
//! (`tests/decoder/golden/make_gemma.py`).
//!
//! The weights are under Gemma's terms of use. `tests/scripts/gemma.sh` fetches them for who accepts these, and names the file in
//! `TACIT_GEMMA`; without it each test says that it was left out.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use mlx_rs::Array;
use mlx_rs::ops::indexing::argmax_axis;
use mlx_rs::optimizers::Adam;
use serde::Deserialize;
use tacit::compile::{CompileOptions, compile_with_state};
use tacit::io::{Gguf, ModelFolder};
use tacit::model::{Cache, LoraConfig, ParameterFilter};
use tacit::prelude::*;
use tacit::{Counters, Error};
use tacit_models::{Config, Decoder, Formats, Positions, caches, load, quantize, token_losses};
use tokenizers::Tokenizer;

/// The tokens that are given at once, which is less than the window.
const PIECE: usize = 100;

/// The tokens of a text that an adapter learns before its model is written.
const LEARNED: usize = 32;

/// What llama.cpp makes of the weights as floats.
#[derive(Deserialize)]
struct Golden {
    /// The tokens of each text of `tokenizers/ids.json`.
    ids: Vec<Vec<u32>>,
    /// The beginning of a text, and one token more than there are positions.
    tokens: Vec<u32>,
    /// The likeliest token behind each of these.
    argmax: Vec<u32>,
    /// The exponential of their mean loss.
    perplexity: f64,
    greedy: Vec<Greedy>,
}

/// The likeliest tokens behind a prompt.
#[derive(Deserialize)]
struct Greedy {
    prompt: Vec<u32>,
    tokens: Vec<u32>,
}

#[derive(Deserialize)]
struct Texts {
    texts: Vec<String>,
}

fn read<T: for<'de> Deserialize<'de>>(name: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decoder/golden").join(name);
    serde_json::from_slice(&fs::read(path).expect("reads")).expect("is JSON")
}

/// The file, or nothing, which is said.
fn file() -> Option<PathBuf> {
    let file = std::env::var_os("TACIT_GEMMA").map(PathBuf::from);
    if file.is_none() {
        // What a test that passes prints is not shown.
        let _ = writeln!(io::stderr(), "left out: TACIT_GEMMA names no file; see tests/scripts/gemma.sh");
    }
    file
}

/// The logits behind the last of the tokens, or behind each: `[n, words]`.
fn logits(model: &mut Model<Decoder>, caches: &mut Vec<Cache>, tokens: &[u32], asked: Positions) -> Result<Array> {
    caches.iter_mut().try_for_each(|cache| cache.reserve(tokens.len() as i32))?;
    let tokens = Array::from_slice(tokens, &[1, tokens.len() as i32]);
    let logits = model.run_with(caches, |decoder, caches| decoder.forward(&tokens, caches, asked))?;
    Ok(logits.squeeze_axes(&[0])?)
}

fn empty(config: &Config, model: &Model<Decoder>) -> Result<Vec<Cache>> {
    caches(config, 1, model.get("model.embed_tokens.weight")?.aval()?.dtype)
}

fn likeliest(logits: &Array) -> Result<Vec<u32>> {
    let tokens = argmax_axis(logits, -1, None)?;
    tokens.eval()?;
    Ok(tokens.as_slice::<u32>().to_vec())
}

/// A model and its caches.
type State = (Model<Decoder>, Vec<Cache>);

/// The likeliest token behind one: `u32[1, 1]` both.
#[allow(clippy::needless_pass_by_value, reason = "a compiled function owns its arguments")]
fn step((model, caches): &mut State, token: Array) -> Result<Array> {
    model.run_with(caches, |decoder, caches| {
        Ok::<_, Error>(argmax_axis(decoder.forward(&token, caches, Positions::Last)?, -1, None)?)
    })
}

fn mean_loss(config: &Config, model: &mut Model<Decoder>, tokens: &Array) -> Result<f32> {
    let loss = token_losses(config, model, tokens)?.mean(None)?;
    loss.eval()?;
    Ok(loss.item_exact::<f32>())
}

#[test]
fn texts_have_the_tokens_that_llama_cpp_gives_them() -> Result<()> {
    let Some(file) = file() else { return Ok(()) };
    let (golden, Texts { texts }): (Golden, _) = (read("gemma3_270m.json"), read("tokenizers/ids.json"));
    assert!(texts.len() > 50 && texts.len() == golden.ids.len());
    let tokenizer = Gguf::open(file)?.tokenizer()?.line();
    let tokenizer = Tokenizer::from_bytes(tokenizer).expect("a tokenizer");
    for (text, ids) in texts.iter().zip(&golden.ids) {
        let encoding = tokenizer.encode(text.as_str(), true).expect("tokens");
        assert_eq!(encoding.get_ids(), ids, "{text:?}");
    }
    Ok(())
}

/// The file's own codes give what llama.cpp computes from the floats that they stand for.
#[test]
fn a_thousand_positions_are_those_of_llama_cpp() -> Result<()> {
    let Some(file) = file() else { return Ok(()) };
    let _deny = Policy::Deny.scope();
    let golden: Golden = read("gemma3_270m.json");
    let (outcome, counters) = Counters::during(|| -> Result<_> {
        let (config, mut model) = load(file)?;
        let mut caches = empty(&config, &model)?;
        let (mut same, mut loss) = (0, 0.0);
        for first in (0..golden.argmax.len()).step_by(PIECE) {
            let piece = first..golden.argmax.len().min(first + PIECE);
            let logits = logits(&mut model, &mut caches, &golden.tokens[piece.clone()], Positions::All)?;
            let found = likeliest(&logits)?;
            same += found.iter().zip(&golden.argmax[piece.clone()]).filter(|(own, theirs)| own == theirs).count();
            let next = &golden.tokens[piece.start + 1..=piece.end];
            let next = Array::from_slice(next, &[next.len() as i32, 1]);
            let likely = logits.take_along_axis(next, 1)?.sum(None)?;
            let losses = logits.logsumexp_axis(1, None)?.sum(None)?.subtract(likely)?;
            losses.eval()?;
            loss += f64::from(losses.item_exact::<f32>());
        }
        Ok((same, (loss / golden.argmax.len() as f64).exp()))
    });
    let (same, perplexity) = outcome?;
    println!("{same} of {} positions, perplexity {perplexity:.4} and {:.4}", golden.argmax.len(), golden.perplexity);
    assert!(same * 1000 >= golden.argmax.len() * 999, "{same} of {} positions", golden.argmax.len());
    let far = perplexity / golden.perplexity - 1.0;
    assert!(far.abs() <= 1e-3, "the perplexity is {perplexity}, and that of llama.cpp {}", golden.perplexity);
    assert_eq!(counters.materialized_bytes, 0);
    Ok(())
}

/// One of the prompts is longer than the window of most layers. Behind a prompt the steps are compiled, as those of `tacit generate`
/// are.
#[test]
fn prompts_go_on_as_in_llama_cpp() -> Result<()> {
    let Some(file) = file() else { return Ok(()) };
    let _deny = Policy::Deny.scope();
    let golden: Golden = read("gemma3_270m.json");
    let (config, model) = load(file)?;
    assert_eq!(golden.greedy.len(), 5);
    assert!(golden.greedy.iter().any(|text| text.prompt.len() > 512));
    let mut compiled = compile_with_state(CompileOptions::default(), step);
    let mut state = (model, Vec::new());
    for Greedy { prompt, tokens } in &golden.greedy {
        let (model, caches) = &mut state;
        *caches = empty(&config, model)?;
        let mut made = Vec::new();
        for piece in prompt.chunks(PIECE) {
            made = likeliest(&logits(model, caches, piece, Positions::Last)?)?;
        }
        // All at once: where there are more slots a step is traced anew.
        caches.iter_mut().try_for_each(|cache| cache.reserve(tokens.len() as i32))?;
        while made.len() < tokens.len() {
            let last = Array::from_slice(&made[made.len() - 1..], &[1, 1]);
            let next = compiled.call(&mut state, &last)?.dense()?;
            next.eval()?;
            made.extend_from_slice(next.as_slice::<u32>());
        }
        assert_eq!(made, *tokens, "behind {} tokens", prompt.len());
    }
    Ok(())
}

/// The layers become NF4, the embedding stays the eight bits that it has; an adapter learns a text, and is merged into codes
/// without a loss.
#[test]
fn codes_are_adapted_and_merged_as_they_are_stored() -> Result<()> {
    let Some(file) = file() else { return Ok(()) };
    let (config, mut model) = load(file)?;
    // What is to be quantized anew.
    model.replace("model.layers.*_proj.weight", |_, value| Ok(Some(value.dense()?.into())))?;
    let _deny = Policy::Deny.scope();
    let golden: Golden = read("gemma3_270m.json");
    let tokens = Array::from_slice(&golden.tokens[..64], &[1, 64]);
    let model = quantize(model, &Formats::read("nf4:64")?)?;
    assert!(model.get("model.layers.0.mlp.up_proj.weight")?.to_string().starts_with("Nf4("));
    assert!(model.get("model.embed_tokens.weight")?.to_string().starts_with("Symmetric("));
    let (outcome, counters) = Counters::during(|| -> Result<()> {
        let nf4: AnyFormat = "nf4:64".parse()?;
        let lora = LoraConfig { rank: 8, ..LoraConfig::default() }.as_stored(nf4.clone());
        let mut model = model.lora("*.{q_proj,v_proj}.weight", lora)?;
        let before = mean_loss(&config, &mut model, &tokens)?;
        let mut optimizer = Adam::new(1e-3);
        for _ in 0..10 {
            let (_, gradients) = model.value_and_grad(ParameterFilter::Lora, &tokens, |model, tokens| {
                Ok::<_, Error>(token_losses(&config, model, tokens)?.mean(None)?)
            })?;
            model.update(&mut optimizer, &gradients)?;
            model.eval()?;
        }
        let trained = mean_loss(&config, &mut model, &tokens)?;
        let report = model.merge(nf4)?;
        let merged = mean_loss(&config, &mut model, &tokens)?;
        println!("a loss of {before:.4}, trained {trained:.4}, merged {merged:.4}");
        assert!(trained < before - 0.1, "{before} became {trained}");
        assert!(report.rows.len() == 36 && report.rows.values().all(|row| row.loss.is_none()), "{report}");
        assert!((merged - trained).abs() < 1e-4, "{trained} became {merged}");
        Ok(())
    });
    outcome?;
    assert_eq!(counters.materialized_bytes, 0);
    Ok(())
}

/// Layers in MXFP4, which GGUF has as well, learn and are merged in their codes; the file that is written is the same model, and
/// llama.cpp says so where `TACIT_GEMMA_WRITTEN` names a folder for it (`tests/scripts/gemma.sh`).
#[test]
fn a_merged_model_becomes_one_file_again() -> Result<()> {
    let Some(file) = file() else { return Ok(()) };
    let (config, mut model) = load(&file)?;
    model.replace("model.layers.*_proj.weight", |_, value| Ok(Some(value.dense()?.into())))?;
    let golden: Golden = read("gemma3_270m.json");
    let prompt = &golden.tokens[..PIECE];
    let tokens = Array::from_slice(&prompt[..LEARNED], &[1, LEARNED as i32]);
    let mxfp4: AnyFormat = "mxfp4".parse()?;
    let model = quantize(model, &Formats::read("mxfp4")?)?;
    let lora = LoraConfig { rank: 8, ..LoraConfig::default() }.as_stored(mxfp4.clone());
    let mut model = model.lora("*.{q_proj,v_proj}.weight", lora)?;
    let mut optimizer = Adam::new(1e-3);
    for _ in 0..10 {
        let (_, gradients) = model.value_and_grad(ParameterFilter::Lora, &tokens, |model, tokens| {
            Ok::<_, Error>(token_losses(&config, model, tokens)?.mean(None)?)
        })?;
        model.update(&mut optimizer, &gradients)?;
        model.eval()?;
    }
    model.merge(mxfp4)?;
    let mut before = empty(&config, &model)?;
    let expected = likeliest(&logits(&mut model, &mut before, prompt, Positions::All)?)?;
    let kept = std::env::var_os("TACIT_GEMMA_WRITTEN").map(PathBuf::from);
    let passing = std::env::temp_dir().join(format!("tacit-gemma-{}", std::process::id()));
    let holder = kept.clone().unwrap_or(passing);
    fs::create_dir_all(&holder).expect("makes a folder");
    let made = holder.join("merged.gguf");
    assert_eq!(ModelFolder::open(&file)?.write_gguf(&made, &model.values()?, None)?, 0);
    let written = Gguf::open(&made)?;
    assert_eq!(written.kind("blk.0.attn_q.weight")?.name(), "MXFP4");
    assert_eq!(written.bytes_of("token_embd.weight")?, Gguf::open(&file)?.bytes_of("token_embd.weight")?);
    drop(written);
    let (config, mut model) = load(&made)?;
    let mut after = empty(&config, &model)?;
    assert_eq!(likeliest(&logits(&mut model, &mut after, prompt, Positions::All)?)?, expected);
    if kept.is_some() {
        let known = format!(r#"{{"tokens": {prompt:?}, "argmax": {expected:?}}}"#);
        fs::write(holder.join("tokens.json"), known).expect("writes");
    } else {
        fs::remove_dir_all(holder).expect("removes");
    }
    Ok(())
}
