//! What a model says twice: both say the same, or which one counts is known, or the model is refused.

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops};
use tacit::io::json::Json;
use tacit::io::{Gguf, ModelFolder, peft};
use tacit::model::LoraConfig;
use tacit_models::{Config, adapt, load};

use crate::golden::folder;
use crate::refused::{changed, copied, parsed, refused};

#[test]
fn a_head_that_is_the_embedding_is_left_in_its_file() -> tacit::Result<()> {
    let copied = copied("float/qwen3", |parameters| {
        let embedding = parameters["model.embed_tokens.weight"].clone();
        parameters.insert("lm_head.weight".to_owned(), embedding);
        parameters.insert("model.layers.0.self_attn.rotary_emb.inv_freq".to_owned(), Array::from_f32(1.0).into());
    })?;
    let (config, model) = load(&copied)?;
    assert_eq!(config.tied, Some(true));
    assert!(model.get("lm_head.weight").is_err());
    Ok(())
}

/// Of names that share an array some libraries save the first in the alphabet alone.
#[test]
fn a_tied_model_is_read_by_the_name_of_its_head() -> tacit::Result<()> {
    let copied = copied("float/qwen3", |parameters| {
        let embedding = parameters.remove("model.embed_tokens.weight").expect("is there");
        parameters.insert("lm_head.weight".to_owned(), embedding);
    })?;
    let (_, model) = load(&copied)?;
    let expected = load(folder("float/qwen3"))?.1.get("model.embed_tokens.weight")?.dense()?;
    assert!(model.get("model.embed_tokens.weight")?.dense()?.eq_values(&expected)?);
    Ok(())
}

/// It was left out without a word, and the logits were those of another model.
#[test]
fn a_head_that_is_not_the_embedding_is_no_tied_one() -> tacit::Result<()> {
    let said = refused("float/qwen3", |parameters| {
        let embedding = parameters["model.embed_tokens.weight"].dense().expect("is dense");
        let other = embedding.multiply(Array::from_f32(2.0)).expect("a product");
        parameters.insert("lm_head.weight".to_owned(), other.into());
    })?;
    expect![[r#"
        FOLDER: lm_head.weight: it is not model.embed_tokens.weight, which the configuration says it is
        help: leave the head out, or write `"tie_word_embeddings": false` into config.json if it is its own
    "#]]
    .assert_eq(&said);
    Ok(())
}

/// PEFT trains the embedding alone where it is not told, and the adapter was read as one of both.
#[test]
fn an_adapter_of_peft_is_of_a_tied_head_where_it_says_so() -> tacit::Result<()> {
    const EMBEDDING: &str = "model.embed_tokens.weight";
    let loaded = || load(folder("float/qwen3")).map(|(_, model)| model);
    let adapters = loaded()?.lora(EMBEDDING, LoraConfig { rank: 2, ..LoraConfig::default() })?.adapters()?;
    let mut model = loaded()?;
    let own = tempfile::tempdir().expect("a folder");
    peft::write(own.path(), &adapters, &parsed("{}"))?;
    let said = adapt(&mut model, own.path()).expect_err("it is refused").to_string();
    expect![[r#"
        FOLDER/adapter_config.json: ensure_weight_tying: it is not true, and the embedding was trained, which is the head of this model
        help: set it to true if the head was trained with the embedding; otherwise give the model a head of its own"#]]
    .assert_eq(&said.replace(&own.path().display().to_string(), "FOLDER"));
    assert!(model.get(EMBEDDING)?.as_dense().is_some());
    peft::write(own.path(), &adapters, &parsed(r#"{"ensure_weight_tying": true}"#))?;
    adapt(&mut model, own.path())?;
    assert!(model.get(EMBEDDING)?.to_string().starts_with("Lora("));
    Ok(())
}

/// Each took the place of the other.
#[test]
fn an_expert_has_one_number_and_a_layer_one_array_of_them() -> tacit::Result<()> {
    let path = |expert: &str| format!("model.layers.1.mlp.experts.{expert}.up_proj.weight");
    for other in ["00", "+0"] {
        let said = refused("float/qwen3_moe", |parameters| {
            let first = parameters[&path("0")].clone();
            parameters.insert(path(other), first);
        })?;
        let expected = format!(
            ": {}: the configuration's decoder has no such parameter\nhelp: fetch the configuration and the tensors again, together\n",
            path(other)
        );
        assert!(said.ends_with(&expected), "{said}");
    }
    let said = refused("float/qwen3_moe", |parameters| {
        let experts = ops::zeros_dtype(&[4, 32, 32], Dtype::Float32).expect("zeros");
        parameters.insert("model.layers.1.mlp.switch_mlp.up_proj.weight".to_owned(), experts.into());
    })?;
    expect![[r#"
        FOLDER: model.layers.1.mlp.experts.0.up_proj.weight: model.layers.1.mlp.switch_mlp.up_proj.weight is there too, which stands for all experts of the layer
        help: fetch the tensors again, all of them
    "#]]
    .assert_eq(&said);
    Ok(())
}

/// As transformers has it; what is written for llama.cpp says the same.
#[test]
fn positions_under_both_keys_are_those_of_one() -> tacit::Result<()> {
    let kinds = |name: &str, changes: &str| Ok::<_, tacit::Error>(changed(name, &parsed(changes))?.kinds);
    let linear = r#""rope_scaling": {"type": "linear", "factor": 4.0}"#;
    for name in ["llama", "qwen2"] {
        let one = kinds(name, &format!("{{{linear}}}"))?;
        let both = format!(r#"{{{linear}, "rope_parameters": {{"rope_type": "default"}}}}"#);
        assert_eq!(kinds(name, &both)?, one);
    }
    let empty = r#"{"rope_scaling": {}, "rope_parameters": {"rope_type": "linear", "factor": 4.0}}"#;
    assert_eq!(kinds("llama", empty)?, kinds("llama", &format!("{{{linear}}}"))?);
    // Layers with full attention are scaled, and keep their base.
    let types = |full: &str, more: &str| {
        let sliding = r#""sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}"#;
        let changes = format!(
            r#"{{"layer_types": ["sliding_attention", "full_attention"], "rope_parameters": {{{sliding}, "full_attention": {full}}}, {more}}}"#
        );
        kinds("gemma3_text", &changes)
    };
    assert_eq!(
        types(r#"{"rope_type": "default", "rope_theta": 20000.0}"#, linear)?,
        types(r#"{"type": "linear", "factor": 4.0, "rope_theta": 20000.0}"#, r#""rope_scaling": null"#)?,
    );
    Ok(())
}

#[test]
fn a_gguf_file_has_the_positions_that_are_read() -> tacit::Result<()> {
    let copied = copied("float/llama", |_| ())?;
    let file = copied.path().join("config.json");
    let mut config = Json::open(&file)?;
    config.set("rope_scaling", parsed(r#"{"type": "linear", "factor": 4.0}"#));
    config.set("rope_parameters", parsed(r#"{"rope_type": "linear", "factor": 2.0}"#));
    std::fs::write(&file, config.line()).expect("writes");
    let (read, model) = load(&copied)?;
    let written = copied.path().join("written.gguf");
    ModelFolder::open(&copied)?.write_gguf(&written, model.values()?, None)?;
    assert_eq!(Config::from_gguf(&Gguf::open(&written)?)?.kinds, read.kinds);
    Ok(())
}
