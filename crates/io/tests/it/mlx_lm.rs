//! Folders that mlx-lm wrote.

use std::fs;

use tacit_arrays::{AffineArray, Mxfp4Array, format::Affine};
use tacit_core::Aval;
use tacit_io::json::Json;
use tacit_io::mlx_lm::{self, ConfigFile};
use tacit_nn::Parameters;

use crate::golden::{assert_reads, assert_same_tensors, golden};
use crate::scratch::Scratch;

const FOLDERS: [&str; 5] = ["grid_float32", "grid_float16", "uniform", "mixed", "text_config"];

#[test]
fn parameters_are_what_mlx_makes_of_them() {
    for name in FOLDERS {
        let parameters = mlx_lm::read(golden(&format!("mlx_lm/{name}"))).expect("reads");
        assert_reads(&parameters, &format!("mlx_lm/{name}_expected.safetensors"), 0.0);
    }
}

#[test]
fn what_is_read_is_written_as_the_same_tensors_and_the_same_configuration() {
    let folder = Scratch::new();
    for name in FOLDERS {
        let (theirs, ours) = (golden(&format!("mlx_lm/{name}")), folder.join(name));
        let parameters = mlx_lm::read(&theirs).expect("reads");
        mlx_lm::write(&ours, &parameters, &ConfigFile::read(&theirs).expect("reads")).expect("writes");
        assert_same_tensors(&theirs.join("model.safetensors"), &ours.join("model.safetensors"));
        let text = |folder: &std::path::Path| fs::read_to_string(folder.join("config.json")).expect("reads");
        assert_eq!(text(&theirs), text(&ours));
    }
}

