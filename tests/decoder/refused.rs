//! What is refused, and by which words.

use std::fs;
use std::path::Path;

use expect_test::expect;
use mlx_rs::{Array, Dtype};
use tacit::format::AnyFormat;
use tacit::io::json::Json;
use tacit::io::{self, hugging_face, layout};
use tacit::model::Parameters;
use tacit_models::{Config, Decoder, Positions, caches, load};
use tempfile::TempDir;

use crate::golden::folder;

/// The golden configuration with other keys.
pub(crate) fn changed(name: &str, changes: &Json) -> tacit::Result<Config> {
    let mut json = Json::open(folder(&format!("float/{name}")).join("config.json"))?;
    for (key, value) in changes.entries() {
        json.set(key, value.clone());
    }
    Config::from_json(&json, Path::new("config.json"))
}

fn without(name: &str, key: &str) -> tacit::Result<Config> {
    let json = Json::open(folder(&format!("float/{name}")).join("config.json"))?;
    let others = json.entries().iter().filter(|(own, _)| **own != *key).cloned().collect();
    Config::from_json(&Json::Object(others), Path::new("config.json"))
}

pub(crate) fn parsed(changes: &str) -> Json {
    Json::parse(changes).expect("an object")
}

/// What is said of golden configurations with these keys.
fn said(cases: &[(&str, &str)]) -> String {
    let message =
        |&(name, changes): &(&str, &str)| changed(name, &parsed(changes)).expect_err(changes).to_string() + "\n";
    cases.iter().map(message).collect()
}

