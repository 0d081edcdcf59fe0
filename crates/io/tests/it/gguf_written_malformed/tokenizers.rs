//! Tokenizers that a GGUF file cannot hold as they are.

use expect_test::expect;
use tacit_io::{Gguf, GgufValue};

use super::{LLAMA, embedding, folder, llama, refused, written};

/// The same of tokenizers.
fn tokenizers_refused<'t>(tokenizers: impl IntoIterator<Item = &'t str>) -> String {
    let mut said = String::new();
    for tokenizer in tokenizers {
        let folder = folder(LLAMA);
        folder.file("tokenizer.json", tokenizer);
        let error = written(&folder, &embedding(), None).expect_err(tokenizer);
        said += &(folder.message(&error) + "\n");
    }
    said
}

fn tokens(file: &Gguf) -> Vec<String> {
    let GgufValue::List(tokens) = file.metadata("tokenizer.ggml.tokens").expect("is there") else { panic!("no list") };
    let text = |token| if let GgufValue::Text(token) = token { token } else { panic!("no text") };
    tokens.into_iter().map(text).collect()
}

pub(super) const BYTE_LEVEL: &str = r#""pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}"#;

#[test]
fn added_tokens_are_checked() {
    let of = |vocab: &str, added: &str| {
        format!(
            r#"{{"model": {{"type": "BPE", "vocab": {vocab}, "merges": []}}, "added_tokens": {added}, {BYTE_LEVEL}}}"#
        )
    };
    let cases = [
        of(r#"{"a": 0}"#, r#"[{"id": 4000000000}]"#),
        of(r#"{"a": 0}"#, r#"[{"id": 1, "content": 2}]"#),
        of(r#"{"a": 0}"#, r#"[{"content": "b"}]"#),
        of(r#"{"a": 0}"#, r#"[{"id": 8, "content": "b"}]"#),
        of(r#"{"a": 0}"#, r#"[{"id": -1, "content": "b"}]"#),
        of(r#"{"a": 0}"#, r#"[{"id": 1, "content": "a"}]"#),
        of(r#"{"a": 0, "b": 0}"#, "[]"),
    ];
    expect![[r#"
        FOLDER/tokenizer.json: added_tokens: {"id": 4000000000} has no content, or no id
        help: llama.cpp has no such tokenizer: write the model with `--as mlx-lm` or `--as tacit`
        FOLDER/tokenizer.json: added_tokens: {"id": 1, "content": 2} has no content, or no id
        help: llama.cpp has no such tokenizer: write the model with `--as mlx-lm` or `--as tacit`
        FOLDER/tokenizer.json: added_tokens: {"content": "b"} has no content, or no id
        help: llama.cpp has no such tokenizer: write the model with `--as mlx-lm` or `--as tacit`
        FOLDER/tokenizer.json: model.vocab: "b" is token 8, and the embedding has 8 rows
        help: llama.cpp has no such tokenizer: write the model with `--as mlx-lm` or `--as tacit`
        FOLDER/tokenizer.json: model.vocab: "b" is token -1, and the embedding has 8 rows
        help: llama.cpp has no such tokenizer: write the model with `--as mlx-lm` or `--as tacit`
        FOLDER/tokenizer.json: model.vocab: "a" is token 0 and 1
        help: llama.cpp has no such tokenizer: write the model with `--as mlx-lm` or `--as tacit`
        FOLDER/tokenizer.json: model.vocab: token 0 is "a" and "b"
        help: llama.cpp has no such tokenizer: write the model with `--as mlx-lm` or `--as tacit`
    "#]]
    .assert_eq(&tokenizers_refused(cases.iter().map(String::as_str)));
    let folder = folder(LLAMA);
    folder.file("tokenizer.json", of(r#"{"a": 0}"#, r#"[{"id": 0, "content": "b"}]"#));
    let made = written(&folder, &embedding(), None).expect("writes");
    assert_eq!(tokens(&made)[..2], ["b", "[PAD1]"]);
}

/// Steps that llama.cpp does not take give other tokens there.
#[test]
fn steps_that_change_tokens_are_refused() {
    let of = |bytes: bool, steps: &str| {
        format!(
            r#"{{"model": {{"type": "BPE", "vocab": {{"a": 0}}, "merges": [], "byte_fallback": {bytes}}}, {steps}}}"#
        )
    };
    let split = |pattern: &str, behavior: &str| {
        format!(
            r#""pre_tokenizer": {{"type": "Sequence", "pretokenizers": [
                {{"type": "Split", "pattern": {{"Regex": "{pattern}"}}, "behavior": "{behavior}", "invert": false}},
                {{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}}]}}"#
        )
    };
    let cases = [
        of(false, &format!(r#""normalizer": {{"type": "Lowercase"}}, {BYTE_LEVEL}"#)),
        of(false, &format!(r#""normalizer": {{"type": "Prepend", "prepend": "▁"}}, {BYTE_LEVEL}"#)),
        of(true, r#""normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}"#),
        of(true, r#""normalizer": {"type": "Replace", "pattern": {"String": "-"}, "content": "▁"}"#),
        of(true, r#""pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated"}"#),
        of(false, &split("a", "Removed")),
    ];
    expect![[r#"
        FOLDER/tokenizer.json: normalizer: it has {"type": "Lowercase"}
        help: llama.cpp has no such tokenizer: write the model with `--as mlx-lm` or `--as tacit`
        FOLDER/tokenizer.json: normalizer: it has {"type": "Prepend", "prepend": "\u2581"}
        help: llama.cpp has no such tokenizer: write the model with `--as mlx-lm` or `--as tacit`
        FOLDER/tokenizer.json: normalizer: it has {"type": "NFC"}
        help: llama.cpp has no such tokenizer: write the model with `--as mlx-lm` or `--as tacit`
        FOLDER/tokenizer.json: normalizer: it has {"type": "Replace", "pattern": {"String": "-"}, "content": "\u2581"}
        help: llama.cpp has no such tokenizer: write the model with `--as mlx-lm` or `--as tacit`
        FOLDER/tokenizer.json: pre_tokenizer: it has {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated"}
        help: llama.cpp has no such tokenizer: write the model with `--as mlx-lm` or `--as tacit`
        FOLDER/tokenizer.json: pre_tokenizer: it is {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Removed", "invert": false}, {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]}, and llama.cpp's default, llama-bpe, llama3, llama-v3, falcon3, dbrx, smaug-bpe, qwen2, deepseek-r1-qwen, stablelm2, megrez, gpt-2, phi-2, mpt, olmo, smollm, starcoder, refact, command-r, tekken are known
        help: llama.cpp has no such tokenizer: write the model with `--as mlx-lm` or `--as tacit`
    "#]]
    .assert_eq(&tokenizers_refused(cases.iter().map(String::as_str)));
    let folder = folder(LLAMA);
    folder.file(
        "tokenizer.json",
        of(
            true,
            r#""normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
                "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"}"#,
        ),
    );
    written(&folder, &embedding(), None).expect("writes");
}

/// The token that begins a text may be named in the configuration of the model alone.
#[test]
fn a_token_that_begins_texts_is_put_there() {
    let folder = folder(&llama(r#""bos_token_id": 1"#));
    folder.file(
        "tokenizer.json",
        format!(
            r#"{{"model": {{"type": "BPE", "vocab": {{"a": 0, "<s>": 1}}, "merges": []}}, {BYTE_LEVEL}, "post_processor":
                {{"type": "TemplateProcessing", "single": [{{"SpecialToken": {{"id": "<s>", "type_id": 0}}}},
                    {{"Sequence": {{"id": "A", "type_id": 0}}}}]}}}}"#
        ),
    );
    let made = written(&folder, &embedding(), None).expect("writes");
    assert_eq!(made.metadata("tokenizer.ggml.add_bos_token").expect("is there"), GgufValue::Bool(true));
}

#[test]
fn of_several_templates_the_default_is_that_of_the_file() {
    let folder = folder(LLAMA);
    let tokenizer = format!(r#"{{"model": {{"type": "BPE", "vocab": {{"a": 0}}, "merges": []}}, {BYTE_LEVEL}}}"#);
    folder.file("tokenizer.json", tokenizer);
    let named = r#"[{"name": "tool_use", "template": "b"}, {"name": "default", "template": "a"}]"#;
    folder.file("tokenizer_config.json", format!(r#"{{"chat_template": {named}}}"#));
    let made = written(&folder, &embedding(), None).expect("writes");
    assert_eq!(made.metadata("tokenizer.chat_template").expect("is there"), GgufValue::Text("a".to_owned()));
}

#[test]
fn filler_is_no_token_of_the_model() {
    let folder = folder(LLAMA);
    let tokenizer = format!(
        r#"{{"model": {{"type": "BPE", "vocab": {{"a": 0, "[PAD3]": 1, "[PAD3_]": 2}}, "merges": []}}, {BYTE_LEVEL}}}"#
    );
    folder.file("tokenizer.json", tokenizer);
    let made = written(&folder, &embedding(), None).expect("writes");
    assert_eq!(tokens(&made), ["a", "[PAD3]", "[PAD3_]", "[PAD3__]", "[PAD4]", "[PAD5]", "[PAD6]", "[PAD7]"]);
    made.tokenizer().expect("no token is there twice");
}

#[test]
fn tokens_that_begin_and_end_are_of_the_vocabulary() {
    let cases = [
        llama(r#""bos_token_id": 8"#),
        llama(r#""eos_token_id": [1, 9]"#),
        llama(r#""eos_token_id": -1"#),
        llama(r#""bos_token_id": "a""#),
    ];
    expect![[r#"
        FOLDER/config.json: bos_token_id: it has 8, and the embedding has 8 rows
        help: fetch the configuration again, with the tensors
        FOLDER/config.json: eos_token_id: it has 9, and the embedding has 8 rows
        help: fetch the configuration again, with the tensors
        FOLDER/config.json: eos_token_id: it is -1, which is no token
        help: fetch the configuration again, with the tensors
        FOLDER/config.json: bos_token_id: it is "a", which is no token
        help: fetch the configuration again, with the tensors
    "#]]
    .assert_eq(&refused(cases.iter().map(|config| (&**config, embedding()))));
    let config = llama(r#""bos_token_id": null, "eos_token_id": [7, 1]"#);
    let made = written(&folder(&config), &embedding(), None).expect("writes");
    assert_eq!(made.metadata("tokenizer.ggml.eos_token_id").ok(), Some(GgufValue::Unsigned(7)));
}

#[test]
fn merges_are_pairs_of_tokens() {
    let of = |vocab: &str, merges: &str| {
        format!(r#"{{"model": {{"type": "BPE", "vocab": {vocab}, "merges": {merges}}}, {BYTE_LEVEL}}}"#)
    };
    let cases = [
        of(r#"{"a": 0, "b": 1}"#, r#"["a b"]"#),
        of(r#"{"a": 0, " ": 1, "a ": 2}"#, r#"[["a", " "]]"#),
        of(r#"{"a": 0, "": 1}"#, r#"[["a", ""]]"#),
        of(r#"{"a": 0}"#, r#"[["a"]]"#),
    ];
    expect![[r#"
        FOLDER/tokenizer.json: model.merges: it has "a" and "b", and "ab" is no token
        help: llama.cpp has no such tokenizer: write the model with `--as mlx-lm` or `--as tacit`
        FOLDER/tokenizer.json: model.merges: "a" and " " are no pair of letters
        help: llama.cpp has no such tokenizer: write the model with `--as mlx-lm` or `--as tacit`
        FOLDER/tokenizer.json: model.merges: "a" and "" are no pair of letters
        help: llama.cpp has no such tokenizer: write the model with `--as mlx-lm` or `--as tacit`
        FOLDER/tokenizer.json: model.merges: it is no list of pairs
        help: llama.cpp has no such tokenizer: write the model with `--as mlx-lm` or `--as tacit`
    "#]]
    .assert_eq(&tokenizers_refused(cases.iter().map(String::as_str)));
}
