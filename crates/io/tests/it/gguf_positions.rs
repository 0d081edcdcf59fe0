//! Positions of models that are written as a GGUF file: every number that changes what a model computes is in the file, or the
//! model is refused.

use expect_test::expect;
use tacit_io::json::Json;
use tacit_io::{Gguf, GgufValue};

use crate::gguf_malformed::{Maker, text};
use crate::gguf_written_malformed::{embedding, folder, llama, refused, written};
use crate::scratch::Scratch;

/// What llama.cpp scales queries and keys by beside factors of their frequencies.
#[test]
fn factors_of_frequencies_come_with_what_scales_heads() {
    let factors = "[1.0, 1.5, 2.0, 4.0]";
    let of = |more: &str| {
        llama(&format!(
            r#""max_position_embeddings": 4096, "rope_scaling": {{"rope_type": "longrope", "long_factor": {factors}, "short_factor": {factors}{more}}}"#
        ))
    };
    let scaled = |more: &str| {
        let folder = folder(&of(more));
        let made = written(&folder, &embedding(), None).expect("writes");
        assert_eq!(made.aval("rope_freqs.weight").expect("is there").shape, [4]);
        let scaling = made.configuration().expect("reads").get("rope_scaling").cloned();
        let own = match made.metadata("llama.rope.scaling.attn_factor") {
            Ok(GgufValue::Float(factor)) => Some(factor as f32),
            _ => None,
        };
        (own, scaling.and_then(|scaling| scaling.get("attention_factor")?.number()))
    };
    assert_eq!(scaled(r#", "attention_factor": 1.0"#), (None, Some(1.0)));
    assert_eq!(scaled(r#", "attention_factor": 1.25"#), (Some(1.25), Some(1.25)));
    // As transformers has it where nothing says so.
    let usual = |factor: f64, original: f64| (1.0 + factor.ln() / original.ln()).sqrt() as f32;
    let (own, said) = scaled(r#", "original_max_position_embeddings": 1024"#);
    assert_eq!(own, Some(usual(4.0, 1024.0)));
    assert!((said.expect("is there") as f32 - usual(4.0, 1024.0)).abs() <= 0.0);
    assert_eq!(scaled(r#", "factor": 2.0, "original_max_position_embeddings": 1024"#).0, Some(usual(2.0, 1024.0)));
    assert_eq!(scaled(r#", "original_max_position_embeddings": 4096"#), (None, Some(1.0)));
    let three = of("").replace("[1.0, 1.5, 2.0, 4.0]", "[1.0, 2.0, 4.0]");
    let cases = [
        three,
        of("").replace("\"max_position_embeddings\": 4096, ", ""),
        of(r#", "attention_factor": "x""#),
        of(r#", "attention_factor": 0.0"#),
        of(r#", "mscale": 2.0"#),
        llama(r#""rope_scaling": {"rope_type": "linear"}"#),
        llama(r#""rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": "x"}"#),
        llama(r#""partial_rotary_factor": 0.5"#),
    ];
    expect![[r#"
        FOLDER/config.json: rope_scaling.long_factor: it has 3 numbers, and 8 of a head are rotated in pairs
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: rope_scaling.attention_factor: it is not there, nor what it is computed of
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: rope_scaling.attention_factor: it is "x", which is no number above 0
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: rope_scaling.attention_factor: it is 0.0, which is no number above 0
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: rope_scaling.attention_factor: it is not there, nor what it is computed of
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: rope_scaling.factor: it is not there
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: rope_scaling.attention_factor: it is "x", which is no number above 0
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: partial_rotary_factor: it is 0.5, and llama.cpp rotates all of a head in the architecture llama
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
    "#]]
    .assert_eq(&refused(cases.iter().map(|config| (&**config, embedding()))));
}

/// The configuration of a Gemma 3 as transformers 5 writes it.
#[test]
fn each_kind_of_layers_has_its_own_frequencies() {
    let of = |sliding: &str| {
        format!(
            r#"{{"model_type": "gemma3_text", "num_hidden_layers": 6, "head_dim": 256, "query_pre_attn_scalar": 256, "rope_parameters": {{"full_attention": {{"rope_type": "linear", "factor": 8.0, "rope_theta": 2000000.0}}, "sliding_attention": {sliding}}}}}"#
        )
    };
    let made = written(&folder(&of(r#"{"rope_type": "default", "rope_theta": 20000.0}"#)), &embedding(), None);
    let made = made.expect("writes");
    let keys = ["freq_base", "freq_base_swa", "scaling.factor"].map(|key| format!("gemma3.rope.{key}"));
    let values = keys.map(|key| made.metadata(&key).expect("is there"));
    assert_eq!(values, [2e6, 2e4, 8.0].map(GgufValue::Float));
    let cases = [
        of(r#"{"rope_type": "linear", "factor": 2.0, "rope_theta": 20000.0}"#),
        of(r#"{"rope_type": "default", "rope_theta": "x"}"#),
        of(r#"{"rope_type": "default", "partial_rotary_factor": 0.5}"#),
        of("1"),
        llama(
            r#""rope_parameters": {"full_attention": {"rope_theta": 1e4}, "sliding_attention": {"rope_theta": 1e5}}"#,
        ),
    ];
    expect![[r#"
        FOLDER/config.json: sliding_attention: it is {"rope_type": "linear", "factor": 2.0, "rope_theta": 20000.0}, and llama.cpp has plain positions there
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: rope_theta: it is "x", which gemma3.rope.freq_base_swa cannot be
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: sliding_attention: it is {"rope_type": "default", "partial_rotary_factor": 0.5}, and llama.cpp has plain positions there
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: sliding_attention: it is 1, and llama.cpp has plain positions there
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: sliding_attention: it differs from full_attention, and llama.cpp has one kind of positions in the architecture llama
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
    "#]]
    .assert_eq(&refused(cases.iter().map(|config| (&**config, embedding()))));
}

/// A reader beside these: nothing of a file is left out that changes what a model computes.
#[test]
fn what_scales_heads_is_not_left_out_of_a_configuration() {
    let of = |factor: &str| {
        llama(&format!(
            r#""rope_scaling": {{"rope_type": "longrope", "long_factor": [1.0, 1.0, 1.0, 2.0], "short_factor": [1.0, 1.0, 1.0, 2.0], "attention_factor": {factor}}}"#
        ))
    };
    let made = written(&folder(&of("1.5")), &embedding(), None).expect("writes");
    let scaling = made.configuration().expect("reads").get("rope_scaling").cloned().expect("is there");
    assert_eq!(scaling.get("attention_factor"), Some(&Json::Float(1.5)));
}

/// llama.cpp computes what `YaRN` scales queries and keys by, and multiplies it by a key; it reads no other.
#[test]
fn the_scale_of_yarn_is_a_multiple_of_its_usual_one() {
    let of = |kind: &str, more: &str| {
        let config = llama(&format!(r#""rope_scaling": {{"rope_type": "{kind}", "factor": 4.0{more}}}"#));
        let made = written(&folder(&config), &embedding(), None).expect("writes");
        assert!(made.metadata("llama.rope.scaling.yarn_attn_factor").is_err());
        let scaling = made.configuration().expect("reads").get("rope_scaling").cloned().expect("is there");
        let key = made.metadata("llama.rope.scaling.attn_factor").ok();
        (key, scaling.get("attention_factor").cloned())
    };
    let usual = 0.1 * 4f64.ln() + 1.0;
    let float = |number: f64| Some(GgufValue::Float(f64::from(number as f32)));
    let (key, said) = of("yarn", r#", "attention_factor": 1.4"#);
    assert_eq!(key, float(f64::from(1.4f32) / usual));
    // The file has an f32 of the quotient.
    let said = said.and_then(|said| said.number()).expect("is there");
    assert!((said - 1.4).abs() < 1.4 * f64::from(f32::EPSILON), "{said}");
    for (kind, more) in [
        ("yarn", String::new()),
        ("yarn", format!(r#", "attention_factor": {usual}"#)),
        ("linear", r#", "attention_factor": 1.4"#.to_owned()),
    ] {
        assert_eq!(of(kind, &more), (None, None), "{kind}{more}");
    }
}

/// As the file of Rnj-1 has it, whose configuration has a key that transformers does not read either.
#[test]
fn the_scale_of_yarn_that_llama_cpp_does_not_read_is_left_out() {
    let folder = Scratch::new();
    let real = |number: f32| number.to_le_bytes();
    let file = Maker::default()
        .value("general.architecture", 8, &text("llama"))
        .value("llama.rope.scaling.type", 8, &text("yarn"))
        .value("llama.rope.scaling.factor", 6, &real(4.0))
        .value("llama.rope.scaling.yarn_attn_factor", 6, &real(1.0))
        .tensor("token_embd.weight", &[32, 1], 0, 0)
        .elements(128);
    let read = Gguf::open(folder.file("made.gguf", file.bytes())).and_then(|file| file.configuration());
    let scaling = read.expect("reads").get("rope_scaling").cloned().expect("is there");
    assert_eq!((scaling.get("factor"), scaling.get("attention_factor")), (Some(&Json::Float(4.0)), None));
}

/// The configuration of Rnj-1, whose layers see everything.
#[test]
fn keys_of_yarn_that_change_nothing_are_passed_over() {
    let of = |factor: &str| {
        format!(
            r#"{{"model_type": "gemma3_text", "num_hidden_layers": 2, "head_dim": 256, "sliding_window": 32768, "layer_types": ["full_attention", "full_attention"], "rope_scaling": {{"rope_type": "yarn", "factor": 4.0, "attn_factor": {factor}, "extrapolation_factor": 1.0, "original_max_position_embeddings": 8192}}}}"#
        )
    };
    let made = written(&folder(&of("1.0")), &embedding(), None).expect("writes");
    assert_eq!(made.metadata("gemma3.rope.scaling.factor").ok(), Some(GgufValue::Float(4.0)));
    for key in ["rope.scaling.attn_factor", "attention.sliding_window", "attention.sliding_window_pattern"] {
        assert!(made.metadata(&format!("gemma3.{key}")).is_err(), "{key}");
    }
    let config = made.configuration().expect("reads");
    assert_eq!(config.get("sliding_window_pattern"), Some(&Json::Integer(1)));
    let other = of("0.5");
    expect![[r#"
        FOLDER/config.json: rope_scaling.attn_factor: it is 0.5, and llama.cpp has no key for it
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
    "#]]
    .assert_eq(&refused([(&*other, embedding())]));
}

/// A file of llama.cpp with factors of four frequencies.
fn with_factors() -> Maker {
    let count = |count: u32| count.to_le_bytes();
    Maker::default()
        .value("general.architecture", 8, &text("llama"))
        .value("llama.embedding_length", 4, &count(32))
        .value("llama.attention.head_count", 4, &count(4))
        .tensor("token_embd.weight", &[32, 1], 0, 0)
        .tensor("rope_freqs.weight", &[4], 0, 128)
        .elements(144)
}

#[test]
fn factors_of_frequencies_are_read_alone() {
    let folder = Scratch::new();
    let real = |number: f32| number.to_le_bytes();
    let scaling = |made: Maker| {
        let read = Gguf::open(folder.file("made.gguf", made.bytes())).and_then(|file| file.configuration());
        read.map(|json| json.get("rope_scaling").cloned()).map_err(|error| folder.message(&error))
    };
    let kind = |scaling: Option<Json>| scaling.and_then(|own| Some(own.get("rope_type")?.text()?.to_owned()));
    for alone in [
        with_factors(),
        with_factors().value("llama.rope.scaling.factor", 6, &real(1.0)),
        with_factors().value("llama.rope.scaling.type", 8, &text("none")).value(
            "llama.rope.scaling.factor",
            6,
            &real(4.0),
        ),
    ] {
        assert_eq!(kind(scaling(alone).expect("reads")).as_deref(), Some("longrope"));
    }
    // An empty list is one; whose heads it fits is left to who reads the configuration.
    let mut empty = with_factors();
    empty.tensors.truncate(1);
    let empty = scaling(empty.tensor("rope_freqs.weight", &[0], 0, 128)).expect("reads");
    assert_eq!(empty.and_then(|own| own.get("long_factor").cloned()), Some(Json::List(Vec::new())));
    let mut none = with_factors();
    none.tensors.truncate(1);
    let beside = [
        with_factors().value("llama.rope.scaling.factor", 6, &real(4.0)),
        with_factors().value("llama.rope.scale_linear", 6, &real(4.0)),
        with_factors().value("llama.rope.scaling.type", 8, &text("yarn")).value(
            "llama.rope.scaling.factor",
            6,
            &real(4.0),
        ),
        none.clone().value("llama.rope.scaling.attn_factor", 6, &real(1.5)),
        none.value("llama.rope.scaling.attn_factor", 8, &text("x")),
    ];
    let said = beside.map(|made| scaling(made).expect_err("is refused") + "\n").concat();
    expect![[r#"
        FOLDER/made.gguf: rope_freqs.weight: it stands beside a scaling of all positions, and no library has both
        help: convert the model again
        FOLDER/made.gguf: rope_freqs.weight: it stands beside a scaling of all positions, and no library has both
        help: convert the model again
        FOLDER/made.gguf: rope_freqs.weight: it stands beside a scaling of all positions, and no library has both
        help: convert the model again
        FOLDER/made.gguf: llama.rope.scaling.attn_factor: it scales heads without rope_freqs.weight or yarn, and no library has it so
        help: convert the model again
        FOLDER/made.gguf: llama.rope.scaling.attn_factor: it scales heads without rope_freqs.weight or yarn, and no library has it so
        help: convert the model again
    "#]].assert_eq(&said);
}
