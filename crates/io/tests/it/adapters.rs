//! Adapters that mlx-lm and PEFT trained.

use std::fs;
use std::path::Path;

use mlx_rs::{Array, Dtype};
use tacit_arrays::AffineArray;
use tacit_arrays::format::Parts;
use tacit_core::{Aval, Policy, Value};
use tacit_io::json::Json;
use tacit_io::{hugging_face, mlx_adapter, mlx_lm, peft};
use tacit_nn::Parameters;

use crate::golden::{assert_reads, assert_same_tensors, golden};
use crate::scratch::Scratch;

/// A value in f32, in which the adapters of the goldens were merged.
fn wide((name, value): (String, Value)) -> (String, Value) {
    let f32 = |array: &Array| array.as_dtype(Dtype::Float32).expect("casts");
    let value = match value.downcast::<AffineArray>() {
        None => f32(&value.dense().expect("dense")).into(),
        Some(array) => {
            let biases = array.biases().map(f32);
            let scales = Some(f32(&array.scales().expect("scales").dense().expect("dense")).into());
            let parts = Parts { codes: array.codes().clone(), scales, biases, global_scale: None };
            let aval = Aval { dtype: Dtype::Float32, ..value.aval().expect("an aval") };
            AffineArray::from_parts(parts, *array.format(), aval).expect("fits").into()
        }
    };
    (name, value)
}

fn float() -> Parameters {
    hugging_face::read(golden("mlx_lm/shards")).expect("reads").into_iter().map(wide).collect()
}

fn quantized() -> Parameters {
    mlx_lm::read(golden("mlx_lm/uniform")).expect("reads").into_iter().map(wide).collect()
}

/// The model of each adapter of mlx-lm's.
fn of_mlx_lm() -> [(&'static str, Parameters); 4] {
    [("lora", float()), ("dora", float()), ("qlora", quantized()), ("qdora", quantized())]
}

fn adapted(parameters: &Parameters) -> Parameters {
    let kept = |(_, value): &(&String, &Value)| ["Lora", "Dora"].iter().any(|kind| value.to_string().starts_with(kind));
    parameters.iter().filter(kept).map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn text(path: &Path) -> String {
    fs::read_to_string(path.join("adapter_config.json")).expect("reads")
}

#[test]
fn adapters_of_mlx_lm_merge_to_what_mlx_lm_merges_them_to() {
    for (name, model) in of_mlx_lm() {
        let folder = golden(&format!("mlx_lm/adapters/{name}"));
        let read = {
            let _deny = Policy::Deny.scope();
            mlx_adapter::read(folder, &model).expect("reads without building the model")
        };
        assert_eq!(read.len(), model.len());
        assert_reads(&adapted(&read), &format!("mlx_lm/adapters/{name}_expected.safetensors"), 1e-6);
    }
}

#[test]
fn adapters_of_mlx_lm_are_written_as_they_were_read() {
    let scratch = Scratch::new();
    for (name, model) in of_mlx_lm() {
        let (theirs, ours) = (golden(&format!("mlx_lm/adapters/{name}")), scratch.join(name));
        let config = Json::open(theirs.join("adapter_config.json")).expect("reads");
        let read = mlx_adapter::read(&theirs, &model).expect("reads");
        mlx_adapter::write(&ours, &read, &config).expect("writes");
        assert_same_tensors(&theirs.join("adapters.safetensors"), &ours.join("adapters.safetensors"));
        assert_eq!(text(&theirs), text(&ours));
    }
}

#[test]
fn a_model_that_mlx_lm_trained_as_a_whole_is_read_and_written() {
    let (scratch, theirs) = (Scratch::new(), golden("mlx_lm/adapters/full"));
    let read = mlx_adapter::read(&theirs, &float()).expect("reads");
    let config = Json::open(theirs.join("adapter_config.json")).expect("reads");
    let trained = |name: &String| name.contains("self_attn");
    assert_eq!(read["model.layers.0.self_attn.q_proj.weight"].to_string(), "bf16[32,32]");
    let trained: Parameters = read.into_iter().filter(|(name, _)| trained(name)).collect();
    mlx_adapter::write(&*scratch, &trained, &config).expect("writes");
    assert_same_tensors(&theirs.join("adapters.safetensors"), &scratch.join("adapters.safetensors"));
    assert_eq!(text(&theirs), text(&scratch));
}

#[test]
fn an_adapter_without_a_configuration_gets_one_that_mlx_lm_reads() {
    let scratch = Scratch::new();
    let read = mlx_adapter::read(golden("mlx_lm/adapters/qdora"), &quantized()).expect("reads");
    mlx_adapter::write(&*scratch, &read, &Json::Object(Vec::new())).expect("writes");
    expect_test::expect![[r#"
        {
            "fine_tune_type": "dora",
            "lora_parameters": {
                "rank": 4,
                "scale": 20.0,
                "dropout": 0.0,
                "keys": [
                    "self_attn.q_proj",
                    "self_attn.v_proj"
                ]
            },
            "num_layers": 1
        }"#]]
    .assert_eq(&text(&scratch));
}

#[test]
fn adapters_of_peft_merge_to_what_peft_merges_them_to_and_are_written_as_they_were_read() {
    let scratch = Scratch::new();
    let model = hugging_face::read(golden("peft/base.safetensors")).expect("reads");
    for name in ["lora", "rslora", "dora"] {
        let (theirs, ours) = (golden(&format!("peft/{name}")), scratch.join(name));
        let read = peft::read(&theirs, &model).expect("reads");
        assert_reads(&adapted(&read), &format!("peft/{name}_expected.safetensors"), 1e-6);

        let config = Json::open(theirs.join("adapter_config.json")).expect("reads");
        peft::write(&ours, &read, &config).expect("writes");
        assert_eq!(text(&theirs), text(&ours));
        let file = |folder: &Path| fs::read(folder.join("adapter_model.safetensors")).expect("reads");
        assert!(file(&theirs) == file(&ours), "{name} is the same bytes");
    }
}

#[test]
fn an_adapter_goes_from_one_library_to_the_other() {
    let scratch = Scratch::new();
    let model = float();
    let read = mlx_adapter::read(golden("mlx_lm/adapters/lora"), &model).expect("reads");
    peft::write(&*scratch, &read, &Json::Object(Vec::new())).expect("writes");
    expect_test::expect![[r#"
        {
          "alpha_pattern": {},
          "base_model_name_or_path": null,
          "bias": "none",
          "inference_mode": true,
          "lora_alpha": 80,
          "lora_dropout": 0.0,
          "peft_type": "LORA",
          "r": 4,
          "rank_pattern": {},
          "target_modules": [
            "model.embed_tokens",
            "model.layers.0.self_attn.q_proj",
            "model.layers.0.self_attn.v_proj"
          ],
          "task_type": null,
          "use_dora": false
        }"#]]
    .assert_eq(&text(&scratch));
    let again = peft::read(&*scratch, &model).expect("reads");
    for (name, value) in adapted(&read) {
        let (value, again) = (value.dense().unwrap(), again[&name].dense().unwrap());
        assert!(value.eq_values(again).unwrap(), "{name}");
    }
}
