//! What is told beside a text, and of tokenizers and drafts that do not fit the model.

use std::fs;
use std::process::Command;

use expect_test::expect;

use super::numbers::without_numbers;
use super::{model, printed, refused, tacit};

#[test]
fn why_a_text_ended_is_told_and_what_was_drafted() {
    let plain = ["--prompt", "Hello", "--max-tokens", "12"];
    let stop = format!("--stop={}", printed("generate", &plain).chars().next().expect("a text"));
    let said = [
        &["--prompt", "Hello", "--max-tokens", "12", &stop][..],
        &["--prompt", "Hello, Hello, Hello", "--max-tokens", "30", "--lookup", "--match-tokens", "1"],
        &["--prompt", "a", "--prompt", "b", "--max-tokens", "3"],
    ]
    .map(|options| {
        let output = tacit("generate", options).output().expect("starts");
        let said = String::from_utf8(output.stderr).expect("text");
        assert!(output.status.success(), "{said}");
        // Where no time goes by, there is no rate.
        without_numbers(&said).replace(", at N a second", "").replace(" at N a second", "")
    });
    expect![[r#"
        N tokens of prompt
        N tokens (the text ended)
        peak memory N MB, weights N MB
        N tokens of prompt
        N tokens (the limit of --max-tokens)
        N of N drafted tokens accepted
        peak memory N MB, weights N MB
        N tokens of N prompts
        text N: N tokens (the limit of --max-tokens)
        text N: N tokens (the limit of --max-tokens)
        N tokens in all
        peak memory N MB, weights N MB
    "#]]
    .assert_eq(&said.concat());
}

#[test]
fn a_draft_of_other_tokens_is_refused() {
    let other = model().with_file_name("gpt-2.gguf");
    let options = ["--prompt", "a", "--draft", other.to_str().expect("text")];
    expect![[r#"
        error: the tokenizer of the draft knows 526 tokens, and that of the model 884
        help: take a draft with the tokens of the model
    "#]]
    .assert_eq(&refused("generate", &options));
}

/// A tokenizer may know few words, or be that of another model.
#[test]
fn a_tokenizer_that_does_not_fit_is_refused() {
    let scratch = tempfile::tempdir().expect("makes a folder");
    let folder = scratch.path().join("model");
    let made = tacit("convert", &["--as", "hugging-face", "-o", folder.to_str().expect("text")]).output();
    let made = made.expect("starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    fs::write(scratch.path().join("a.jsonl"), "{\"text\": \"a\"}\n").expect("writes");
    fs::write(scratch.path().join("b.jsonl"), "{\"text\": \"b\"}\n").expect("writes");
    // A vocabulary of one word.
    let of_word = |token: u32| {
        let model = serde_json::json!({"type": "WordLevel", "vocab": {"a": token}, "unk_token": "<unk>"});
        serde_json::json!({"version": "1.0", "added_tokens": [], "model": model}).to_string()
    };
    let train = |data| ["train", "model", "--lora", "2", "--steps", "1", "--data", data, "-o", "adapter"];
    let generate = ["generate", "model", "--prompt", "b"];
    let cases = [
        ("{".to_owned(), &generate[..]),
        (of_word(0), &generate),
        (of_word(0), &train("b.jsonl")),
        (of_word(100_000), &train("a.jsonl")),
    ];
    let said = cases.map(|(tokenizer, arguments)| {
        fs::write(folder.join("tokenizer.json"), tokenizer).expect("writes");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
        let output = command.current_dir(&scratch).args(arguments).output().expect("starts");
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(1), "{said}");
        said
    });
    expect![[r#"
        error: model/tokenizer.json: EOF while parsing an object at line 1 column 1
        help: fetch the tokenizer of this model again
        error: the tokenizer cannot read the prompt: WordLevel error: Missing [UNK] token from the vocabulary
        help: give text that its vocabulary has
        error: b.jsonl:1: the tokenizer cannot read the text: WordLevel error: Missing [UNK] token from the vocabulary
        help: give text that its vocabulary has
        error: a.jsonl:1: token 100000 is not among the 884 that the model knows
        help: take the tokenizer of this model
    "#]]
    .assert_eq(&said.concat());
}
