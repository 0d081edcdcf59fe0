//! Adapters of PEFT of an embedding that is the head as well.

use std::path::Path;

use tacit_io::json::Json;
use tacit_io::{Metadata, Tensors, peft, write};
use tacit_nn::Parameters;

use crate::adapters::{lora, numbers};
use crate::scratch::Scratch;

const EMBEDDING: &str = "model.embed_tokens.weight";

/// A folder with the adapter of an embedding, written with this configuration.
fn written(config: &str) -> Scratch {
    let folder = Scratch::new();
    let tuned = Parameters::from([(EMBEDDING.to_owned(), lora([6, 4]))]);
    peft::write(&*folder, &tuned, &Json::parse(config).expect("JSON")).expect("writes");
    folder
}

fn tensors(folder: &Path) -> Tensors {
    Tensors::open(folder.join("adapter_model.safetensors")).expect("opens")
}

/// PEFT holds the one matrix as two modules, and has an adapter of each only where it is told.
#[test]
fn a_head_that_is_the_embedding_has_the_same_adapter_with_peft() {
    let names = |folder: &Path| -> Vec<String> {
        tensors(folder).names().map(|name| name.replace("base_model.model.", "")).collect()
    };
    let of_embedding = ["model.embed_tokens.lora_embedding_A", "model.embed_tokens.lora_embedding_B"];
    assert_eq!(names(&written("{}")), of_embedding);
    let tied = written(r#"{"ensure_weight_tying": true}"#);
    assert_eq!(names(&tied), [&["lm_head.lora_A.weight", "lm_head.lora_B.weight"][..], &of_embedding].concat());
    let config = Json::open(tied.join("adapter_config.json")).expect("reads");
    let targets = config.get("target_modules").map(Json::line);
    assert_eq!(targets.as_deref(), Some(r#"["lm_head", "model.embed_tokens"]"#));
    for (end, own) in [("A", numbers(&[2, 4], 0.5)), ("B", numbers(&[6, 2], 0.25))] {
        let of_head = tensors(&tied).get(&format!("base_model.model.lm_head.lora_{end}.weight")).expect("is there");
        assert!(of_head.eq_values(own).expect("compares"), "{end}");
    }
}

/// PEFT leaves a head that it ties out of the list.
#[test]
fn a_configuration_that_names_the_embedding_alone_stays() {
    let mut config =
        Json::open(written(r#"{"ensure_weight_tying": true}"#).join("adapter_config.json")).expect("reads");
    config.set("target_modules", Json::List(vec![Json::Text("embed_tokens".to_owned())]));
    let again = Json::open(written(&config.line()).join("adapter_config.json")).expect("reads");
    assert_eq!(again.line(), config.line());
}

#[test]
fn what_peft_has_of_a_tied_head_is_that_of_the_embedding() {
    let tied = written(r#"{"ensure_weight_tying": true}"#);
    let mut model = Parameters::from([(EMBEDDING.to_owned(), numbers(&[6, 4], 1.0).into())]);
    let read = peft::read(&*tied, &model).expect("the head is no parameter");
    assert_eq!(read.len(), 1);
    let (found, expected) = (read[EMBEDDING].dense().expect("dense"), lora([6, 4]).dense().expect("dense"));
    assert!(found.eq_values(expected).expect("compares"));
    // A model with a head of its own has an adapter of it.
    model.insert("lm_head.weight".to_owned(), numbers(&[6, 4], 2.0).into());
    let read = peft::read(&*tied, &model).expect("reads");
    assert!(read.values().all(|value| value.to_string() == "Lora(f32[6,4])"), "{read:?}");
}

/// Versions of PEFT tie only what is saved as a whole, and train two adapters: one would be lost without a word.
#[test]
fn an_adapter_of_a_tied_head_that_is_not_that_of_the_embedding_is_refused() {
    let model = Parameters::from([(EMBEDDING.to_owned(), numbers(&[6, 4], 1.0).into())]);
    for (of_head, with_embedding) in [("lora_A", true), ("lora_B", true), ("lora_A", false)] {
        let tied = written(r#"{"ensure_weight_tying": true}"#);
        let stored = tensors(&tied);
        let kept = stored.names().filter(|name| with_embedding || !name.contains("embed_tokens")).map(|name| {
            let array = stored.get(name).expect("reads");
            let other = (with_embedding && name.contains(of_head)).then(|| numbers(array.shape(), 3.0));
            (name.to_owned(), other.unwrap_or(array))
        });
        write(tied.join("adapter_model.safetensors"), kept.collect(), stored.metadata()).expect("writes");
        let error = peft::read(&*tied, &model).expect_err("is refused");
        let said = "lm_head.lora_A.weight: the model has no lm_head.weight\n";
        assert!(tied.message(&error).contains(said), "{error}");
    }
}

/// What was trained as a whole is no adapter, and is lost no more than one.
#[test]
fn a_whole_head_that_is_not_the_embedding_is_refused() {
    let model = Parameters::from([(EMBEDDING.to_owned(), numbers(&[6, 4], 1.0).into())]);
    let tied = written(r#"{"ensure_weight_tying": true, "modules_to_save": ["embed_tokens"]}"#);
    let read = |whole: &[(&str, f32)]| {
        let tensors = whole.iter().map(|&(name, from)| (format!("base_model.model.{name}"), numbers(&[6, 4], from)));
        write(tied.join("adapter_model.safetensors"), tensors.collect(), &Metadata::new()).expect("writes");
        peft::read(&*tied, &model)
    };
    let head = "lm_head.weight";
    let found = read(&[(EMBEDDING, 2.0), (head, 2.0)]).expect("reads")[EMBEDDING].dense().expect("dense");
    assert!(found.eq_values(numbers(&[6, 4], 2.0)).expect("compares"));
    for whole in [&[(EMBEDDING, 2.0), (head, 3.0)][..], &[(head, 2.0)]] {
        let error = read(whole).expect_err("is refused");
        assert!(tied.message(&error).contains("lm_head.weight: the model has no lm_head.weight\n"), "{error}");
    }
}
