//! Quantization-aware training of models: what is prepared trains, and is stored as it was used.

use expect_test::expect;
use mlx_rs::module::{Module, ModuleParameters};
use mlx_rs::optimizers::{Adam, Optimizer};
use mlx_rs::{Array, ops};
use mlx_rs::{nn, transforms};
use tacit_arrays::format::{self, Affine, Nf4};
use tacit_arrays::{ActivationGranularity, Int8Inputs, Prepared};
use tacit_core::{Counters, Policy, Result, Value};
use tacit_nn::{Missing, Model, Outcome, ParameterFilter, QatConfig, Rules};

use crate::types::{error, normal, numbers};

const AFFINE: Affine = Affine { bits: 2, group: 32 };

fn layers() -> nn::Sequential {
    mlx_rs::random::seed(3).expect("seeds");
    let linear = |inputs, outputs| nn::Linear::new(inputs, outputs).expect("builds");
    nn::Sequential::new().append(linear(64, 64)).append(nn::Relu).append(linear(64, 64))
}

fn model() -> Model<nn::Sequential> {
    Model::new(layers()).expect("a model")
}

fn copy(model: &Model<nn::Sequential>) -> Model<nn::Sequential> {
    let mut copy = self::model();
    copy.assign(model.values().expect("values"), Missing::Refuse).expect("fits");
    copy
}

/// Steps of Adam towards a target; the losses.
fn trained(model: &mut Model<nn::Sequential>, only: &ParameterFilter, steps: usize) -> Vec<f32> {
    let (x, target) = (normal(1, &[16, 64]), normal(2, &[16, 64]));
    let mut optimizer = Adam::new(1e-2);
    let step = |_| {
        let (loss, gradients) = model
            .value_and_grad(only.clone(), x.clone(), |m, x: Array| {
                m.forward(&x)?.subtract(&target)?.square()?.mean(None)
            })
            .expect("runs");
        optimizer.update(&mut *model, &gradients).expect("updates");
        transforms::eval(model.parameters().flatten().into_values().chain([&loss])).expect("evaluates");
        loss.item_exact::<f32>()
    };
    (0..steps).map(step).collect()
}

#[test]
fn a_converted_model_computes_bit_for_bit_what_the_prepared_one_did() {
    let x = normal(4, &[3, 64]);
    let texts = ["nf4:64:double", "fp4:32", "affine:2:32", "int8", "int8:columns", "mxfp4", "mxfp8", "nvfp4:global"];
    for text in texts.into_iter().chain(["ternary", "binary", "e4m3:64", "e5m2:32", "f16", "bf16"]) {
        let format = || QatConfig::new(text.parse::<format::AnyFormat>().expect("is a format"));
        let scales = text.parse::<format::AnyFormat>().expect("is one").trained_scales().is_some();
        let mut kinds = vec![format(), format().int8_activations(ActivationGranularity::Token)];
        kinds.extend(scales.then(|| format().trained_scales()));
        for aware in kinds {
            let _deny = Policy::Deny.scope();
            let mut model = model().prepare("layers.*.weight", aware.clone()).expect("prepares");
            let all = ParameterFilter::default().or(ParameterFilter::Scales);
            trained(&mut model, &all, 2);
            let prepared = model.forward(&x).expect("runs");
            let bytes = model.nbytes();
            let (converted, counters) = Counters::during(|| {
                model.convert().expect("converts");
                model.forward(&x).expect("runs")
            });
            assert_eq!(numbers(&converted), numbers(&prepared), "{aware:?}");
            // What the report tells of the error is the only dense array.
            assert!(counters.materialized <= 2 * 4 && model.nbytes() < bytes, "{aware:?}: {counters:?}");
            assert!(!format!("{:?}", model.values().expect("values")).contains("Prepared"), "{aware:?}");
        }
    }
}

