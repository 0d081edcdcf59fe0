//! Models that cannot be written as a GGUF file as they are: an error that names the file, the key and the reason, or the same
//! model, and never a panic or another model.

mod tokenizers;

use std::fs;

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops};
use tacit_core::{Result, Value};
use tacit_io::{Gguf, GgufType, GgufValue, ModelFolder};
use tacit_nn::Parameters;

use self::tokenizers::BYTE_LEVEL;
use crate::scratch::Scratch;

const LLAMA: &str = r#"{"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}"#;

/// A configuration of LLAMA with other keys.
pub(crate) fn llama(keys: &str) -> String {
    LLAMA.replace('}', &format!(", {keys}}}"))
}

pub(crate) fn numbers(shape: &[i32]) -> Array {
    let size = shape.iter().product();
    ops::arange::<_, f32>(0, size, None).and_then(|x| x.sin()?.reshape(shape)).expect("numbers")
}

pub(crate) fn parameters<const N: usize>(given: [(&str, Array); N]) -> Parameters {
    given.map(|(path, array)| (path.to_owned(), Value::from(array))).into()
}

pub(crate) fn embedding() -> Parameters {
    parameters([("model.embed_tokens.weight", numbers(&[8, 32]))])
}

/// What is written of a folder with these files.
pub(crate) fn written(folder: &Scratch, given: &Parameters, others: Option<&str>) -> Result<Gguf> {
    let to = folder.join("made.gguf");
    let model = ModelFolder::open(&**folder)?;
    model.write_gguf(&to, given, others.and_then(GgufType::named))?;
    Gguf::open(to)
}

/// A folder with this configuration.
pub(crate) fn folder(config: &str) -> Scratch {
    let scratch = Scratch::new();
    scratch.file("config.json", config);
    scratch
}

/// The messages of configurations, each with its parameters, that are refused; and nothing is written of them.
pub(crate) fn refused<'c>(cases: impl IntoIterator<Item = (&'c str, Parameters)>) -> String {
    let mut said = String::new();
    for (config, given) in cases {
        let folder = folder(config);
        let error = written(&folder, &given, None).expect_err(config);
        said += &(folder.message(&error) + "\n");
        assert_eq!(folder.names(), ["config.json"]);
    }
    said
}

