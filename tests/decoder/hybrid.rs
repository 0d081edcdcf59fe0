//! A decoder whose layers have a convolution and a gated delta rule, attention and experts: what its caches of two kinds go through.

use std::sync::Arc;

use expect_test::{Expect, expect};
use mlx_rs::ops::indexing::{TryIndexOp, argmax_axis};
use mlx_rs::{Array, Dtype, transforms};
use tacit::compile::{CompileOptions, compile_with_state};
use tacit::dispatch::Registry;
use tacit::io::Metadata;
use tacit::io::json::Json;
use tacit::io::mlx_prompt_cache::{self, PromptCache};
use tacit::model::generate::{Draft, DraftModel, GenerateOptions, Generation, Lookup, speculate};
use tacit::model::{ArraysCache, Cache, Missing, Outcome, PaddingSide, generate};
use tacit::prelude::*;
use tacit_models::{Decoder, Formats, Positions, caches, quantize};

use crate::golden::{Golden, State, difference, folder, loaded, reserve, step};
use crate::refused::changed;

/// The logits of tokens one by one, `[batch, words]` each, and the likeliest next tokens go on.
fn decode(
    state: &mut State,
    first: Array,
    count: usize,
    mut step: impl FnMut(&mut State, Array) -> Result<Array>,
) -> Result<Vec<Vec<f32>>> {
    let (mut tokens, mut logits) = (first, Vec::new());
    for _ in 0..count {
        reserve(&mut state.1, tokens.dim(1))?;
        let last = step(state, tokens)?.try_index((.., -1, ..))?;
        transforms::eval([&last])?;
        tokens = argmax_axis(&last, -1, true)?;
        logits.push(last.reshape(&[-1])?.as_slice::<f32>().to_vec());
    }
    Ok(logits)
}

/// The model of codes and its caches behind the prompt, the likeliest token of which comes with them.
fn prompted() -> Result<(State, Array)> {
    let golden = Golden::read("affine/qwen3_next")?;
    let (config, model) = loaded("affine/qwen3_next")?;
    let mut state = (model, caches(&config, 1, Dtype::Float32)?);
    reserve(&mut state.1, golden.prompt.dim(1))?;
    let last = step(&mut state, golden.prompt)?.try_index((.., -1, ..))?;
    Ok((state, argmax_axis(last, -1, true)?))
}

/// Weights of four bits, by rules, are the floats that their codes stand for: bit for bit where these are decoded, and nearly where
/// nothing is, eager and compiled.
#[test]
fn a_hybrid_step_of_codes_is_that_of_their_floats_eager_and_compiled() -> Result<()> {
    tacit::compile::disable_fusion();
    let golden = Golden::read("float/qwen3_next")?;
    let other = golden.prompt.add(Array::from_slice(&[1u32], &[1]))?;
    let prompt = mlx_rs::ops::concatenate(&[&golden.prompt, &other], 0)?;
    for format in ["nf4:32", "affine:4:32"] {
        let (config, model) = loaded("float/qwen3_next")?;
        let model = quantize(model, &Formats::read(format)?)?;
        let formats = model.values()?.values().filter(|value| value.is_implicit()).count();
        // Two deltas of two products, an attention of four, three of a dense layer, and six of each of two with experts.
        assert_eq!(formats, 1 + 2 * 2 + 4 + 3 + 2 * 6);
        let (_, mut dense) = loaded("float/qwen3_next")?;
        let float = |(path, value): (String, Value)| {
            let _allow = Policy::Allow.scope();
            Ok((path, value.dense()?.into()))
        };
        dense.assign(model.values()?.into_iter().map(float).collect::<Result<_>>()?, Missing::Refuse)?;

        let empty = caches(&config, 2, Dtype::Float32)?;
        let mut state = (dense, empty.clone());
        let floats = decode(&mut state, prompt.clone(), 24, step)?;
        let mut state = (model, empty.clone());
        {
            // Without a handler each weight is decoded where it is used.
            let _scopes = (Arc::new(Registry::new()).scope(), Policy::Allow.scope());
            assert_eq!(decode(&mut state, prompt.clone(), 24, step)?, floats, "{format}");
        }
        let _deny = Policy::Deny.scope();
        state.1.clone_from(&empty);
        let eager = decode(&mut state, prompt.clone(), 24, step)?;
        state.1.clone_from(&empty);
        let mut compiled = compile_with_state(CompileOptions::default(), step);
        let replayed = decode(&mut state, prompt.clone(), 24, |state, tokens| compiled.call(state, &tokens)?.dense())?;
        // One of the prompt, and one of all steps.
        assert_eq!(compiled.stats().traces, 2, "{format}");
        for (number, (eager, others)) in eager.iter().zip(replayed.iter().zip(&floats)).enumerate() {
            let array = |row: &[f32]| Array::from_slice(row, &[2, config.vocab_size]);
            let apart = |other: &[f32]| difference(&array(eager), &array(other));
            let (of_compiled, of_floats) = (apart(others.0)?, apart(others.1)?);
            assert!(of_compiled <= 1e-4, "{format}: compiled, step {number}, by {of_compiled}");
            assert!(of_floats <= 1e-4, "{format}: beside floats, step {number}, by {of_floats}");
        }
    }
    Ok(())
}