#[test]
fn training_it_lessens_the_loss_that_post_training_quantization_has() {
    let mut float = model();
    trained(&mut float, &ParameterFilter::default(), 60);
    let after =
        trained(&mut copy(&float).quantize("layers.*.weight", AFFINE).expect("quantizes"), &ParameterFilter::Dense, 1);
    let _deny = Policy::Deny.scope();
    let mut aware = float.prepare("layers.*.weight", AFFINE).expect("prepares");
    let losses = trained(&mut aware, &ParameterFilter::default(), 60);
    assert!((losses[0] - after[0]).abs() < 1e-5, "it begins where quantization after training ends");
    assert!(losses[59] < 0.9 * losses[0], "{} {}", losses[0], losses[59]);
}

#[test]
fn scales_are_trained_frozen_and_kept() {
    let _allow = Policy::Allow.scope();
    let mut model = model().prepare("*.weight", QatConfig::new(AFFINE).trained_scales()).expect("prepares");
    let scales = |model: &Model<nn::Sequential>| {
        model
            .leaves(&ParameterFilter::Scales)
            .into_iter()
            .map(|(path, array)| (path, numbers(array)))
            .collect::<Vec<_>>()
    };
    let paths: Vec<String> = scales(&model).into_iter().map(|(path, _)| path).collect();
    assert_eq!(
        paths,
        ["layers.0.weight.biases", "layers.0.weight.scales", "layers.2.weight.biases", "layers.2.weight.scales"]
    );
    let before = scales(&model);
    trained(&mut model, &ParameterFilter::default().or(ParameterFilter::Scales), 3);
    let moved = scales(&model);
    assert_ne!(before, moved);
    // Frozen from some step on: left out of what is trained.
    trained(&mut model, &ParameterFilter::default(), 3);
    assert_eq!(scales(&model), moved);
    let x = normal(4, &[3, 64]);
    let prepared = numbers(&model.forward(&x).expect("runs"));
    model.convert().expect("converts");
    assert_eq!(scales(&model), moved);

    // A new run begins with the stored codes and scales.
    let mut again = copy(&model).prepare("*.weight", AFFINE).expect("prepares");
    assert_eq!(scales(&again), moved);
    assert_eq!(numbers(&again.forward(&x).expect("runs")), prepared);
    again.convert().expect("converts");
    for path in ["layers.0.weight.codes", "layers.2.weight.codes"] {
        let codes = |model: &Model<nn::Sequential>| {
            let leaves = model.leaves(&ParameterFilter::All);
            let codes = leaves.into_iter().find(|(leaf, _)| leaf == path).expect("has codes").1.clone();
            codes.as_slice::<u32>().to_vec()
        };
        assert_eq!(codes(&again), codes(&model));
    }
}

#[test]
fn a_run_may_start_in_floats() {
    let _deny = Policy::Deny.scope();
    let x = normal(4, &[3, 64]);
    let mut float = model();
    let expected = numbers(&float.forward(&x).expect("runs"));
    let mut model = model().prepare("*.weight", Nf4 { block: 64, double: false }).expect("prepares");
    let on = numbers(&model.forward(&x).expect("runs"));
    let paths = |model: &Model<nn::Sequential>| {
        model.leaves(&ParameterFilter::All).into_iter().map(|(path, _)| path).collect::<Vec<_>>()
    };
    let before = paths(&model);
    model.switch_quantization(false).expect("switches");
    assert_eq!(numbers(&model.forward(&x).expect("runs")), expected);
    assert_eq!(paths(&model), before);
    model.switch_quantization(true).expect("switches");
    assert_eq!(numbers(&model.forward(&x).expect("runs")), on);
    assert_ne!(on, expected);
}