#[test]
fn formats_are_those_of_the_configuration() {
    let parameters = mlx_lm::read(golden("mlx_lm/mixed")).expect("reads");
    let lines = parameters.iter().map(|(name, value)| format!("{name}  {value:?}\n"));
    expect_test::expect![[r#"
        lm_head.weight  Affine(bf16[16,32]) { format: Affine { bits: 8, group: 32 }, int8_activations: false, transposed: false }
        model.embed_tokens.weight  Affine(bf16[16,32]) { format: Affine { bits: 4, group: 32 }, int8_activations: false, transposed: false }
        model.layers.0.mlp.down_proj.weight  Affine(bf16[32,32]) { format: Affine { bits: 4, group: 32 }, int8_activations: false, transposed: false }
        model.layers.0.mlp.gate_proj.weight  Affine(bf16[32,32]) { format: Affine { bits: 4, group: 32 }, int8_activations: false, transposed: false }
        model.layers.0.mlp.up_proj.weight  Affine(bf16[32,32]) { format: Affine { bits: 4, group: 32 }, int8_activations: false, transposed: false }
        model.layers.0.self_attn.k_proj.weight  Mxfp4(bf16[16,32]) { format: Mxfp4 { rule: Ceil }, int8_activations: false, transposed: false }
        model.layers.0.self_attn.q_proj.weight  Affine(bf16[32,32]) { format: Affine { bits: 4, group: 32 }, int8_activations: false, transposed: false }
        model.layers.0.self_attn.v_proj.weight  Affine(bf16[16,32]) { format: Affine { bits: 4, group: 32 }, int8_activations: false, transposed: false }
    "#]].assert_eq(&lines.filter(|line| line.contains('{')).collect::<String>());
}

#[test]
fn the_configuration_gives_rules() {
    let config = ConfigFile::read(golden("mlx_lm/mixed")).expect("reads");
    let rules = config.rules().expect("rules");
    let aval = Aval::new(&[32, 32], mlx_rs::Dtype::Float32);
    let of = |module: &str| rules.format(&format!("{module}.weight"), &aval).map(ToString::to_string);
    assert_eq!(of("model.layers.0.self_attn.q_proj").as_deref(), Some("affine:4:32"));
    assert_eq!(of("model.layers.0.self_attn.k_proj").as_deref(), Some("mxfp4"));
    assert_eq!(of("model.layers.0.self_attn.o_proj"), None);
    assert_eq!(of("lm_head").as_deref(), Some("affine:8:32"));
}

#[test]
fn a_configuration_says_the_formats_of_what_it_is_written_with() {
    let folder = Scratch::new();
    let dense = mlx_rs::random::normal::<f32>(&[8, 64], None, None, None).expect("draws");
    let affine = |bits| AffineArray::quantize(&dense, Affine { bits, group: 32 }).expect("quantizes");
    let mut parameters = Parameters::from([
        ("a.weight".to_owned(), affine(4).into()),
        ("b.weight".to_owned(), affine(8).into()),
        ("c.weight".to_owned(), affine(4).into()),
        ("norm.weight".to_owned(), dense.clone().into()),
    ]);
    let config = |json: &str| ConfigFile::new(Json::parse(json).expect("JSON"));
    let section = |config: &ConfigFile| config.json().get("quantization").map(Json::line);

    mlx_lm::write(&*folder, &parameters, &config(r#"{"model_type": "llama"}"#)).expect("writes");
    let written = ConfigFile::read(&*folder).expect("reads");
    let b = r#""b": {"group_size": 32, "bits": 8, "mode": "affine"}"#;
    assert_eq!(section(&written), Some(format!(r#"{{"group_size": 32, "bits": 4, "mode": "affine", {b}}}"#)));
    assert_eq!(written.json().get("quantization"), written.json().get("quantization_config"));
    let read = mlx_lm::read(&*folder).expect("reads");
    assert_eq!(read["b.weight"].downcast::<AffineArray>().expect("affine").format(), &Affine { bits: 8, group: 32 });

    // Other parameters under the same configuration: an entry that no longer holds goes, and another comes.
    parameters.insert("b.weight".to_owned(), dense.clone().into());
    parameters
        .insert("c.weight".to_owned(), Mxfp4Array::quantize(&dense, tacit_arrays::ScaleRule::Ceil).unwrap().into());
    mlx_lm::write(&*folder, &parameters, &written).expect("writes");
    let written = ConfigFile::read(&*folder).expect("reads");
    let c = r#""c": {"group_size": 32, "bits": 4, "mode": "mxfp4"}"#;
    assert_eq!(section(&written), Some(format!(r#"{{"group_size": 32, "bits": 4, "mode": "affine", {c}}}"#)));
    assert!(mlx_lm::read(&*folder).expect("reads")["c.weight"].downcast::<Mxfp4Array>().is_some());

    // What another library's format was is not said any more.
    let theirs = config(r#"{"quantization_config": {"quant_method": "bitsandbytes"}, "vocab_size": 8}"#);
    mlx_lm::write(folder.join("converted"), &parameters, &theirs).expect("writes");
    let converted = ConfigFile::read(folder.join("converted")).expect("reads");
    assert_eq!(section(&converted), section(&written));
    assert_eq!(converted.json().get("quantization"), converted.json().get("quantization_config"));

    // Nothing quantized is nothing said.
    let dense = Parameters::from([("a.weight".to_owned(), dense.into())]);
    mlx_lm::write(&*folder, &dense, &written).expect("writes");
    assert_eq!(ConfigFile::read(&*folder).expect("reads").json().line(), r#"{"model_type": "llama"}"#);
}

#[test]
fn a_method_of_another_library_becomes_a_mode_where_modules_differ() {
    let folder = Scratch::new();
    let x = mlx_rs::random::normal::<f32>(&[8, 64], None, None, None).expect("draws");
    let parameters = Parameters::from([
        ("a.weight".to_owned(), Mxfp4Array::quantize(&x, tacit_arrays::ScaleRule::Ceil).expect("quantizes").into()),
        ("b.weight".to_owned(), AffineArray::quantize(&x, Affine { bits: 8, group: 32 }).expect("quantizes").into()),
    ]);
    let said = Json::parse(r#"{"quantization_config": {"quant_method": "mxfp4"}}"#).expect("JSON");
    mlx_lm::write(&*folder, &parameters, &ConfigFile::new(said)).expect("writes");
    let config = ConfigFile::read(&*folder).expect("reads");
    let b = r#""b": {"group_size": 32, "bits": 8, "mode": "affine"}"#;
    let section = format!(r#"{{"group_size": 32, "bits": 4, "mode": "mxfp4", {b}}}"#);
    assert_eq!(config.json().get("quantization").map(Json::line), Some(section));
    assert_eq!(config.json().get("quantization"), config.json().get("quantization_config"));
    assert_eq!(mlx_lm::read(&*folder).expect("reads").len(), 2);
}