/// A convolution has no products of codes, so that a filter takes a format only by a rule of its very path.
#[test]
fn filters_of_convolutions_stay_floats() -> Result<()> {
    let left = |model: &Model<Decoder>| -> Result<()> {
        let report = model.report();
        for layer in [0, 2] {
            let path = format!("model.layers.{layer}.linear_attn.conv1d.weight");
            let reason = "it is the filter of a convolution".to_owned();
            assert_eq!(report.rows[&path].outcome, Outcome::Left { reason });
            assert!(!model.get(&path)?.is_implicit(), "{path}");
        }
        Ok(())
    };
    let (config, model) = loaded("float/qwen3_next")?;
    let mut model = quantize(model, &Formats::Rules(Rules::new().quantize("*", "int8")?))?;
    left(&model)?;
    let mut empty = caches(&config, 1, Dtype::Float32)?;
    reserve(&mut empty, 2)?;
    let tokens = Array::from_slice(&[1u32, 2], &[1, 2]);
    let _deny = Policy::Deny.scope();
    model.run_with(&mut empty, |decoder, caches| decoder.forward(&tokens, caches, Positions::All))?.eval()?;
    left(&loaded("float/qwen3_next")?.1.prepare("*", "int8")?)
}

#[test]
fn a_prompt_cache_of_mlx_lm_goes_on_as_there() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let golden = Golden::read("affine/qwen3_next")?;
    let (_, model) = loaded("affine/qwen3_next")?;
    let file = folder("affine/qwen3_next_prompt_cache.safetensors");
    let mut state = (model, mlx_prompt_cache::read(file)?.caches()?);
    assert!(matches!(&state.1[..], [Cache::Arrays(_), Cache::Kv(_), Cache::Arrays(_)]));
    let mut tokens = golden.tokens.windows(2);
    for (number, pair) in tokens.by_ref().take(60).enumerate() {
        reserve(&mut state.1, 1)?;
        let logits = step(&mut state, Array::from_slice(&pair[..1], &[1, 1]))?;
        assert_eq!(argmax_axis(&logits, -1, None)?.item_exact::<u32>(), pair[1], "step {number}");
    }
    Ok(())
}

#[test]
fn states_and_keys_go_on_from_a_file_bit_for_bit() -> Result<()> {
    let (mut state, first) = prompted()?;
    decode(&mut state, first.clone(), 5, step)?;
    let file = std::env::temp_dir().join(format!("tacit-hybrid-{}.safetensors", std::process::id()));
    mlx_prompt_cache::write(&file, &PromptCache::of_caches(&state.1, Metadata::default())?)?;
    let read = mlx_prompt_cache::read(&file)?.caches()?;
    let kept = decode(&mut state, first.clone(), 10, step)?;
    state.1 = read;
    assert_eq!(decode(&mut state, first, 10, step)?, kept);
    std::fs::remove_file(file).ok();
    Ok(())
}

/// Sequences of a batch that begin and end at other times give what each gives alone.
#[test]
fn a_batch_generates_what_each_sequence_does_alone() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let golden = Golden::read("float/qwen3_next")?;
    let whole: Vec<u32> = golden.prompt.as_dtype(Dtype::Uint32)?.as_slice::<u32>().to_vec();
    let (config, mut model) = loaded("float/qwen3_next")?;
    let mut generated = |prompts: &[&[u32]]| {
        let mut state = caches(&config, prompts.len() as i32, Dtype::Float32)?;
        let step = |tokens: &Array, caches: &mut Vec<Cache>| {
            reserve(caches, tokens.dim(1))?;
            let run = |decoder: &mut Decoder, caches: &mut Vec<Cache>| decoder.forward(tokens, caches, Positions::All);
            model.run_with(caches, run)
        };
        let prefill = config.prefill().expect("it has a state");
        let stop = vec![vec![golden.tokens[30]]];
        let options = GenerateOptions { max_tokens: 60, prefill, padding: Some(0), stop, ..GenerateOptions::default() };
        let mut ids = vec![Vec::new(); prompts.len()];
        for token in generate(step, &mut state, prompts, &options)? {
            let token = token?;
            ids[token.sequence].push(token.id);
        }
        Ok::<_, Error>(ids)
    };
    let prompts = [&whole[..], &whole[..7]];
    let together = generated(&prompts)?;
    for (prompt, together) in prompts.into_iter().zip(&together) {
        assert_eq!(generated(&[prompt])?, std::slice::from_ref(together));
    }
    assert!(together[0].len() <= 31 && together[0] != together[1], "{together:?}");
    Ok(())
}

