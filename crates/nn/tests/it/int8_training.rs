//! Models whose products are of 8-bit integers in both passes.

use mlx_rs::module::{Module, ModuleParameters};
use mlx_rs::optimizers::Adam;
use mlx_rs::{Array, nn, transforms};
use tacit_arrays::format::{Affine, Int8};
use tacit_arrays::{Int8Training, TrainedCodes};
use tacit_core::{Policy, Result};
use tacit_nn::{Model, ParameterFilter, QatConfig, Rules};

use crate::types::{error, normal, numbers};

fn model() -> Model<nn::Sequential> {
    mlx_rs::random::seed(3).expect("seeds");
    let linear = |inputs, outputs| nn::Linear::new(inputs, outputs).expect("builds");
    let layers = nn::Sequential::new().append(linear(64, 64)).append(nn::Relu).append(linear(64, 64));
    Model::new(layers).expect("a model")
}

/// Steps of Adam towards a target; the losses.
fn trained(model: &mut Model<nn::Sequential>, steps: usize) -> Result<Vec<f32>> {
    let (x, target) = (normal(1, &[2, 16, 64]), normal(2, &[2, 16, 64]));
    let mut optimizer = Adam::new(3e-3);
    let mut losses = Vec::new();
    for _ in 0..steps {
        let (loss, gradients) = model.value_and_grad(ParameterFilter::default(), x.clone(), |m, x: Array| {
            m.forward(&x)?.subtract(&target)?.square()?.mean(None)
        })?;
        model.update(&mut optimizer, &gradients)?;
        transforms::eval(model.parameters().flatten().into_values().chain([&loss]))?;
        losses.push(loss.item_exact::<f32>());
    }
    Ok(losses)
}

fn in_8_bits() -> QatConfig {
    QatConfig::new(Int8::default())
}

#[test]
fn a_model_learns_as_in_floats_and_the_same_again() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let float = trained(&mut model(), 60)?;
    for aware in [in_8_bits().int8_training(), in_8_bits().stochastic_int8_training().seed(5)] {
        let run = || trained(&mut model().prepare("*.weight", aware.clone())?, 60);
        let losses = run()?;
        assert!(losses[59] < 0.8 * losses[0], "{aware:?}: {losses:?}");
        // Of what is learned: what is left at the end is small beside the steps of Adam.
        assert!((losses[59] - float[59]).abs() < 0.01 * float[0], "{aware:?}: {} {}", losses[59], float[59]);
        assert_eq!(losses, run()?, "{aware:?}");
    }
    let other = trained(&mut model().prepare("*.weight", in_8_bits().stochastic_int8_training().seed(6))?, 3)?;
    let own = trained(&mut model().prepare("*.weight", in_8_bits().stochastic_int8_training().seed(5))?, 3)?;
    assert_ne!(other, own);
    Ok(())
}

#[test]
fn a_converted_model_computes_what_was_trained() -> Result<()> {
    let x = normal(4, &[3, 64]);
    let mut model = model().prepare("*.weight", in_8_bits().int8_training())?;
    trained(&mut model, 3)?;
    let prepared = numbers(&model.forward(&x)?);
    let bytes = model.nbytes();
    model.convert()?;
    assert_eq!(numbers(&model.forward(&x)?), prepared);
    assert!(model.nbytes() < bytes / 2);
    // The codes are trained further.
    let mut again = model.prepare("*.weight", in_8_bits().int8_training())?;
    assert_eq!(numbers(&again.forward(&x)?), prepared);
    assert!(again.get("layers.0.weight")?.downcast::<Int8Training>().is_some());
    Ok(())
}

#[test]
fn a_run_may_start_in_floats() -> Result<()> {
    let x = normal(4, &[3, 64]);
    let expected = numbers(&model().forward(&x)?);
    let mut model = model().prepare("*.weight", in_8_bits().int8_training())?;
    let on = numbers(&model.forward(&x)?);
    model.switch_quantization(false)?;
    assert_eq!(numbers(&model.forward(&x)?), expected);
    model.switch_quantization(true)?;
    assert_eq!(numbers(&model.forward(&x)?), on);
    assert_ne!(on, expected);
    Ok(())
}

#[test]
fn codes_without_a_master_have_such_products_too() -> Result<()> {
    let rules = Rules::new().quantize("*", "int8+stochastic")?;
    let mut model = model().prepare("*.weight", QatConfig::from(&rules).int8_training())?;
    let weight = model.get("layers.0.weight")?;
    let inner = weight.downcast::<Int8Training>().expect("has such products").inner();
    assert!(inner.downcast::<TrainedCodes>().is_some());
    let losses = trained(&mut model, 40)?;
    assert!(losses[39] < losses[0], "{losses:?}");
    Ok(())
}

#[test]
fn another_format_is_refused() {
    let aware = QatConfig::new(Affine { bits: 4, group: 32 }).int8_training();
    let error = error(model().prepare("*.weight", aware)).to_string();
    assert!(error.contains("layers.0.weight") && error.contains("has no products of 8-bit integers"), "{error}");
}