/// A model that computes with its masters would compute something else once they are stored.
#[test]
fn a_model_whose_quantization_is_off_is_not_converted() {
    let x = normal(4, &[3, 64]);
    for aware in [QatConfig::new(AFFINE), QatConfig::new(AFFINE).int8_activations(ActivationGranularity::Token)] {
        let mut model = model().prepare("*.weight", aware).expect("prepares");
        model.switch_quantization(false).expect("switches");
        let before = numbers(&model.forward(&x).expect("runs"));
        expect![[r#"
            the parameter layers.0.weight is prepared, but its quantization is off: stored, it would compute something else
            help: switch it on with `Model::switch_quantization(true)`, and see what the model computes then"#]]
        .assert_eq(&error(model.convert()).to_string());
        assert_eq!(numbers(&model.forward(&x).expect("runs")), before);
        model.switch_quantization(true).expect("switches");
        let on = numbers(&model.forward(&x).expect("runs"));
        model.convert().expect("converts");
        assert_eq!(numbers(&model.forward(&x).expect("runs")), on);
    }
}

/// Also of a weight that is stored in another format.
#[test]
fn what_a_format_cannot_divide_is_left() -> Result<()> {
    let layers = nn::Sequential::new().append(nn::Linear::new(64, 64)?).append(nn::Linear::new(96, 64)?);
    let model = Model::new(layers)?.quantize("*.weight", Affine { bits: 4, group: 32 })?;
    let model = model.prepare("*.weight", Affine { bits: 4, group: 64 })?;
    let rows = &model.report().rows;
    assert_eq!(rows["layers.0.weight"].outcome, Outcome::Prepared { format: "affine:4:64".to_owned() });
    let Outcome::Left { reason } = &rows["layers.1.weight"].outcome else { panic!("it is left") };
    assert!(reason.contains("not whole groups of 64"), "{reason}");
    Ok(())
}

#[test]
fn rules_prepare_and_the_report_tells() {
    let rules = Rules::new().skip("layers.0.*").and_then(|r| r.quantize("layers.*", AFFINE)).expect("rules");
    let mut model = model().prepare("*", &rules).expect("prepares");
    assert!(model.get("layers.2.weight").expect("is there").downcast::<Prepared>().is_some());
    assert!(!model.get("layers.0.weight").expect("is there").is_implicit());
    let rows = &model.report().rows;
    assert_eq!(rows["layers.2.weight"].outcome, Outcome::Prepared { format: "affine:2:32".to_owned() });
    assert_eq!(rows["layers.2.bias"].outcome, Outcome::Left { reason: "it has one axis".to_owned() });
    let table = model.report().to_string();
    assert!(table.contains("prepared"), "{table}");
    model.convert().expect("converts");
    let report = model.report();
    let Outcome::Quantized { bits, error, .. } = &report.rows["layers.2.weight"].outcome else {
        panic!("it is stored")
    };
    assert!((bits - 4.0).abs() < 1e-9 && *error > 0.0 && *error < 1.0);
}

#[test]
fn rules_prepare_with_trained_scales() {
    let rules =
        Rules::new().quantize("layers.0.*", "affine:4:64").and_then(|r| r.quantize("*", AFFINE)).expect("rules");
    let model = model().prepare("*.weight", QatConfig::from(&rules).trained_scales()).expect("prepares");
    let scales = model.leaves(&ParameterFilter::Scales);
    assert_eq!(scales.len(), 4, "scales and biases of two weights");
    for (path, format) in [("layers.0.weight", "affine:4:64"), ("layers.2.weight", "affine:2:32")] {
        assert_eq!(model.report().rows[path].outcome, Outcome::Prepared { format: format.to_owned() });
    }
}

#[test]
fn activations_are_part_of_the_model() {
    let aware = QatConfig::new(Affine { bits: 4, group: 32 }).int8_activations(ActivationGranularity::Token);
    let mut model = model().prepare("*.weight", aware).expect("prepares");
    let path = "layers.0.weight.inner.master";
    assert!(model.trainable_parameters().flatten().contains_key(path));
    model.convert().expect("converts");
    let value = model.get("layers.0.weight").expect("is there");
    let stored = value.downcast::<Int8Inputs>().expect("still rounds activations");
    assert_eq!(stored.inner().to_string(), "Affine(f32[64,64])");
}

#[test]
fn a_normalization_is_folded_into_the_layer_before_it() {
    mlx_rs::random::seed(5).expect("seeds");
    let module = nn::Sequential::new()
        .append(nn::Linear::new(32, 64).expect("builds"))
        .append(nn::BatchNorm::new(64).expect("builds"))
        .append(nn::Linear::new(64, 8).expect("builds"));
    let mut model = Model::new(module).expect("a model");
    let positive = |seed| ops::abs(normal(seed, &[64])).expect("positive").add(Array::from_f32(0.5)).expect("adds");
    for (name, array) in [("running_mean", normal(6, &[64])), ("running_var", positive(7)), ("weight", positive(8))] {
        model.set(&format!("layers.1.{name}"), array).expect("fits");
    }
    model.set("layers.1.bias", normal(9, &[64])).expect("fits");
    model.training_mode(false);
    let x = normal(10, &[5, 32]);
    let expected = numbers(&model.forward(&x).expect("runs"));
    model.fold_batch_norm("layers.0", "layers.1", 1e-5).expect("folds");
    let close = |found: &[f32]| found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-4 * (1.0 + b.abs()));
    assert!(close(&numbers(&model.forward(&x).expect("runs"))));
    // The normalization does nothing now.
    let mean = model.get("layers.1.running_mean").and_then(|mean| mean.dense()).expect("is there");
    assert_eq!(numbers(&mean), [0.0; 64]);
    expect![[r#"
        the parameter layers.1.running_mean is f32[64], and layers.2.weight has 8 outputs
        help: name the normalization that follows the layer"#]]
    .assert_eq(&error(model.fold_batch_norm("layers.2", "layers.1", 1e-5)).to_string());
    expect![[r#"
        the module has no parameter layers.9.running_mean
        help: its parameters are layers.0.bias, layers.0.weight, layers.1.bias, layers.1.running_mean, layers.1.running_var, layers.1.weight, layers.2.bias, layers.2.weight"#]].assert_eq(&error(model.fold_batch_norm("layers.0", "layers.9", 1e-5)).to_string());
    expect![[r"
        layers.1 is named as the layer and as its normalization
        help: name the normalization that follows the layer"]]
    .assert_eq(&error(model.fold_batch_norm("layers.1", "layers.1", 1e-5)).to_string());
    // The other layer has no normalization behind it.
    let twins = nn::Sequential::new()
        .append(nn::Linear::new(64, 64).expect("builds"))
        .append(nn::BatchNorm::new(64).expect("builds"))
        .append(nn::Linear::new(64, 64).expect("builds"));
    let mut tied = Model::new(twins).expect("a model").tie("layers.2.weight", "layers.0.weight").expect("ties");
    tied.training_mode(false);
    let x = normal(10, &[5, 64]);
    let before = numbers(&tied.forward(&x).expect("runs"));
    expect![[r#"
        the parameter layers.0.weight is that of layers.2.weight as well, which would change with it
        help: fold the normalization before the parameters are tied, or keep it"#]]
    .assert_eq(&error(tied.fold_batch_norm("layers.0", "layers.1", 1e-5)).to_string());
    assert_eq!(numbers(&tied.forward(&x).expect("runs")), before);
    let mut model = model.prepare("layers.0.weight", AFFINE).expect("prepares");
    expect![[r#"
        the parameter layers.0.weight is Prepared(f32[64,32]), into which nothing is folded
        help: fold the normalization before the weight is quantized or prepared"#]]
    .assert_eq(&error(model.fold_batch_norm("layers.0", "layers.1", 1e-5)).to_string());
}

/// Whichever of both paths is the parameter's own.
#[test]
fn a_layer_that_shares_its_weight_is_not_folded_by_either_path() -> Result<()> {
    let x = normal(10, &[5, 64]);
    for [path, to] in [["layers.0.weight", "layers.2.weight"], ["layers.2.weight", "layers.0.weight"]] {
        let twins = nn::Sequential::new()
            .append(nn::Linear::new(64, 64)?)
            .append(nn::BatchNorm::new(64)?)
            .append(nn::Linear::new(64, 64)?);
        let mut tied = Model::new(twins)?.tie(path, to)?;
        tied.training_mode(false);
        let before = numbers(&tied.forward(&x)?);
        let message = error(tied.fold_batch_norm("layers.0", "layers.1", 1e-5)).to_string();
        let expected = format!("the parameter {to} is that of {path} as well, which would change with it");
        assert!(message.starts_with(&expected), "{message}");
        assert_eq!(numbers(&tied.forward(&x)?), before, "{path} is {to}");
    }
    Ok(())
}

#[test]
fn what_cannot_be_prepared_is_told() {
    expect![[r#"
        no parameter of the model is prepared: layers.0.bias: it has one axis
        help: name other parameters or another format: its parameters are layers.0.bias, layers.0.weight, layers.2.bias, layers.2.weight; what has one axis is quantized where a rule names its very path"#]]
    .assert_eq(&error(model().prepare("layers.*.bias", AFFINE)).to_string());
    expect![[r#"
        no parameter of the model is prepared
        help: its parameters are layers.0.bias, layers.0.weight, layers.2.bias, layers.2.weight"#]]
    .assert_eq(&error(model().prepare("layer.*", AFFINE)).to_string());
    let double = QatConfig::new(Nf4 { block: 64, double: true }).trained_scales();
    expect![[r#"
        the parameter layers.0.weight: the format nf4:64:double has no scales that can be trained
        help: train the master alone, or take a format with one float or byte for each block, such as nf4:64"#]]
    .assert_eq(&error(model().prepare("*.weight", double)).to_string());
    expect![[r#"
        no parameter of the model is prepared
        help: name some by `Model::prepare`"#]]
    .assert_eq(&error(model().convert().map(drop)).to_string());
    expect![[r#"
        MLX has no affine format of 9 bits in groups of 64
        help: use 2, 3, 4, 5, 6 or 8 bits and groups of 32, 64 or 128"#]]
    .assert_eq(&error(model().prepare("*.weight", Affine { bits: 9, group: 64 })).to_string());
    let mut broken = model().prepare("*.weight", AFFINE).expect("prepares");
    let nan = Array::from_slice(&[f32::NAN; 64 * 64], &[64, 64]);
    let master = Prepared::new(&nan, AFFINE).expect("is lazy");
    broken.set("layers.0.weight", Value::from(master)).expect("fits");
    expect![[r#"
        kernel AffineQuantize failed: the parameter layers.0.weight: element 0 is NaN, which no code can hold
        help: replace NaN and infinities before quantizing"#]]
    .assert_eq(&error(broken.convert().map(drop)).to_string());
    assert!(broken.get("layers.2.weight").expect("is there").downcast::<Prepared>().is_some(), "it is what it was");
}

/// A format by its text, as a value and as rules, and with options of training.
#[test]
fn a_format_is_said_in_any_way() -> Result<()> {
    let rules = Rules::new().quantize("*", "affine:4:32")?;
    let same = [
        model().prepare("*.weight", "affine:4:32")?,
        model().prepare("*.weight", Affine { bits: 4, group: 32 })?,
        model().prepare("*.weight", "affine:4:32".parse::<format::AnyFormat>()?)?,
        model().prepare("*.weight", &rules)?,
        model().prepare("*.weight", QatConfig::new(Affine { bits: 4, group: 32 }))?,
    ];
    let reports: Vec<String> = same.iter().map(|model| model.report().to_string()).collect();
    assert!(reports.iter().all(|report| *report == reports[0]), "{reports:?}");
    expect![[r#"
        no format is named afine
        help: name one of affine, bf16, binary, codebook, dynamic, e4m3, e5m2, f16, fp4, int8, k, mxfp4, mxfp8, nf4, nvfp4, rotated, symmetric, ternary"#]]
    .assert_eq(&error(model().prepare("*.weight", "afine:4:32")).to_string());
    Ok(())
}