/// Padding behind the tokens of a shorter prompt is not in its state.
#[test]
fn padding_on_the_right_changes_nothing() -> Result<()> {
    let golden = Golden::read("float/qwen3_next")?;
    let (config, mut model) = loaded("float/qwen3_next")?;
    let (length, longest) = (7, golden.prompt.dim(1));
    let mut run = |caches: &mut Vec<Cache>, tokens: &Array| {
        reserve(caches, tokens.dim(1))?;
        let run = |decoder: &mut Decoder, caches: &mut Vec<Cache>| decoder.forward(tokens, caches, Positions::All);
        model.run_with(caches, run)
    };
    let mut both = caches(&config, 2, Dtype::Float32)?;
    for cache in &mut both {
        match cache {
            Cache::Kv(cache) => cache.prepare(longest, &[length, longest], PaddingSide::Right)?,
            Cache::Arrays(cache) => cache.set_lengths(&[length, longest]),
            Cache::List(_) => {}
        }
    }
    let prompt = mlx_rs::ops::concatenate(&[&golden.prompt, &golden.prompt], 0)?;
    let padded = run(&mut both, &prompt)?.try_index((0, length - 1, ..))?;
    both.iter_mut().filter_map(Cache::as_arrays).for_each(ArraysCache::finish);
    let then = run(&mut both, &Array::from_slice(&[9u32, 9], &[2, 1]))?.try_index((0, 0, ..))?;

    let mut own = caches(&config, 1, Dtype::Float32)?;
    let alone = run(&mut own, &golden.prompt.try_index((.., ..length))?)?.try_index((0, -1, ..))?;
    let alone_then = run(&mut own, &Array::from_slice(&[9u32], &[1, 1]))?.try_index((0, 0, ..))?;
    for (found, expected) in [(padded, alone), (then, alone_then)] {
        let far = difference(&found, &expected)?;
        assert!(far <= 1e-4, "they differ by {far}");
    }
    Ok(())
}