/// Biases of queries and keys have the order of their rows, and come back in their own.
#[test]
fn biases_of_heads_come_back_in_their_order() {
    let folder = folder(&llama(r#""attention_bias": true, "num_key_value_heads": 2"#));
    let given = ["q", "k", "v"].map(|part| {
        let rows = if part == "q" { 32 } else { 16 };
        let path = format!("model.layers.0.self_attn.{part}_proj.bias");
        (path, ops::arange::<_, f32>(0, rows, None).expect("numbers"))
    });
    let mut parameters = embedding();
    parameters.extend(given.iter().map(|(path, array)| (path.clone(), Value::from(array))));
    let made = written(&folder, &parameters, None).expect("writes").hugging_face().expect("reads");
    for (path, array) in &given {
        let found = made[path].dense().expect("is dense");
        assert_eq!(found.as_slice::<f32>(), array.as_slice::<f32>(), "{path}");
    }
}

#[test]
fn parameters_without_rows_are_refused() {
    let scalar = |path| parameters([(path, Array::from_f32(1.0))]);
    let net = r#"{"model_type": "qwen3_next", "linear_num_key_heads": 2, "linear_key_head_dim": 4}"#;
    expect![[r#"
        FOLDER/made.gguf: model.layers.0.self_attn.q_proj.weight: it is f32[], which has no rows of heads
        help: fetch the tensors again: this is no matrix and no bias
        FOLDER/made.gguf: model.layers.0.self_attn.k_proj.weight: it is f32[], which has no rows of heads
        help: fetch the tensors again: this is no matrix and no bias
        FOLDER/made.gguf: model.layers.0.linear_attn.in_proj_qkvz.weight: it is f32[], which has no rows of heads
        help: fetch the tensors again: this is no matrix and no bias
        FOLDER/made.gguf: blk.0.ffn_up.weight: it is f32[1,1,1,2,32], and a tensor of ggml has at most 4 extents
        help: reshape it, or leave it out
    "#]]
    .assert_eq(&refused([
        (LLAMA, scalar("model.layers.0.self_attn.q_proj.weight")),
        (LLAMA, scalar("model.layers.0.self_attn.k_proj.weight")),
        (net, scalar("model.layers.0.linear_attn.in_proj_qkvz.weight")),
        (LLAMA, parameters([("model.layers.0.mlp.up_proj.weight", numbers(&[1, 1, 1, 2, 32]))])),
    ]));
    let none = parameters([("model.layers.0.self_attn.q_proj.weight", numbers(&[0, 32]))]);
    for kind in [None, Some("q8_0")] {
        let made = written(&folder(LLAMA), &none, kind).expect("writes");
        assert_eq!(made.aval("blk.0.attn_q.weight").expect("is there").shape, [0, 32]);
        made.get("blk.0.attn_q.weight").expect("reads");
    }
}

#[test]
fn sizes_that_no_file_holds_are_refused() {
    let net = r#"{"model_type": "qwen3_next", "linear_value_head_dim": 70000, "linear_num_value_heads": 70000}"#;
    let wide = llama(
        r#""head_dim": 4000000000, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}"#,
    );
    let cases = [
        net.to_owned(),
        wide,
        llama(r#""partial_rotary_factor": 3.0"#),
        llama(r#""partial_rotary_factor": -1"#),
        llama(r#""rope_theta": 1e300"#),
        llama(r#""rope_parameters": {"rope_type": "default", "rope_theta": 1e300}"#),
    ];
    expect![[r#"
        FOLDER/config.json: linear_num_value_heads: 70000 heads of 70000 numbers are no layer
        help: fetch the configuration again, with the tensors
        FOLDER/config.json: head_dim: it is 4000000000, and no head is wider than 65536
        help: fetch the configuration again, with the tensors
        FOLDER/config.json: partial_rotary_factor: it is 3.0, which is no share of the 8 numbers of a head
        help: fetch the configuration again, with the tensors
        FOLDER/config.json: partial_rotary_factor: it is -1, which is no share of the 8 numbers of a head
        help: fetch the configuration again, with the tensors
        FOLDER/config.json: rope_theta: it is 1e+300, which llama.rope.freq_base cannot be
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: rope_theta: it is 1e+300, which llama.rope.freq_base cannot be
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
    "#]]
    .assert_eq(&refused(cases.iter().map(|config| (&**config, embedding()))));
}

/// Layers of which nothing is searched for that is longer than what was read.
#[test]
fn types_of_layers_are_as_many_as_layers() {
    let gemma = |keys: &str| {
        format!(r#"{{"model_type": "gemma3_text", "head_dim": 256, "query_pre_attn_scalar": 256, {keys}}}"#)
    };
    let cases = [
        gemma(r#""num_hidden_layers": 4000000000, "layer_types": ["full_attention", "sliding_attention"]"#),
        gemma(r#""num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "full_attention"]"#),
        gemma(r#""num_hidden_layers": 2, "sliding_window_pattern": "x""#),
    ];
    expect![[r#"
        FOLDER/config.json: layer_types: full_attention is not in the last of every so many layers, and there alone
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: layer_types: full_attention is not in the last of every so many layers, and there alone
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: sliding_window_pattern: it is "x", and should be a whole number
        help: fetch the configuration again, with the tensors
    "#]]
    .assert_eq(&refused(cases.iter().map(|config| (&**config, embedding()))));
    // All but the last of three, and all.
    let full = |last: &str| {
        gemma(&format!(
            r#""num_hidden_layers": 3, "layer_types": ["sliding_attention", "sliding_attention", "{last}"]"#
        ))
    };
    for (last, period) in [("full_attention", 3), ("sliding_attention", 6)] {
        let made = written(&folder(&full(last)), &embedding(), None).expect("writes");
        let pattern = made.metadata("gemma3.attention.sliding_window_pattern").ok();
        assert_eq!(pattern, (period != 6).then_some(GgufValue::Unsigned(period)), "{last}");
    }
}

#[test]
fn numbers_beyond_those_of_a_type_are_refused() {
    let config = r#"{"model_type": "qwen3"}"#;
    let path = "model.layers.0.mlp.up_proj.weight";
    let with = |number: f32| {
        let mut all = vec![0.5_f32; 256];
        all[77] = number;
        parameters([(path, Array::from_slice(&all, &[8, 32]))])
    };
    let mut said = String::new();
    let beyond = [
        ("f16", 65520.0),
        ("f16", -1e30),
        ("bf16", f32::MAX),
        ("q8_0", 1e7),
        ("q4_0", -1e6),
        ("q4_1", 1e6),
        ("q5_0", 2e6),
        ("q5_1", -7e4),
        ("q8_0", f32::NAN),
        ("q4_0", f32::INFINITY),
        ("q4_1", f32::NAN),
    ];
    for (kind, number) in beyond {
        let folder = folder(config);
        let error = written(&folder, &with(number), Some(kind)).expect_err(kind);
        said += &(folder.message(&error) + "\n");
        assert_eq!(folder.names(), ["config.json"]);
    }
    expect![[r#"
        FOLDER/made.gguf: blk.0.ffn_up.weight: it has numbers that F16 does not hold
        help: write it with `--format bf16` or `f32`, or look for weights that are not numbers
        FOLDER/made.gguf: blk.0.ffn_up.weight: it has numbers that F16 does not hold
        help: write it with `--format bf16` or `f32`, or look for weights that are not numbers
        FOLDER/made.gguf: blk.0.ffn_up.weight: it has numbers that BF16 does not hold
        help: look for weights that are too large or are not numbers
        FOLDER/made.gguf: blk.0.ffn_up.weight: it has numbers, or scales of them, that Q8_0 does not hold
        help: write it with `--format bf16` or `f32`, or look for weights that are not numbers
        FOLDER/made.gguf: blk.0.ffn_up.weight: it has numbers, or scales of them, that Q4_0 does not hold
        help: write it with `--format bf16` or `f32`, or look for weights that are not numbers
        FOLDER/made.gguf: blk.0.ffn_up.weight: it has numbers, or scales of them, that Q4_1 does not hold
        help: write it with `--format bf16` or `f32`, or look for weights that are not numbers
        FOLDER/made.gguf: blk.0.ffn_up.weight: it has numbers, or scales of them, that Q5_0 does not hold
        help: write it with `--format bf16` or `f32`, or look for weights that are not numbers
        FOLDER/made.gguf: blk.0.ffn_up.weight: it has numbers, or scales of them, that Q5_1 does not hold
        help: write it with `--format bf16` or `f32`, or look for weights that are not numbers
        FOLDER/made.gguf: blk.0.ffn_up.weight: it has numbers, or scales of them, that Q8_0 does not hold
        help: write it with `--format bf16` or `f32`, or look for weights that are not numbers
        FOLDER/made.gguf: blk.0.ffn_up.weight: it has numbers, or scales of them, that Q4_0 does not hold
        help: write it with `--format bf16` or `f32`, or look for weights that are not numbers
        FOLDER/made.gguf: blk.0.ffn_up.weight: it has numbers, or scales of them, that Q4_1 does not hold
        help: write it with `--format bf16` or `f32`, or look for weights that are not numbers
    "#]]
    .assert_eq(&said);
    // What each type holds, and what was infinite or no number before.
    for (kind, number) in [
        ("f16", 65504.0),
        ("f16", f32::INFINITY),
        ("bf16", 1e38),
        ("bf16", f32::NEG_INFINITY),
        ("f32", f32::NAN),
        ("q8_0", 8e6),
        ("q4_0", 5e5),
        ("q5_1", -6e4),
    ] {
        let made = written(&folder(config), &with(number), Some(kind)).expect(kind);
        let read = made.get("blk.0.ffn_up.weight").and_then(|value| value.dense()).expect("reads");
        let read = read.as_dtype(Dtype::Float32).expect("casts");
        let found = read.as_slice::<f32>()[77];
        let near = if number.is_finite() { (found - number).abs() <= 0.13 * number.abs() } else { true };
        assert!(near && found.is_nan() == number.is_nan() && found.is_infinite() == number.is_infinite(), "{kind}");
    }
    let folder = folder(config);
    let beyond = Array::from_slice(&[1e30_f32; 32], &[1, 32]).as_dtype(Dtype::Float64).and_then(|x| x.square());
    let error = written(&folder, &parameters([(path, beyond.expect("squares"))]), Some("f32"));
    expect![[r#"
        FOLDER/made.gguf: blk.0.ffn_up.weight: it has numbers that F32 does not hold
        help: look for weights that are too large or are not numbers"#]]
    .assert_eq(&folder.message(&error.expect_err("is refused")));
}

/// Other numbers are no weights, such as codes whose scales nothing names.
#[test]
fn only_floats_are_quantized() {
    let mut said = String::new();
    for dtype in [Dtype::Bool, Dtype::Uint32, Dtype::Complex64] {
        let weight = numbers(&[8, 32]).as_dtype(dtype).expect("casts");
        let folder = folder(r#"{"model_type": "qwen3"}"#);
        let given = parameters([("model.layers.0.mlp.up_proj.weight", weight)]);
        said += &(folder.message(&written(&folder, &given, Some("q8_0")).expect_err("is refused")) + "\n");
        assert_eq!(folder.names(), ["config.json"]);
    }
    expect![[r#"
        FOLDER/made.gguf: blk.0.ffn_up.weight: no type of GGUF has the numbers of bool[8,32]
        help: leave the parameter out, if the model does not need it
        FOLDER/made.gguf: blk.0.ffn_up.weight: no type of GGUF has the numbers of u32[8,32]
        help: leave the parameter out, if the model does not need it
        FOLDER/made.gguf: blk.0.ffn_up.weight: no type of GGUF has the numbers of c64[8,32]
        help: leave the parameter out, if the model does not need it
    "#]]
    .assert_eq(&said);
}

#[test]
fn a_head_beside_an_embedding_that_is_one_is_not_lost() {
    let tied = llama(r#""tie_word_embeddings": true"#);
    let with = |head: Array| {
        let mut all = embedding();
        all.insert("lm_head.weight".to_owned(), head.into());
        all
    };
    let one = numbers(&[8, 32]);
    let made = written(&folder(&tied), &with(one.clone()), None).expect("writes");
    assert_eq!(made.names().collect::<Vec<_>>(), ["token_embd.weight"]);
    let other = one.add(Array::from_f32(1e-3)).expect("adds");
    expect![[r#"
        FOLDER/made.gguf: lm_head.weight: it is not model.embed_tokens.weight, which the configuration says it is
        help: leave the head out, or write `"tie_word_embeddings": false` into config.json if it is its own
        FOLDER/made.gguf: lm_head.weight: it is not model.embed_tokens.weight, which the configuration says it is
        help: leave the head out, or write `"tie_word_embeddings": false` into config.json if it is its own
        FOLDER/made.gguf: lm_head.weight: it is not model.embed_tokens.weight, which the configuration says it is
        help: leave the head out, or write `"tie_word_embeddings": false` into config.json if it is its own
    "#]]
    .assert_eq(&refused([
        (&*tied, with(other.clone())),
        (&*tied, with(numbers(&[4, 32]))),
        (r#"{"model_type": "gemma"}"#, with(other.clone())),
    ]));
    let made = written(&folder(LLAMA), &with(other), None).expect("writes");
    assert!(made.names().any(|name| name == "output.weight"));
    let made = written(&folder(&tied), &parameters([("lm_head.weight", one)]), None).expect("writes");
    assert_eq!(made.names().collect::<Vec<_>>(), ["token_embd.weight"]);
}

/// The tensors of a `LoRA` belong to no model that llama.cpp has: a converter of its own makes their files.
#[test]
fn adapters_are_refused_by_name() {
    let path = "model.layers.0.self_attn.q_proj.lora_A.weight";
    expect![[r#"
        FOLDER/made.gguf: model.layers.0.self_attn.q_proj.lora_A.weight: llama.cpp's architecture llama has no such tensor
        help: leave the parameter out, if the model does not need it
    "#]]
    .assert_eq(&refused([(LLAMA, parameters([(path, numbers(&[4, 32]))]))]));
}

#[test]
fn other_files_of_a_folder_may_be_damaged() {
    let mut said = String::new();
    for (name, content) in
        [("tokenizer.json", "{"), ("tokenizer.json", "[]"), ("tokenizer_config.json", "x"), ("chat_template.json", "x")]
    {
        let folder = folder(LLAMA);
        if name != "tokenizer.json" {
            folder.file("tokenizer.json", format!(r#"{{"model": {{"vocab": {{}}, "merges": []}}, {BYTE_LEVEL}}}"#));
        }
        folder.file(name, content);
        let error = written(&folder, &embedding(), None).expect_err(name);
        said += &(folder.message(&error) + "\n");
        assert!(fs::metadata(folder.join("made.gguf")).is_err());
    }
    expect![[r#"
        FOLDER/tokenizer.json: EOF while parsing an object at line 1 column 1
        help: fetch it again
        FOLDER/tokenizer.json: model: it is not there
        help: llama.cpp has no such tokenizer: write the model with `--as mlx-lm` or `--as tacit`
        FOLDER/tokenizer_config.json: expected value at line 1 column 1
        help: fetch it again
        FOLDER/chat_template.json: expected value at line 1 column 1
        help: fetch it again
    "#]]
    .assert_eq(&said);
}

/// Newer versions of transformers have another name for the number of experts.
#[test]
fn experts_are_counted_by_either_key() {
    for keys in [r#""num_experts": 4"#, r#""num_local_experts": 4"#, r#""num_experts": null, "num_local_experts": 4"#] {
        let folder = folder(&LLAMA.replace("llama", "qwen3_moe").replace('}', &format!(", {keys}}}")));
        let made = written(&folder, &embedding(), None).expect("writes");
        assert_eq!(made.metadata("qwen3moe.expert_count").expect("is there"), GgufValue::Unsigned(4), "{keys}");
    }
}