#[test]
fn a_configuration_that_is_not_read_says_which_key() {
    expect![[r#"
        config.json: model_type: mamba is not read
        help: there are llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, qwen3_next, gemma, gemma2, gemma3_text, phi3, olmo2, granite and smollm3: take such a model
        config.json: hidden_size: it is not there
        help: fetch the configuration again
        config.json: num_hidden_layers: it is "two", and should be a whole number above 0
        help: fetch the configuration again
        config.json: num_key_value_heads: 3 heads of keys do not serve 4 heads of queries in equal parts
        help: fetch the configuration again
        config.json: hidden_act: relu is not read
        help: there are silu, gelu and gelu_pytorch_tanh: take a model with one of these
        config.json: rope_scaling.rope_type: dynamic is not read: its frequencies change with the length
        help: there are default, linear, llama3, yarn and longrope: take a model of one of these, or remove the entry if its context is not longer than that of the first training
        config.json: rope_scaling.low_freq_factor: it is not there
        help: fetch the configuration again
        config.json: layer_types: it names 1 layers, and there are 2
        help: fetch the configuration again
        config.json: layer_types: chunked_attention is not read
        help: there are full_attention, sliding_attention and, of qwen3_next, linear_attention: take a model of these
        config.json: sliding_window: it is 0
        help: set it to the tokens that are seen, or to null
        config.json: num_experts_per_tok: a token goes through 9 of 4 experts
        help: fetch the configuration again
        config.json: eos_token_id: it has -1
        help: fetch the configuration again
    "#]]
    .assert_eq(&said(&[
        ("llama", r#"{"model_type": "mamba"}"#),
        ("llama", r#"{"hidden_size": null}"#),
        ("llama", r#"{"num_hidden_layers": "two"}"#),
        ("llama", r#"{"num_key_value_heads": 3}"#),
        ("llama", r#"{"hidden_act": "relu"}"#),
        ("llama", r#"{"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}"#),
        ("llama", r#"{"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}"#),
        ("mistral", r#"{"layer_types": ["full_attention"]}"#),
        ("mistral", r#"{"layer_types": ["full_attention", "chunked_attention"]}"#),
        ("mistral", r#"{"sliding_window": 0}"#),
        ("qwen3_moe", r#"{"num_experts_per_tok": 9}"#),
        ("qwen3_moe", r#"{"eos_token_id": [1, -1]}"#),
    ]));
}

#[test]
fn numbers_that_no_model_has_are_refused() {
    expect![[r#"
        config.json: num_hidden_layers: it is 3000, and no model has more than 2000
        help: fetch the configuration again
        config.json: vocab_size: it is 2147483647, and no model has more than 16777216
        help: fetch the configuration again
        config.json: num_attention_heads: 4 heads of 0 numbers are no layer of width 3
        help: fetch the configuration again
        config.json: num_attention_heads: 16777216 heads of 4096 numbers are no layer of width 32
        help: fetch the configuration again
    "#]]
    .assert_eq(&said(&[
        ("llama", r#"{"num_hidden_layers": 3000}"#),
        ("llama", r#"{"vocab_size": 2147483647}"#),
        ("llama", r#"{"hidden_size": 3, "head_dim": null}"#),
        ("llama", r#"{"num_attention_heads": 16777216, "num_key_value_heads": 1, "head_dim": 4096}"#),
    ]));
}

#[test]
fn numbers_that_no_rotation_or_cap_has_are_refused() {
    expect![[r#"
        config.json: rope_theta: it is 0, and should be a number above 0 in the range of f32
        help: fetch the configuration again
        config.json: rope_theta: it is 1e+300, and should be a number above 0 in the range of f32
        help: fetch the configuration again
        config.json: rope_local_base_freq: it is -1, and should be a number above 0 in the range of f32
        help: fetch the configuration again
        config.json: rope_scaling.factor: it is 0, and should be a number above 0 in the range of f32
        help: fetch the configuration again
        config.json: rope_scaling.high_freq_factor: it is 4, and low_freq_factor is 4
        help: fetch the configuration again
        config.json: rope_theta: it is 1, of which no wave is longer than another
        help: fetch the configuration again
        config.json: partial_rotary_factor: 0 of the 8 numbers of a head are rotated, and pairs of them should be
        help: fetch the configuration again
        config.json: head_dim: 5 of the 5 numbers of a head are rotated, and pairs of them should be
        help: fetch the configuration again
        config.json: rope_parameters.partial_rotary_factor: 3 of the 8 numbers of a head are rotated, and pairs of them should be
        help: fetch the configuration again
        config.json: rope_parameters.full_attention.rope_theta: it is 1, of which no wave is longer than another
        help: fetch the configuration again
        config.json: query_pre_attn_scalar: it is 0, and should be a number above 0 in the range of f32
        help: fetch the configuration again
        config.json: final_logit_softcapping: it is 0, and should be a number above 0 in the range of f32
        help: fetch the configuration again
        config.json: rms_norm_eps: it is -1, and should be a number above 0 in the range of f32
        help: fetch the configuration again
    "#]]
    .assert_eq(&said(&[
        ("llama", r#"{"rope_theta": 0}"#),
        ("llama", r#"{"rope_theta": 1e300}"#),
        ("gemma3_text", r#"{"rope_local_base_freq": -1}"#),
        ("llama", r#"{"rope_scaling": {"rope_type": "linear", "factor": 0}}"#),
        ("llama", r#"{"rope_scaling": {"rope_type": "llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 4,
                     "original_max_position_embeddings": 64}}"#),
        ("llama", r#"{"rope_theta": 1, "rope_scaling": {"rope_type": "yarn", "factor": 2,
                   "original_max_position_embeddings": 64}}"#),
        ("llama", r#"{"partial_rotary_factor": 0.01}"#),
        // The key that is named is the one that says it.
        ("llama", r#"{"head_dim": 5}"#),
        ("llama", r#"{"rope_scaling": null, "rope_parameters": {"partial_rotary_factor": 0.4, "rope_theta": 10000}}"#),
        ("gemma3_text", r#"{"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2, "rope_theta": 1,
            "original_max_position_embeddings": 64}}}"#),
        ("gemma2", r#"{"query_pre_attn_scalar": 0}"#),
        ("gemma2", r#"{"final_logit_softcapping": 0}"#),
        ("llama", r#"{"rms_norm_eps": -1}"#),
    ]));
}

#[test]
fn values_of_another_kind_are_refused() {
    expect![[r#"
        config.json: hidden_act: it is 3, and should be a string
        help: fetch the configuration again
        config.json: rope_scaling: it is 3, and should be an object
        help: fetch the configuration again
        config.json: use_sliding_window: it is 1, and should be true or false
        help: fetch the configuration again
        config.json: layer_types: it is [1, 2], and should be a list of strings
        help: fetch the configuration again
        config.json: mlp_only_layers: it is [0.5], and should be a list of whole numbers
        help: fetch the configuration again
        config.json: eos_token_id: it is [1, "end"], and should be a whole number, or a list of them
        help: fetch the configuration again
        config.json: rope_scaling.long_factor: it is [1, -1], and should be a list of numbers above 0
        help: fetch the configuration again
        config.json: rope_scaling.mscale_all_dim: queries and keys are multiplied by 6.48216253695714e306, which is beyond f32
        help: fetch the configuration again
    "#]].assert_eq(&said(&[
        ("llama", r#"{"hidden_act": 3}"#),
        ("llama", r#"{"rope_scaling": 3}"#),
        ("qwen3", r#"{"use_sliding_window": 1}"#),
        ("qwen3", r#"{"layer_types": [1, 2]}"#),
        ("qwen3_moe", r#"{"mlp_only_layers": [0.5]}"#),
        ("qwen3_moe", r#"{"eos_token_id": [1, "end"]}"#),
        ("llama", r#"{"rope_scaling": {"rope_type": "longrope", "long_factor": [1, -1]}}"#),
        (
            "llama",
            r#"{"rope_scaling": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 64,
                     "mscale": 1e308, "mscale_all_dim": 1}}"#,
        ),
    ]));
}

/// Whatever number stands at whatever key of whatever architecture, there is a configuration or an error.
#[test]
fn no_number_of_a_configuration_is_a_panic() {
    let numbers = "0 -1 1 2 3 7 1e-320 0.5 1e9 2147483647 -2147483648 1e300 [] {} null";
    let scalings = ["linear", "llama3", "yarn", "default"].map(|kind| {
        format!(
            r#"{{"rope_type": "{kind}", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1, "mscale": 1, "mscale_all_dim": 1,
                "attention_factor": 1, "rope_theta": 1000, "partial_rotary_factor": 0.5}}"#
        )
    });
    let (mut read, mut refused) = (0, 0);
    let mut count = |made: tacit::Result<Config>| match made {
        Ok(_) => read += 1,
        Err(_) => refused += 1,
    };
    for name in crate::golden::ARCHITECTURES {
        let own = Json::open(folder(&format!("float/{name}")).join("config.json")).expect("a golden file");
        let keys: Vec<String> = own.entries().iter().map(|(key, _)| key.to_owned()).collect();
        for number in numbers.split(' ') {
            for key in keys.iter().map(String::as_str).chain(["head_dim", "sliding_window", "partial_rotary_factor"]) {
                count(changed(name, &parsed(&format!("{{\"{key}\": {number}}}"))));
            }
            for scaling in &scalings {
                for (key, _) in parsed(scaling).entries() {
                    let mut changes = parsed(scaling);
                    changes.set(key, parsed(&format!("{{\"n\": {number}}}")).get("n").expect("it is there").clone());
                    let mut all = parsed("{}");
                    all.set("rope_scaling", changes);
                    count(changed(name, &all));
                }
            }
        }
    }
    assert!(read > 100 && refused > 100, "{read} read, {refused} refused");
}

/// A copy of a golden folder with other parameters.
pub(crate) fn copied(name: &str, change: impl FnOnce(&mut Parameters)) -> tacit::Result<TempDir> {
    let own = tempfile::tempdir().expect("a folder");
    let from = folder(name).join("config.json");
    fs::copy(&from, own.path().join("config.json")).map_err(tacit::Error::file("copy", &from))?;
    let mut parameters = io::read(folder(name))?;
    change(&mut parameters);
    hugging_face::write(own.path().join("model.safetensors"), &parameters)?;
    Ok(own)
}

/// What is said of one, and a line's end.
pub(crate) fn refused(name: &str, change: impl FnOnce(&mut Parameters)) -> tacit::Result<String> {
    let copied = copied(name, change)?;
    let error = load(&copied).expect_err("it is refused").to_string();
    Ok(error.replace(&copied.path().display().to_string(), "FOLDER") + "\n")
}

#[test]
fn parameters_that_are_not_the_decoders_are_named() -> tacit::Result<()> {
    let norm = "model.norm.weight";
    let path = |layer: usize, of: &str| format!("model.layers.{layer}.mlp.{of}");
    let expert = path(1, "experts.2.up_proj.weight");
    let said = [
        refused("float/qwen3", |parameters| drop(parameters.remove(norm)))?,
        refused("float/qwen3", |parameters| {
            parameters.insert(norm.to_owned(), Array::from_slice(&[1f32; 31], &[31]).into());
        })?,
        refused("float/qwen3", |parameters| {
            parameters.insert(path(2, "up_proj.bias"), Array::from_f32(1.0).into());
        })?,
        refused("float/qwen3", |parameters| {
            let codes = parameters[&path(0, "up_proj.weight")].aval().expect("an aval");
            let codes = mlx_rs::ops::zeros::<u8>(&codes.shape).expect("zeros");
            parameters.insert(path(0, "up_proj.weight"), codes.into());
        })?,
        refused("float/qwen3", |parameters| parameters.retain(|path, _| !path.starts_with("model.layers.1.")))?,
        refused("float/qwen3_moe", |parameters| drop(parameters.remove(&expert)))?,
        refused("float/qwen3_moe", |parameters| {
            parameters.insert(expert.clone(), Array::from_slice(&[1f32; 6], &[2, 3]).into());
        })?,
    ];
    expect![[r#"
        FOLDER: model.norm.weight: it is not there, and the configuration asks for f32[32]
        help: fetch the configuration and the tensors again, together
        FOLDER: model.norm.weight: it is f32[31], and the configuration asks for f32[32]
        help: fetch the configuration and the tensors again, together
        FOLDER: model.layers.2.mlp.up_proj.bias: the configuration's decoder has no such parameter
        help: fetch the configuration and the tensors again, together
        FOLDER: model.layers.0.mlp.up_proj.weight: it is u8[32,32], and a weight is of floats
        help: take a checkpoint in a format that is read: these may be codes whose scales are not known
        FOLDER/config.json: num_hidden_layers: it is 2, and there are tensors of 1 layers
        help: fetch the configuration and the tensors again, together
        FOLDER: model.layers.1.mlp.experts.2.up_proj.weight: it is not there, and later experts are
        help: fetch the tensors again, all of them
        FOLDER: model.layers.1.mlp.experts.2.up_proj.weight: it is f32[2,3], and that of expert 0 is bf16[32,32]
        help: fetch the tensors again, all of them
    "#]]
    .assert_eq(&said.concat());
    Ok(())
}

/// As programs of GPTQ store one for each layer.
#[test]
fn biases_of_zeros_that_a_decoder_does_not_have_are_left_out() -> tacit::Result<()> {
    let path = "model.layers.1.mlp.up_proj.bias";
    let copied = copied("float/qwen3", |parameters| {
        parameters.insert(path.to_owned(), mlx_rs::ops::zeros::<f32>(&[32]).expect("zeros").into());
    })?;
    assert!(load(&copied)?.1.get(path).is_err());
    Ok(())
}

/// As `tacit quantize` once made them.
#[test]
fn codes_in_place_of_a_filter_are_refused() -> tacit::Result<()> {
    let (from, path) = (folder("float/qwen3_next"), "model.layers.0.linear_attn.conv1d.weight");
    let of_hugging_face = io::read(&from)?;
    let of_mlx_lm = layout::as_mlx_lm(&from, of_hugging_face.clone())?;
    for (mut parameters, shape) in [(of_hugging_face, "64,1,4"), (of_mlx_lm, "64,4,1")] {
        let own = tempfile::tempdir().expect("a folder");
        fs::copy(from.join("config.json"), own.path().join("config.json"))
            .map_err(tacit::Error::file("copy", &from))?;
        let codes = "f16".parse::<AnyFormat>()?.quantize(&parameters[path].dense()?.as_dtype(Dtype::Float16)?)?;
        parameters.insert(path.to_owned(), codes);
        io::save(own.path().join("model.safetensors"), &parameters)?;
        let error = load(&own).expect_err("it is refused").to_string();
        expect![[r#"
            FOLDER: model.layers.0.linear_attn.conv1d.weight: it is F16(f16[SHAPE]), and the filter of a convolution is of floats
            help: quantize the model again: filters stay as they are"#]]
        .assert_eq(&error.replace(&own.path().display().to_string(), "FOLDER").replace(shape, "SHAPE"));
    }
    Ok(())
}

#[test]
fn caches_of_another_decoder_are_refused() -> tacit::Result<()> {
    let config = changed("qwen3", &parsed("{}"))?;
    let mut decoder = Decoder::new(&config)?;
    let tokens = Array::from_slice(&[1u32, 2], &[1, 2]);
    let mut short = caches(&config, 1, Dtype::Float32)?;
    short.pop();
    let error = decoder.forward(&tokens, &mut short, Positions::Last).expect_err("one is lacking").to_string();
    expect![[r#"
        1 caches are given to 2 layers
        help: make them by `caches`"#]]
    .assert_eq(&error);
    let mut full = caches(&config, 1, Dtype::Float32)?;
    let error = decoder.forward(&tokens, &mut full, Positions::Last).expect_err("there is no room").to_string();
    expect![[r#"
        2 tokens are written behind 0 into a cache with room for 0
        help: reserve room for them before the step, by `KvCache::reserve`"#]]
    .assert_eq(&error);
    Ok(())
}

#[test]
fn experts_are_counted_by_either_key() -> tacit::Result<()> {
    let layers = |changes: &str| Ok::<_, tacit::Error>(format!("{:?}", changed("qwen3_moe", &parsed(changes))?.layers));
    assert_eq!(layers(r#"{"num_experts": null, "num_local_experts": 4}"#)?, layers("{}")?);
    expect![[r#"
        config.json: num_experts: it is not there
        help: fetch the configuration again
    "#]]
    .assert_eq(&said(&[("qwen3_moe", r#"{"num_experts": null}"#)]));
    Ok(())
}

#[test]
fn the_variants_of_newer_files_are_those_of_older_ones() -> tacit::Result<()> {
    let kinds = |name: &str, changes: &str| Ok::<_, tacit::Error>(changed(name, &parsed(changes))?.kinds);
    let newer = r#"{"rope_scaling": null, "rope_theta": null,
                    "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}"#;
    assert_eq!(kinds("qwen2", newer)?, kinds("qwen2", "{}")?);
    let newer = r#"{"rope_theta": null, "rope_local_base_freq": null,
                    "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": {
                        "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
                        "full_attention": {"rope_type": "default", "rope_theta": 10000.0}}}"#;
    assert_eq!(kinds("gemma3_text", newer)?, kinds("gemma3_text", "{}")?);
    // All of a Mistral slides, nothing of a Qwen that does not ask for it.
    assert_eq!(kinds("mistral", r#"{"layer_types": null}"#)?.len(), 1);
    assert_eq!(kinds("qwen3", r#"{"sliding_window": 8}"#)?, kinds("qwen3", "{}")?);
    let asked = r#"{"sliding_window": 8, "use_sliding_window": true, "max_window_layers": 1}"#;
    assert_eq!(kinds("qwen3", asked)?.len(), 2);
    // A window is of 4096 tokens where the file has no key for it, and there is no window where it says so.
    let window = |kinds: Vec<_>| format!("{kinds:?}").contains("4096");
    let absent = |name: &str| Ok::<_, tacit::Error>(window(without(name, "sliding_window")?.kinds));
    assert!(absent("mistral")? && absent("gemma2")? && absent("gemma3_text")? && !absent("qwen3")?);
    assert!(!absent("mixtral")? && !absent("phi3")? && !absent("smollm3")?);
    assert!(!window(kinds("gemma2", r#"{"sliding_window": null}"#)?));
    Ok(())
}