/// What transformers takes where a configuration does not say it.
#[test]
fn keys_that_are_not_there_are_those_of_transformers() -> Result<()> {
    let config = |changes: &str| changed("qwen3_next", &Json::parse(changes).expect("an object"));
    assert_eq!(config(r#"{"head_dim": null}"#)?.head_dim, 256);
    for (absent, said) in [
        (r#"{"norm_topk_prob": null}"#, r#"{"norm_topk_prob": true}"#),
        (r#"{"partial_rotary_factor": null}"#, r#"{"partial_rotary_factor": 0.25}"#),
    ] {
        assert_eq!(format!("{:?}", config(absent)?), format!("{:?}", config(said)?));
    }
    assert_ne!(
        format!("{:?}", config("{}")?),
        format!("{:?}", config(r#"{"norm_topk_prob": false, "partial_rotary_factor": 1.0}"#)?)
    );
    Ok(())
}

#[test]
fn the_types_of_layers_are_named_or_counted() -> Result<()> {
    let layers = |changes: &str| {
        let config = changed("qwen3_next", &Json::parse(changes).expect("an object"))?;
        Ok::<_, Error>(format!("{:?}", config.layers))
    };
    let named = r#"{"full_attention_interval": null, "layer_types": ["linear_attention", "full_attention", "linear_attention"]}"#;
    assert_eq!(layers(named)?, layers("{}")?);
    assert_ne!(layers(r#"{"full_attention_interval": 3}"#)?, layers("{}")?);
    Ok(())
}

#[test]
fn caches_and_sizes_that_do_not_fit_are_refused() -> Result<()> {
    let check = |made: Result<Array>, expected: &Expect| {
        expected.assert_eq(&made.expect_err("it is refused").to_string());
    };
    let config = changed("qwen3_next", &Json::parse("{}").expect("an object"))?;
    let mut decoder = Decoder::new(&config)?;
    let mut run = |caches: &mut Vec<Cache>| {
        reserve(caches, 2)?;
        decoder.forward(&Array::from_slice(&[1u32, 2], &[1, 2]), caches, Positions::Last)
    };
    let mut swapped = caches(&config, 1, Dtype::Float32)?;
    swapped.swap(0, 1);
    check(
        run(&mut swapped),
        &expect![[r#"
        a layer that keeps arrays is given a cache of another kind
        help: make them by `caches`"#]],
    );
    let mut swapped = caches(&config, 1, Dtype::Float32)?;
    swapped[1] = ArraysCache::new(2).into();
    check(
        run(&mut swapped),
        &expect![[r#"
        a layer that keeps keys and values is given a cache of another kind
        help: make them by `caches`"#]],
    );
    let mut wide = caches(&config, 2, Dtype::Float32)?;
    reserve(&mut wide, 2)?;
    Decoder::new(&config)?.forward(&Array::from_slice(&[1u32, 2], &[2, 1]), &mut wide, Positions::Last)?;
    check(
        run(&mut wide),
        &expect![[r#"
        a layer whose state is f32[1,3,64] is given f32[2,3,64]
        help: make the caches by `caches`, for as many sequences as there are"#]],
    );

    let refused = |changes: &str, expected: &Expect| {
        let error = changed("qwen3_next", &Json::parse(changes).expect("an object")).expect_err("it is refused");
        expected.assert_eq(&error.to_string());
    };
    refused(
        r#"{"linear_num_key_heads": 3}"#,
        &expect![[r#"
        config.json: linear_num_value_heads: 3 heads of keys do not serve 4 heads of values in equal parts
        help: fetch the configuration again"#]],
    );
    refused(
        r#"{"linear_value_head_dim": 16777216, "linear_num_value_heads": 16777216}"#,
        &expect![[r#"
        config.json: linear_num_value_heads: 2 heads of 8 numbers and 16777216 of 16777216 are no layer
        help: fetch the configuration again"#]],
    );
    refused(
        r#"{"linear_conv_kernel_dim": null}"#,
        &expect![[r#"
        config.json: linear_conv_kernel_dim: it is not there
        help: fetch the configuration again"#]],
    );
    Ok(())
}

/// States go back to before the tokens that were refused, whoever proposed them: the tokens are those of the model alone, and the
/// caches go on as its own.
#[test]
fn drafts_beside_a_state_change_no_token() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let prompt = Golden::read("affine/qwen3_next")?.prompt.as_dtype(Dtype::Uint32)?.as_slice::<u32>().repeat(2);
    let (config, _) = loaded("affine/qwen3_next")?;
    let empty = || caches(&config, 1, Dtype::Float32);
    let mut run = stepped("affine/qwen3_next")?;
    let options = |max_tokens| GenerateOptions { max_tokens, prefill: 5, ..GenerateOptions::default() };
    let ids = |tokens: Generation<'_>| tokens.map(|token| Ok(token?.id)).collect::<Result<Vec<u32>>>();
    let mut alone = empty()?;
    let whole = ids(generate(&mut run, &mut alone, &[&prompt[..]], &options(40))?)?;
    let went_on = ids(generate(&mut run, &mut alone, &[[9]], &options(20))?)?;
    let mut check = |draft: &mut dyn Draft| -> Result<()> {
        let mut own = empty()?;
        let mut tokens = speculate(&mut run, &mut own, draft, &prompt, &options(40))?;
        let made = tokens.by_ref().map(|token| Ok(token?.id)).collect::<Result<Vec<u32>>>()?;
        assert_eq!(made, whole);
        let stats = tokens.stats();
        assert!(0 < stats.accepted && stats.accepted < stats.drafted, "{stats:?}");
        drop(tokens);
        assert_eq!(ids(generate(&mut run, &mut own, &[[9]], &options(20))?)?, went_on);
        Ok(())
    };
    // The floats that these codes are of are nearly the same model.
    let mut near = stepped("float/qwen3_next")?;
    for most in [1, 4, 7] {
        check(&mut Lookup::new(most).matching(1))?;
        check(&mut DraftModel::new(&mut near, &mut empty()?, most))?;
    }
    Ok(())
}

/// A compiled step of a model over caches that it makes room in.
fn stepped(model: &str) -> Result<impl FnMut(&Array, &mut Vec<Cache>) -> Result<Array> + use<>> {
    let mut compiled = compile_with_state(CompileOptions::default(), step);
    let mut state = (loaded(model)?.1, Vec::new());
    Ok(move |tokens: &Array, caches: &mut Vec<Cache>| {
        reserve(caches, tokens.dim(1))?;
        std::mem::swap(&mut state.1, caches);
        let logits = compiled.call(&mut state, tokens).and_then(|logits| logits.dense());
        std::mem::swap(&mut state.1, caches);
        logits
    })
}
