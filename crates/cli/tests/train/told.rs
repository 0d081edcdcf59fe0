//! What is told of a run in words.

use std::fs;
use std::process::Command;

use expect_test::expect;

use super::numbers::without_numbers;
use super::resumed::killed;
use super::{Folder, model, saved};

/// The lines that are sentences, with N in the place of each number.
fn sentences(text: &str) -> String {
    let mut said = String::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        // A row of a table is as wide as its numbers.
        if words.iter().filter(|word| word.chars().all(char::is_alphabetic)).count() >= 6 {
            said.push_str(&without_numbers(&words.join(" ")));
            said.push('\n');
        }
    }
    said
}

#[test]
fn a_run_that_went_on_is_told_of() {
    let folder = Folder::new();
    let text = serde_json::json!({"text": "The quick brown fox jumps over the lazy dog. ".repeat(20)});
    fs::write(folder.at("data.jsonl"), format!("{text}\n")).expect("writes");
    let merged = ["--lora", "2", "--merge", "int8:8", "--steps", "100", "--save-every", "1"];
    let others = ["--evaluate", "data.jsonl", "--evaluate-every", "100"];
    let options = [&merged[..], &others].concat();
    killed(&folder, &options, "merged", || saved(&folder.at(".merged.training")) > 0);
    let run = folder.run(&options, "merged");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    expect![[r#"
        N a loss of N and a perplexity of N in the other file
        N steps on N rows trained N numbers, which are in merged
        N of the steps were made before
        N texts are longer than a row, and were cut up
        the merge lost N % of the change at most
    "#]]
    .assert_eq(&sentences(&String::from_utf8(run.stdout).expect("text")));
}

#[test]
fn an_adapter_and_what_is_drawn_have_their_names() {
    let folder = Folder::new();
    let drawn = ["--evaluate", "data.jsonl", "--svg", "losses.svg"];
    let run = folder.run(&[&["--lora", "2", "--steps", "2"], &drawn[..]].concat(), "adapter");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
    command.current_dir(&folder.0).arg("perplexity").arg(model()).args(["--text", "data.jsonl", "--window", "32"]);
    let options = ["--lora", "adapter", "--convention", "mlx-lm", "--svg", "perplexity.svg"];
    let measured = command.args(options).output().expect("starts");
    assert!(measured.status.success(), "{}", String::from_utf8_lossy(&measured.stderr));
    expect![[r#"
        N tokens in N windows of N counted as mlx-lm does: all but the first of each, with the adapter adapter
    "#]]
    .assert_eq(&sentences(&String::from_utf8(measured.stdout).expect("text")));
    for (file, names) in [
        ("losses.svg", &["loss by step", "the other file"][..]),
        ("perplexity.svg", &["Perplexity by format", ", with the adapter adapter"]),
    ] {
        let svg = fs::read_to_string(folder.at(file)).expect("is drawn");
        assert!(names.iter().all(|name| svg.contains(name)), "{svg}");
    }
}

#[test]
fn the_last_step_is_judged_and_a_place_that_holds_no_run_is_refused() {
    let folder = Folder::new();
    let wild = folder.run(&["--lora", "4", "--rate", "1e30", "--clip", "inf", "--steps", "1"], "wild");
    assert_eq!(wild.status.code(), Some(1));
    let made = Command::new("mkfifo").arg(folder.at("m.gguf")).status().expect("a pipe");
    assert!(made.success());
    let said = [
        String::from_utf8(wild.stderr).expect("text"),
        folder.said(&["--lora", "2", "--merge", "none"], "m.gguf"),
        folder.said(&["--lora", "2"], ".."),
    ];
    expect![[r#"
        error: the loss after step 1, the last one, is NaN
        help: give a lower `--rate` or a longer `--warmup`; what was saved is as it was
        error: a run leaves its steps beside the output
        help: write to a file
        error: .. has no name
        help: name a folder that is made, or a file
    "#]]
    .assert_eq(&said.concat());
}
