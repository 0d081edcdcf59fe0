//! Adapters over codes whose products round activations.

use mlx_rs::module::Module;
use mlx_rs::nn;
use tacit_arrays::format::{Affine, Nf4};
use tacit_arrays::{ActivationGranularity, Int8Inputs};
use tacit_core::{Policy, Result};
use tacit_nn::{LoraConfig, Model, QatConfig};

use crate::int8_activations::{apart, rounds};
use crate::types::{normal, numbers};

const NF4: Nf4 = Nf4 { block: 64, double: false };
const AFFINE: Affine = Affine { bits: 4, group: 32 };

fn forward(model: &mut Model<nn::Linear>) -> Result<Vec<f32>> {
    Ok(numbers(&model.forward(&normal(4, &[17, 64]))?))
}

/// The products of an `AsStored` are with codes that are made anew, which do not round: what says that it rounds has to.
#[test]
fn an_adapter_that_is_trained_as_stored_rounds_where_it_says_so() -> Result<()> {
    let model = Model::new(nn::Linear::new(64, 64)?)?.quantize("weight", NF4)?;
    let mut model = model.lora("weight", LoraConfig::default().as_stored(NF4))?;
    let float = forward(&mut model)?;
    assert_eq!(model.int8_activations("weight")?.rounding, ["weight"]);
    assert!(apart(&forward(&mut model)?, &float) > 0.0);
    Ok(())
}

/// Whether the adapter of a layer changes something decides today whether the layer goes on rounding.
#[test]
fn merging_keeps_that_products_round() -> Result<()> {
    for trained in [false, true] {
        let mut model = Model::new(nn::Linear::new(64, 64)?)?.quantize("weight", NF4)?;
        model.int8_activations("weight")?;
        let mut model = model.lora("weight", LoraConfig::default())?;
        if trained {
            model.set_leaves([("weight.b".to_owned(), normal(1, &[64, 16]))])?;
        }
        model.merge(NF4)?;
        assert!(rounds(&model.get("weight")?), "trained: {trained}");
    }
    Ok(())
}

/// Quantization-aware training with 8-bit activations, converted, adapted and merged: "a base that is in the format already
/// stays as it is" where the adapter changes nothing, and a merge without a loss computes what was trained.
#[test]
fn merging_into_a_base_of_8_bit_activations_keeps_these() -> Result<()> {
    let aware = || QatConfig::new(AFFINE).int8_activations(ActivationGranularity::Token);
    let adapted = || -> Result<Model<nn::Linear>> {
        mlx_rs::random::seed(3)?;
        let mut model = Model::new(nn::Linear::new(64, 64)?)?.prepare("weight", aware())?;
        model.convert()?;
        model.lora("weight", LoraConfig::default())
    };
    let _allow = Policy::Allow.scope();
    for exactly in [false, true] {
        let mut model = adapted()?;
        let trained = forward(&mut model)?;
        let report = if exactly { model.merge_exactly()? } else { model.merge(AFFINE)? };
        let off = apart(&forward(&mut model)?, &trained);
        assert!(off < 1e-4, "exactly: {exactly}: {off}\n{report}");
        assert!(model.get("weight")?.downcast::<Int8Inputs>().is_some(), "exactly: {exactly}");
    }
    Ok(())
}

#[test]
fn what_is_trained_as_stored_rounds_once_when_it_is_merged() -> Result<()> {
    let aware = QatConfig::new(AFFINE).int8_activations(ActivationGranularity::Token);
    let mut model = Model::new(nn::Linear::new(64, 64)?)?.prepare("weight", aware)?;
    model.convert()?;
    let mut model = model.lora("weight", LoraConfig::default().as_stored(AFFINE))?;
    let _allow = Policy::Allow.scope();
    model.merge_exactly()?;
    let value = model.get("weight")?;
    let inner = value.downcast::<Int8Inputs>().expect("rounds").inner();
    assert_eq!(inner.to_string(), "Affine(f32[64,64])");
    Ok(())
}
