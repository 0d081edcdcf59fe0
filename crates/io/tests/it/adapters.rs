//! Adapters that mlx-lm and PEFT trained.

use std::fs;
use std::path::Path;

use mlx_rs::{Array, Dtype};
use tacit_arrays::AffineArray;
use tacit_arrays::format::Parts;
use tacit_core::{Aval, Policy, Value};
use tacit_io::json::Json;
use tacit_io::{Tensors, hugging_face, mlx_adapter, mlx_lm, peft, write};
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

/// A copy of a golden folder with a setting of its own, and with these tensors alone.
fn changed(folder: &str, setting: Option<(&str, Json)>, kept: impl Fn(&str) -> bool) -> Scratch {
    let (from, to) = (golden(folder), Scratch::new());
    let mut config = Json::open(from.join("adapter_config.json")).expect("reads");
    if let Some((key, value)) = setting {
        config.set(key, value);
    }
    fs::write(to.join("adapter_config.json"), config.line()).expect("writes");
    for name in ["adapter_model.safetensors", "adapters.safetensors"] {
        if let Ok(tensors) = Tensors::open(from.join(name)) {
            let kept = tensors.names().filter(|name| kept(name));
            let kept = kept.map(|name| (name.to_owned(), tensors.get(name).expect("reads"))).collect();
            write(to.join(name), kept, tensors.metadata()).expect("writes");
        }
    }
    to
}

fn words(text: &str) -> Json {
    Json::Text(text.to_owned())
}

/// What changes the base or when the adapter is on is refused by its name, read or written.
#[test]
fn settings_of_peft_that_change_the_result_are_refused() {
    let model = hugging_face::read(golden("peft/base.safetensors")).expect("reads");
    let list = || Json::List(vec![Json::List(vec![Json::Integer(0), Json::Integer(1)])]);
    let mut settings: Vec<(&str, Json)> = ["pissa", "pissa_niter_4", "olora", "corda", "loftq", "lora_ga", "unheard"]
        .map(|text| ("init_lora_weights", words(text)))
        .into();
    settings.extend([("alora_invocation_tokens", list()), ("layer_replication", list())]);
    settings.extend([("use_qalora", Json::Bool(true)), ("lora_bias", Json::Bool(true))]);
    let mut messages = Vec::new();
    for (key, value) in settings {
        let folder = changed("peft/lora", Some((key, value)), |_| true);
        let error = peft::read(&*folder, &model).expect_err("refused");
        messages.push(folder.message(&error).lines().next().unwrap_or_default().to_owned());
        let config = Json::open(folder.join("adapter_config.json")).expect("reads");
        let lora = peft::read(golden("peft/lora"), &model).expect("reads");
        let other = Scratch::new();
        peft::write(&*other, &lora, &config).expect_err("refused as well");
        assert!(other.names().is_empty(), "nothing is written");
    }
    expect_test::expect![[r#"
        FOLDER/adapter_config.json: init_lora_weights: it is "pissa", which changes the weights under the adapter
        FOLDER/adapter_config.json: init_lora_weights: it is "pissa_niter_4", which changes the weights under the adapter
        FOLDER/adapter_config.json: init_lora_weights: it is "olora", which changes the weights under the adapter
        FOLDER/adapter_config.json: init_lora_weights: it is "corda", which changes the weights under the adapter
        FOLDER/adapter_config.json: init_lora_weights: it is "loftq", which changes the weights under the adapter
        FOLDER/adapter_config.json: init_lora_weights: it is "lora_ga", which changes the weights under the adapter
        FOLDER/adapter_config.json: init_lora_weights: it is "unheard", which changes the weights under the adapter
        FOLDER/adapter_config.json: alora_invocation_tokens: it changes what the adapter does, and is not read
        FOLDER/adapter_config.json: layer_replication: it changes what the adapter does, and is not read
        FOLDER/adapter_config.json: use_qalora: it is not read
        FOLDER/adapter_config.json: lora_bias: it is not read"#]].assert_eq(&messages.join("\n"));
    for value in [Json::Null, Json::Bool(true), Json::Bool(false), words("gaussian"), words("eva")] {
        let folder = changed("peft/lora", Some(("init_lora_weights", value.clone())), |_| true);
        assert!(peft::read(&*folder, &model).is_ok(), "{value}");
    }
}

/// An adapter of which a part is missing is another one.
#[test]
fn folders_that_lack_an_adapter_are_refused() {
    type Read = fn(&Path, &Parameters) -> tacit_core::Result<Parameters>;
    let libraries: [(&str, Parameters, Read); 2] = [
        ("peft/lora", hugging_face::read(golden("peft/base.safetensors")).expect("reads"), |f, m| peft::read(f, m)),
        ("mlx_lm/adapters/lora", float(), |f, m| mlx_adapter::read(f, m)),
    ];
    let mut messages = Vec::new();
    for (folder, model, read) in libraries {
        for lost in ["q_proj", "embed_tokens", ""] {
            let folder = changed(folder, None, |name| !name.contains(lost));
            let error = read(&folder, &model).expect_err("refused");
            messages.push(folder.message(&error));
        }
        assert!(read(&changed(folder, None, |_| true), &model).is_ok());
    }
    expect_test::expect![[r#"
        FOLDER/adapter_model.safetensors: it has no adapter of q_proj.weight, which target_modules of FOLDER/adapter_config.json names
        help: fetch the folder again, or name in target_modules what is adapted
        FOLDER/adapter_model.safetensors: it has no adapter of embed_tokens.weight, which target_modules of FOLDER/adapter_config.json names
        help: fetch the folder again, or name in target_modules what is adapted
        FOLDER/adapter_model.safetensors: it has no adapter at all
        help: fetch the folder again
        FOLDER/adapters.safetensors: it has no adapter of model.layers.0.self_attn.q_proj, which FOLDER/adapter_config.json names
        help: fetch the folder again, or set `keys` and `num_layers` as it was trained
        FOLDER/adapters.safetensors: it has no adapter of model.embed_tokens, which FOLDER/adapter_config.json names
        help: fetch the folder again, or set `keys` and `num_layers` as it was trained
        FOLDER/adapters.safetensors: it has no adapter at all
        help: fetch the folder again"#]].assert_eq(&messages.join("\n"));
}
