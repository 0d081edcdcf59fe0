//! The losses of tokens, whose logits are never all there, against those of all logits.

use mlx_rs::losses::{CrossEntropyBuilder, LossReduction};
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, builder::Builder, ops};
use tacit::model::{LoraConfig, ParameterFilter};
use tacit::prelude::*;
use tacit::{Counters, Error};
use tacit_models::{Config, Decoder, Formats, Positions, caches, checkpointed_token_losses, quantize, token_losses};

use crate::golden::{difference, loaded};

fn tokens() -> Array {
    let tokens: Vec<u32> = (0..24).map(|at| at * 37 % 128).collect();
    Array::from_slice(&tokens, &[2, 12])
}

/// By mlx-rs's own loss.
fn of_all_logits(config: &Config, model: &mut Model<Decoder>, tokens: &Array) -> Result<Array> {
    let dtype = model.get("model.embed_tokens.weight")?.aval()?.dtype;
    let mut caches = caches(config, tokens.dim(0), dtype)?;
    caches.iter_mut().try_for_each(|cache| cache.reserve(tokens.dim(1)))?;
    let run = |decoder: &mut Decoder, caches: &mut Vec<_>| decoder.forward(tokens, caches, Positions::All);
    let logits = model.run_with(&mut caches, run)?.try_index((.., ..-1, ..))?.as_dtype(Dtype::Float32)?;
    let cross_entropy = CrossEntropyBuilder::new().reduction(LossReduction::None).build()?;
    Ok(cross_entropy.apply(logits, tokens.try_index((.., 1..))?)?)
}

#[test]
fn losses_of_tokens_are_those_of_all_logits() -> Result<()> {
    for name in ["float/llama", "float/gemma2", "float/qwen3", "float/qwen3_next", "float/granite"] {
        let (config, mut model) = loaded(name)?;
        let expected = of_all_logits(&config, &mut model, &tokens())?;
        let found = token_losses(&config, &mut model, &tokens())?;
        assert_eq!(found.shape(), [2, 11], "{name}");
        let far = difference(&found, &expected)?;
        assert!(far < 1e-5, "{name}: the losses differ by {far}");
    }
    Ok(())
}

#[test]
fn a_step_of_lora_builds_no_dense_weight() -> Result<()> {
    for name in ["float/llama", "float/gemma2"] {
        let (config, model) = loaded(name)?;
        let mut model = quantize(model, &Formats::read("affine:8:32")?)?
            .lora("*.q_proj.weight", LoraConfig { rank: 2, ..LoraConfig::default() })?;
        let _deny = Policy::Deny.scope();
        let tokens = tokens();
        let (_, whole) = model.value_and_grad(ParameterFilter::Lora, &tokens, |model, tokens| {
            Ok::<_, Error>(of_all_logits(&config, model, tokens)?.mean(None)?)
        })?;
        let (step, counters) = Counters::during(|| {
            model.value_and_grad(ParameterFilter::Lora, &tokens, |model, tokens| {
                Ok::<_, Error>(token_losses(&config, model, tokens)?.mean(None)?)
            })
        });
        let (_, found) = step?;
        assert_eq!(counters.materialized_bytes, 0, "{name}");
        for (path, gradient) in &whole {
            let far = difference(&found[path], gradient)?;
            assert!(
                far < 1e-4 || gradient.abs()?.max(None)?.item_exact::<f32>() < 1e-12,
                "{name}: {path} differs by {far}"
            );
        }
    }
    Ok(())
}

/// Adapters of a change that is not zero, so that both factors have gradients.
fn adapted(model: Model<Decoder>) -> Result<Model<Decoder>> {
    let lora = LoraConfig { rank: 2, ..LoraConfig::default() };
    let mut model = quantize(model, &Formats::read("affine:8:32")?)?.lora("model.layers.*_proj.weight", lora)?;
    for (path, value) in model.adapters()? {
        let b = Array::from_slice(&[0.01f32], &[1]);
        let (path, shape) = (format!("{path}.b"), value.aval()?.shape);
        model.set_leaves([(path, ops::broadcast_to(&b, &[shape[0], 2])?)])?;
    }
    Ok(model)
}

/// Layers that are computed again for the gradient, of every kind: windows, caps, norms of heads, a state in place of attention,
/// products that are fused, norms behind alone.
#[test]
fn losses_and_gradients_are_the_same_where_layers_are_computed_again() -> Result<()> {
    for name in ["float/llama", "float/gemma2", "float/qwen3", "float/qwen3_next", "float/phi3", "float/olmo2"] {
        let (config, model) = loaded(name)?;
        let mut model = adapted(model)?;
        let _deny = Policy::Deny.scope();
        let tokens = tokens();
        let (outcome, counters) = Counters::during(|| -> Result<_> {
            let kept = model.value_and_grad(ParameterFilter::Lora, &tokens, |model, tokens| {
                Ok::<_, Error>(token_losses(&config, model, tokens)?.mean(None)?)
            })?;
            let again = model.value_and_grad(ParameterFilter::Lora, &tokens, |model, tokens| {
                Ok::<_, Error>(checkpointed_token_losses(&config, model, tokens)?.mean(None)?)
            })?;
            Ok((kept, again))
        });
        let ((loss, kept), (same, again)) = outcome?;
        assert_eq!((difference(&same, &loss)? < 1e-6, counters.materialized_bytes), (true, 0), "{name}");
        assert_eq!(kept.len(), again.len(), "{name}");
        for (path, gradient) in &kept {
            let far = difference(&again[path], gradient)?;
            assert!(far < 1e-5, "{name}: {path} differs by {far}");
            assert!(gradient.abs()?.max(None)?.item_exact::<f32>() > 0.0, "{name}: {path} has no gradient");
        }
    }
    Ok(())
}

