//! Models and parts of them.

use std::collections::BTreeMap;

use expect_test::expect;
use mlx_rs::{Array, nn, ops, random};
use tacit_arrays::Lora;
use tacit_arrays::format::Nf4;
use tacit_bridge::with_bytes;
use tacit_io::{ModelFile, Tensors, Training, save};
use tacit_nn::{Model, ParameterFilter, Parameters};

use crate::scratch::Scratch;

pub(crate) fn dense() -> Model<nn::Sequential> {
    let linear = |outputs| nn::Linear::new(64, outputs).expect("builds");
    Model::new(nn::Sequential::new().append(linear(64)).append(nn::Relu).append(linear(8))).expect("a model")
}

/// A model of four bits with adapters.
fn adapted() -> Model<nn::Sequential> {
    let mut model = dense().quantize("*.weight", Nf4 { block: 64, double: true }).expect("quantizes");
    let adapter = |_: &str, base: tacit_core::Value| {
        let rows = base.aval()?.shape[0];
        let a = random::uniform::<_, f32>(-1.0, 1.0, &[4, 64], None)?;
        Ok(Some(Lora::new(base, a, ops::ones::<f32>(&[rows, 4])?, 8.0)?.into()))
    };
    model.replace("*.weight", adapter).expect("adapts");
    model
}

fn bytes(model: &Model<nn::Sequential>, only: &ParameterFilter) -> BTreeMap<String, Vec<u8>> {
    let bytes = |(path, array): (String, &Array)| (path, with_bytes(array, <[u8]>::to_vec).expect("evaluates"));
    model.leaves(only).into_iter().map(bytes).collect()
}

#[test]
fn a_whole_model_is_loaded_into_one_of_the_same_module() {
    let folder = Scratch::new();
    let path = folder.join("model.safetensors");
    let model = adapted();
    model.save(&path, ParameterFilter::All).expect("saves");
    let mut other = dense();
    other.load(&path).expect("loads");
    assert_eq!(bytes(&other, &ParameterFilter::All), bytes(&model, &ParameterFilter::All));
    let error = Model::new(nn::Linear::new(64, 8).expect("builds")).expect("a model").load(&path);
    expect![[r#"
        parameters of the model are not given: bias, weight; what is given, and the model does not have: layers.0.bias, layers.0.weight, layers.2.bias, layers.2.weight
        help: give them under the paths of the model, or let them be as they are with `Missing::Keep`"#]]
    .assert_eq(&error.expect_err("another module").to_string());
}

#[test]
fn adapters_alone_are_loaded_into_a_model_that_has_their_like() {
    let folder = Scratch::new();
    let path = folder.join("adapter.safetensors");
    let (model, mut other) = (adapted(), adapted());
    model.save(&path, ParameterFilter::Lora).expect("saves");
    let names = ["layers.0.weight.a", "layers.0.weight.b", "layers.2.weight.a", "layers.2.weight.b"];
    assert_eq!(Tensors::open(&path).expect("opens").names().collect::<Vec<_>>(), names);
    let base = bytes(&other, &ParameterFilter::Dense);
    other.load(&path).expect("loads");
    assert_eq!(bytes(&other, &ParameterFilter::Lora), bytes(&model, &ParameterFilter::Lora));
    assert_eq!(bytes(&other, &ParameterFilter::Dense), base, "the rest stays");
    expect![[r#"
        the model has no leaf layers.0.weight.a
        help: its parameters are layers.0.bias, layers.0.weight, layers.2.bias, layers.2.weight"#]]
    .assert_eq(&dense().load(&path).expect_err("it has no adapters").to_string());
    expect![[r#"
        the model has no leaf to save in Lora
        help: save another part, or `ParameterFilter::All`"#]]
    .assert_eq(&dense().save(&path, ParameterFilter::Lora).expect_err("it has none").to_string());
}

#[test]
fn values_that_were_saved_by_themselves_may_be_some() {
    let folder = Scratch::new();
    let path = folder.join("bias.safetensors");
    let bias = ops::ones::<f32>(&[8]).expect("ones");
    save(&path, &Parameters::from([("layers.2.bias".to_owned(), bias.into())])).expect("saves");
    let mut model = dense();
    model.load(&path).expect("loads");
    assert_eq!(model.get("layers.2.bias").and_then(|bias| bias.dense()).expect("is there").as_slice::<f32>(), [1.0; 8]);
}

#[test]
fn a_run_has_the_model_or_what_is_trained_of_it() {
    let folder = Scratch::new();
    let path = folder.join("run.safetensors");
    for only in [ParameterFilter::All, ParameterFilter::Lora] {
        let (model, mut other) = (adapted(), adapted());
        Training::new(3).with_model(&model, &only).expect("has leaves").save(&path).expect("saves");
        let run = Training::load(&path).expect("loads");
        run.restore_model(&mut other).expect("fits");
        assert_eq!((run.step, bytes(&other, &only)), (3, bytes(&model, &only)));
    }
}

/// All of a model, and leaves that were trained after it: neither is dropped.
#[test]
fn a_run_of_a_model_and_leaves_restores_both() {
    let folder = Scratch::new();
    let path = folder.join("run.safetensors");
    let (base, trained, mut other) = (adapted(), adapted(), adapted());
    let run = Training::new(1).with_model(&base, &ParameterFilter::All).expect("has leaves");
    run.with_model(&trained, &ParameterFilter::Lora).expect("has leaves").save(&path).expect("saves");
    let run = Training::load(&path).expect("loads");
    run.restore_model(&mut other).expect("fits");
    let lora = bytes(&trained, &ParameterFilter::Lora);
    assert_eq!(bytes(&other, &ParameterFilter::Lora), lora);
    let others = |model: &Model<nn::Sequential>| {
        let all = bytes(model, &ParameterFilter::All);
        all.into_iter().filter(|(path, _)| !lora.contains_key(path)).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(others(&other), others(&base));
    assert_ne!(others(&other), others(&trained));
    let mut unlike = Model::new(nn::Linear::new(8, 8).expect("builds")).expect("a model");
    assert!(run.restore_model(&mut unlike).is_err());
}

/// A run that was read, whose leaves are of an earlier step.
#[test]
fn a_whole_model_takes_the_place_of_leaves_that_a_run_had() {
    let folder = Scratch::new();
    let path = folder.join("run.safetensors");
    let (earlier, later, mut other) = (adapted(), adapted(), adapted());
    Training::new(1).with_model(&earlier, &ParameterFilter::Lora).expect("has leaves").save(&path).expect("saves");
    let run = Training::load(&path).expect("loads");
    run.with_model(&later, &ParameterFilter::All).expect("has values").save(&path).expect("saves");
    Training::load(&path).and_then(|run| run.restore_model(&mut other)).expect("fits");
    assert_eq!(bytes(&other, &ParameterFilter::All), bytes(&later, &ParameterFilter::All));
}

#[test]
fn parts_that_are_added_one_after_the_other_are_all_restored() {
    let folder = Scratch::new();
    let path = folder.join("run.safetensors");
    let (model, mut other) = (adapted(), adapted());
    let parts = [ParameterFilter::Lora, ParameterFilter::Paths("*.bias".parse().expect("a pattern"))];
    let run = parts.iter().try_fold(Training::new(1), |run, part| run.with_model(&model, part)).expect("has leaves");
    run.save(&path).expect("saves");
    Training::load(&path).and_then(|run| run.restore_model(&mut other)).expect("fits");
    for part in &parts {
        assert_eq!(bytes(&other, part), bytes(&model, part), "{part:?}");
    }
}
