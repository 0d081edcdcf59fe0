//! What is frozen stays so, whatever stands in its place; what comes later to be trained is.

use std::collections::BTreeSet;

use mlx_rs::module::{Module, ModuleParameters};
use mlx_rs::optimizers::Adam;
use mlx_rs::{Array, nn, random};
use tacit_arrays::format::{Affine, AnyFormat};
use tacit_core::tree;
use tacit_core::{Error, Result};
use tacit_nn::{LoraConfig, Model, ParameterFilter, QatConfig};

use crate::types::{normal, numbers};

const AFFINE: Affine = Affine { bits: 4, group: 32 };

/// Two layers, of which the module has the first frozen.
fn half_frozen() -> Model<nn::Sequential> {
    random::seed(5).expect("seeds");
    let linear = || nn::Linear::new(64, 64).expect("builds");
    let mut frozen = linear();
    frozen.freeze_parameters(true);
    Model::new(nn::Sequential::new().append(frozen).append(nn::Relu).append(linear())).expect("a model")
}

fn all() -> ParameterFilter {
    ParameterFilter::default().or(ParameterFilter::Scales)
}

fn gradients(model: &mut Model<nn::Sequential>) -> Result<BTreeSet<String>> {
    let loss = |m: &mut Model<nn::Sequential>, x: Array| m.forward(&x)?.square()?.mean(None);
    let (_, gradients) = model.value_and_grad(all(), normal(1, &[2, 64]), loss)?;
    model.update(&mut Adam::new(1e-2), &gradients)?;
    Ok(gradients.into_keys().map(|path| path.to_string()).collect())
}

/// Quantized, prepared with scales that are trained and without: what was frozen gets no gradient, not as a tree either.
#[test]
fn a_frozen_layer_stays_frozen_in_every_form() -> Result<()> {
    type Made = fn(Model<nn::Sequential>) -> Result<Model<nn::Sequential>>;
    let forms: [(&str, Made); 4] = [
        ("dense", Ok),
        ("quantized", |model| model.quantize("*.weight", AFFINE)),
        ("prepared", |model| model.prepare("*.weight", AFFINE)),
        ("scales", |model| model.prepare("*.weight", QatConfig::new(AnyFormat::from(AFFINE)).trained_scales())),
    ];
    for (name, made) in forms {
        let mut model = made(half_frozen())?;
        let leaf = |model: &Model<nn::Sequential>, path: &str| -> Vec<Vec<u8>> {
            let leaves = model.leaves(&ParameterFilter::All).into_iter().filter(|(own, _)| own.starts_with(path));
            leaves
                .map(|(_, array)| array.view_dtype(mlx_rs::Dtype::Uint8).expect("bytes").as_slice().to_vec())
                .collect()
        };
        let before = leaf(&model, "layers.0.");
        let paths = gradients(&mut model)?;
        assert!(!paths.is_empty() && paths.iter().all(|path| path.starts_with("layers.2.")), "{name}: {paths:?}");
        assert_eq!(leaf(&model, "layers.0."), before, "{name}");

        let def = tree::structure(&model)?;
        let paths = def.paths();
        let moved = paths.iter().zip(def.frozen()).filter(|(_, frozen)| !frozen).map(|(path, _)| path.to_string());
        let moved: Vec<String> = moved.filter(|path| !path.contains("codes")).collect();
        assert!(!moved.is_empty() && moved.iter().all(|path| path.contains("layers.2.")), "{name}: {def:?}");
    }
    Ok(())
}

#[test]
fn what_is_frozen_and_then_adapted_trains_the_adapters_alone() -> Result<()> {
    for quantized in [false, true] {
        let mut model = half_frozen();
        if quantized {
            model = model.quantize("*.weight", AFFINE)?;
        }
        // mlx-lm's idiom.
        model.freeze_parameters(true);
        assert_eq!(model.all_frozen(), Some(true));
        let mut model = model.lora("*.weight", LoraConfig::default())?;
        assert_eq!(model.all_frozen(), Some(false));
        let factors: BTreeSet<String> =
            model.leaves(&ParameterFilter::Lora).into_iter().map(|(path, _)| path).collect();
        assert_eq!(gradients(&mut model)?, factors);
        let key = random::key(1)?;
        model.drop_features(Some(&key))?;
        assert_eq!(gradients(&mut model)?, factors);

        model.freeze_parameters(true);
        assert!(gradients(&mut model).is_err());
        // Another value of the same adapter is as frozen as it was.
        let adapters = model.adapters()?;
        model.assign(adapters, tacit_nn::Missing::Keep)?;
        assert!(gradients(&mut model).is_err());
        model.unfreeze_parameters(true);
        assert!(gradients(&mut model)?.is_superset(&factors));
    }
    Ok(())
}

#[test]
fn evaluation_drops_nothing() -> Result<()> {
    let x = normal(3, &[4, 64]);
    let mut model = half_frozen().lora("*.weight", LoraConfig { dropout: 0.5, ..LoraConfig::default() })?;
    model.drop_features(Some(&random::key(0)?))?;
    gradients(&mut model)?;
    model.drop_features(None)?;
    let forward = |model: &mut Model<nn::Sequential>| Ok::<_, Error>(numbers(&model.forward(&x)?));
    let still = forward(&mut model)?;
    model.drop_features(Some(&random::key(1)?))?;
    let dropped = forward(&mut model)?;
    assert_ne!(dropped, still);
    Module::<&Array>::training_mode(&mut model, false);
    assert_eq!(forward(&mut model)?, still);
    Module::<&Array>::training_mode(&mut model, true);
    assert_eq!(forward(&mut model)?, dropped);

    // A trace knows in which mode it was made.
    let mut run = tacit_core::compile_with_state(
        tacit_core::compile::CompileOptions::default(),
        |model: &mut Model<nn::Sequential>, x: Array| model.forward(&x),
    );
    for mode in [true, false, true] {
        Module::<&Array>::training_mode(&mut model, mode);
        let found = numbers(&run.call(&mut model, x.clone())?.dense()?);
        let expected = if mode { &dropped } else { &still };
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{mode}");
    }
    assert_eq!(run.stats().traces, 2);
    Ok(())
}