/// All that the layers hold is in codes, or what goes into them where they are computed again; and of layers that no rule names
/// nothing is.
#[test]
fn gradients_read_activations_in_the_formats_of_the_layers() -> Result<()> {
    for name in ["float/llama", "float/gemma2", "float/qwen3"] {
        let (config, model) = loaded(name)?;
        let mut model = adapted(model)?;
        let _deny = Policy::Deny.scope();
        for losses in [token_losses, checkpointed_token_losses] {
            let mut step = |rules: &Rules| -> Result<_> {
                model.saved_activations("model.layers.*", rules)?;
                let (outcome, counters) = Counters::during(|| {
                    model.value_and_grad(ParameterFilter::Lora, &tokens(), |model, tokens| {
                        Ok::<_, Error>(losses(&config, model, tokens)?.mean(None)?)
                    })
                });
                let (loss, gradients) = outcome?;
                assert_eq!(counters.materialized_bytes, 0, "{name}");
                Ok((loss.item_exact::<f32>().to_bits(), gradients))
            };
            let (loss, exact) = step(&Rules::new().skip("*")?)?;
            let mut error_of = |rules: &Rules| -> Result<f32> {
                let (same, found) = step(rules)?;
                assert_eq!(same, loss, "{name}");
                let square = |x: Array| Ok::<_, Error>(x.square()?.sum(None)?.item_exact::<f32>());
                let (mut off, mut all) = (0.0, 0.0);
                for (path, exact) in &exact {
                    off += square(found[path].subtract(exact)?)?;
                    all += square(exact.clone())?;
                }
                Ok((off / all).sqrt())
            };
            let every = error_of(&Rules::new().quantize("*", "affine:8:32")?)?;
            assert!(every > 0.0 && every < 3e-2, "{name}: {every}");
            let some = error_of(&Rules::new().skip("model.layers.0.*")?.quantize("*", "affine:8:32")?)?;
            assert!(some > 0.0 && some < 3e-2 && some.to_bits() != every.to_bits(), "{name}: {some} and {every}");
        }
    }
    Ok(())
}

/// Layers whose parameters are tied to those of another one, all or some of them.
#[test]
fn layers_that_share_parameters_are_each_computed() -> Result<()> {
    let own = "model.layers.1.";
    let (config, model) = loaded("float/llama")?;
    let all: Vec<String> = model.avals().into_keys().filter(|path| path.starts_with(own)).collect();
    for tied in [&all[..], &all[..1]] {
        let (_, mut model) = loaded("float/llama")?;
        for path in tied {
            model = model.tie(path, &path.replacen(own, "model.layers.0.", 1))?;
        }
        let expected = token_losses(&config, &mut model, &tokens())?;
        let far = difference(&checkpointed_token_losses(&config, &mut model, &tokens())?, &expected)?;
        assert!(far < 1e-6, "{} are tied: the losses differ by {far}", tied.len());
    }
    Ok(())
}

#[test]
fn a_loss_draws_nothing() -> Result<()> {
    let drawn = || Ok::<_, Error>(mlx_rs::random::uniform::<_, f32>(0.0, 1.0, &[1], None)?.item_exact::<f32>());
    for name in ["float/llama", "float/qwen3_moe", "float/qwen3_next"] {
        let (config, mut model) = loaded(name)?;
        mlx_rs::random::seed(5)?;
        let expected = drawn()?.to_bits();
        for losses in [token_losses, checkpointed_token_losses] {
            mlx_rs::random::seed(5)?;
            losses(&config, &mut model, &tokens())?.eval()?;
            assert_eq!(drawn()?.to_bits(), expected, "{name}");
        }
    }
    Ok(())
}

#[test]
fn a_row_of_one_token_has_no_loss() -> Result<()> {
    let (config, mut model) = loaded("float/llama")?;
    let error = token_losses(&config, &mut model, &Array::from_slice(&[1u32], &[1, 1])).expect_err("nothing follows");
    expect_test::expect![[r#"
        the losses of tokens u32[1,1]
        help: give rows of at least two tokens, `[batch, n]`"#]]
    .assert_eq(&error.to_string());
    Ok(())
}

/// Keys and values of half floats are codes in the caches of a decoder, and codes have no gradient.
#[test]
fn gradients_go_through_the_caches_of_a_half_precision_model() -> Result<()> {
    let (config, model) = tacit_models::load(crate::golden::folder("float/llama"))?;
    let half = |(path, value): (String, tacit::Value)| Ok((path, value.dense()?.as_dtype(Dtype::Bfloat16)?.into()));
    let values = model.values()?.into_iter().map(half).collect::<Result<_>>()?;
    let mut model = model;
    model.assign(values, tacit::model::Missing::Refuse)?;
    let mut model = model.lora("*.k_proj.weight", LoraConfig { rank: 2, ..LoraConfig::default() })?;
    let dtype = model.get("model.embed_tokens.weight")?.aval()?.dtype;
    let mut held = caches(&config, 1, dtype)?;
    held[0].reserve(1)?;
    assert!(held[0].as_kv().is_some_and(|cache| cache.keys().to_string().starts_with("Bf16(")));
    let tokens = tokens();
    let (_, gradients) = model.value_and_grad(ParameterFilter::Lora, &tokens, |model, tokens| {
        Ok::<_, Error>(token_losses(&config, model, tokens)?.mean(None)?)
    })?;
    let moved = gradients.values().filter(|gradient| {
        let largest = gradient.abs().and_then(|all| all.max(None)).and_then(|most| most.as_dtype(Dtype::Float32));
        largest.expect("a number").item_exact::<f32>() > 0.0
    });
    // One of both factors begins with zeros, so that the other one's gradient is zero.
    assert_eq!(moved.count(), config.layers.len());
    Ok(())
}
