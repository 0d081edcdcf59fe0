//! Decoders of half floats on a CPU, where MLX multiplies them slowly, and experts not at all.

use mlx_rs::{Array, Dtype};
use tacit::Policy;
use tacit::compile::{CompileOptions, compile_with_state};
use tacit::model::{Model, ParameterFilter};
use tacit::pass::Passes;
use tacit_models::{Config, Decoder, Positions, caches, checkpointed_token_losses, hold_halves, load};

use crate::golden::{difference, folder, reserve, step};

/// The floats of a model in a type.
fn cast(model: &mut Model<Decoder>, dtype: Dtype) -> tacit::Result<()> {
    model.replace("*", |_, value| match value.as_dense() {
        Some(array) => Ok(Some(array.as_dtype(dtype)?.into())),
        None => Ok(None),
    })?;
    Ok(())
}

fn logits((config, mut model): (Config, Model<Decoder>), dtype: Dtype) -> tacit::Result<Array> {
    let tokens = Array::from_slice(&[1u32, 5, 9, 2, 7, 3], &[1, 6]);
    let mut caches = caches(&config, 1, dtype)?;
    caches.iter_mut().try_for_each(|cache| cache.reserve(6))?;
    let made = model.run_with(&mut caches, |decoder, caches| decoder.forward(&tokens, caches, Positions::All))?;
    Ok(made.as_dtype(Dtype::Float32)?)
}

fn size(x: &Array) -> tacit::Result<f32> {
    Ok(x.square()?.mean(None)?.sqrt()?.item_exact::<f32>())
}

#[test]
fn every_architecture_runs_in_half_floats() -> tacit::Result<()> {
    let _deny = Policy::Deny.scope();
    for name in ["llama", "qwen3", "qwen3_moe", "gemma3_text", "qwen3_next", "phi3", "olmo2"] {
        let read = || load(folder(&format!("float/{name}")));
        let expected = logits(read()?, Dtype::Float32)?;
        for (dtype, within) in [(Dtype::Float16, 0.01), (Dtype::Bfloat16, 0.05)] {
            let (config, mut model) = read()?;
            model.replace("*", |_, value| match value.as_dense() {
                Some(array) if array.dtype() == Dtype::Float32 => Ok(Some(array.as_dtype(dtype)?.into())),
                _ => Ok(None),
            })?;
            hold_halves(&mut model)?;
            let distance = size(&logits((config, model), dtype)?.subtract(&expected)?)?;
            assert!(distance < within * size(&expected)?, "{name} in {dtype:?}: {distance}");
        }
    }
    Ok(())
}

/// Halves of heads are turned where they lie, whether all of a head is turned or not, and of one token or of several.
#[test]
fn compiled_steps_give_with_passes_what_they_give_without() -> tacit::Result<()> {
    tacit::compile::disable_fusion();
    for name in ["llama", "phi3", "gemma3_text"] {
        for (dtype, within) in [(Dtype::Float32, 1e-4), (Dtype::Float16, 0.02), (Dtype::Bfloat16, 0.1)] {
            let run = |passes| -> tacit::Result<Vec<Array>> {
                let (config, mut model) = load(folder(&format!("float/{name}")))?;
                cast(&mut model, dtype)?;
                let mut state = (model, caches(&config, 1, dtype)?);
                reserve(&mut state.1, 8)?;
                let mut compiled = compile_with_state(CompileOptions { passes, ..CompileOptions::default() }, step);
                let texts: [&[u32]; 3] = [&[1, 5, 9, 2, 7, 3], &[4], &[8]];
                let logits = texts.map(|tokens| -> tacit::Result<Array> {
                    let tokens = Array::from_slice(tokens, &[1, tokens.len() as i32]);
                    Ok(compiled.call(&mut state, &tokens)?.dense()?.as_dtype(Dtype::Float32)?)
                });
                logits.into_iter().collect()
            };
            for (number, (found, expected)) in run(Passes::All)?.iter().zip(&run(Passes::Off)?).enumerate() {
                let far = difference(found, expected)?;
                assert!(far <= within, "{name} in {dtype:?}: the logits of call {number} differ by {far}");
            }
        }
    }
    Ok(())
}

/// A mixture in half floats is trained for a format, its experts too.
#[test]
fn experts_of_half_floats_are_trained() -> tacit::Result<()> {
    let (config, mut model) = load(folder("float/qwen3_moe"))?;
    hold_halves(&mut model)?;
    let mut model = model.prepare("model.layers.*_proj.weight", "affine:4:32")?;
    let tokens = Array::from_slice(&[1u32, 5, 9, 2, 7, 3], &[1, 6]);
    let _deny = Policy::Deny.scope();
    let (_, gradients) = model.value_and_grad(ParameterFilter::Masters, &tokens, |model, tokens| {
        Ok::<_, tacit::Error>(checkpointed_token_losses(&config, model, tokens)?.mean(None)?)
    })?;
    let mut experts = 0;
    for (path, gradient) in &gradients {
        assert!(size(&gradient.as_dtype(Dtype::Float32)?)? > 0.0, "{path}");
        experts += usize::from(path.contains(".switch_mlp."));
    }
    assert_eq!(experts, 3);
    Ok(())
}

/// The sum that runs through Gemma 3 is beyond `f16`: it is carried in `f32`.
#[test]
fn a_sum_beyond_half_floats_stays_finite() -> tacit::Result<()> {
    let read = |dtype| -> tacit::Result<_> {
        let (config, mut model) = load(folder("float/gemma3_text"))?;
        // Gains of norms behind layers, less 1.
        model.replace("*.post_feedforward_layernorm.weight", |_, value| {
            Ok(Some(value.dense()?.add(Array::from_f32(4e4))?.into()))
        })?;
        cast(&mut model, dtype)?;
        Ok((config, model))
    };
    let expected = logits(read(Dtype::Float32)?, Dtype::Float32)?;
    let found = logits(read(Dtype::Float16)?, Dtype::Float16)?;
    let distance = size(&found.subtract(&expected)?)?;
    assert!(distance < 0.02 * size(&expected)?, "{distance} of {}", size(&expected)?);
    Ok(())
}
