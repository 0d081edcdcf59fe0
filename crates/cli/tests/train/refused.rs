//! What is refused before any step.

use std::fs;
use std::process::Command;

use expect_test::expect;

use super::{Folder, model};

#[test]
fn what_cannot_be_trained_is_said() {
    let folder = Folder::new();
    let lora = ["--lora", "4"];
    let with = |more: &[&'static str]| [&lora[..], more].concat();
    // Of an adapter, where none is written.
    for options in [
        &["--qat", "int8:8", "--alpha", "4"][..],
        &["--qat", "int8:8", "--as", "peft"],
        &["--lora", "4", "--merge", "none", "--as", "mlx-lm"],
    ] {
        assert_eq!(folder.run(options, "adapter").status.code(), Some(2), "{options:?}");
    }
    let mut said = [
        folder.said(&with(&["--rate", "0"]), "adapter"),
        folder.said(&with(&["--rate", "nan"]), "adapter"),
        folder.said(&with(&["--clip", "0"]), "adapter"),
        folder.said(&with(&["--decay=-1"]), "adapter"),
        folder.said(&with(&["--layers", "no.such.weight"]), "adapter"),
        folder.said(&with(&["--merge", "nf5"]), "adapter"),
        folder.said(&with(&["--saved-activations", "affine:8:63"]), "adapter"),
        folder.said(&with(&["--saved-activations", "int8+stochastic"]), "adapter"),
        folder.said(&["--qat", "nf5"], "adapter"),
        folder.said(&["--qat", "affine:4:64"], "adapter"),
        folder.said(&with(&["--evaluate", "no.jsonl"]), "adapter"),
        folder.said(&lora, "data.jsonl"),
        folder.said(&with(&["--rate", "1e30", "--clip", "inf", "--steps", "4"]), "wild"),
    ]
    .concat();
    fs::write(folder.at("data.jsonl"), "{\"text\": \"well\"}\n{\"txt\": \"\"}\n").expect("writes");
    said += &folder.said(&lora, "adapter");
    fs::write(folder.at("data.jsonl"), "\n").expect("writes");
    said += &folder.said(&lora, "adapter");
    expect![[r#"
        error: `--rate` is 0
        help: give a number above 0
        error: `--rate` is NaN
        help: give a number above 0
        error: `--clip` is 0
        help: give a number above 0, or inf
        error: `--decay` is -1
        help: give 0 or a number above it
        error: no.such.weight names no matrix of the model
        help: its parameters are model.embed_tokens.weight, model.layers.0.input_layernorm.weight, model.layers.0.mlp.down_proj.weight, model.layers.0.mlp.gate_proj.weight, model.layers.0.mlp.up_proj.weight, model.layers.0.post_attention_layernorm.weight, model.layers.0.self_attn.k_proj.weight, model.layers.0.self_attn.o_proj.weight, model.layers.0.self_attn.q_proj.weight, model.layers.0.self_attn.v_proj.weight, model.norm.weight
        error: no format is named nf5
        help: name one of affine, bf16, binary, codebook, dynamic, e4m3, e5m2, f16, fp4, int8, k, mxfp4, mxfp8, nf4, nvfp4, rotated, symmetric, ternary
        error: MLX has no affine format of 8 bits in groups of 63
        help: use 2, 3, 4, 5, 6 or 8 bits and groups of 32, 64 or 128
        error: the parameter model.layers.0.input_layernorm.weight: activations are not saved in the format int8+stochastic, which rounds by a random key
        help: write int8
        error: no format is named nf5
        help: name one of affine, bf16, binary, codebook, dynamic, e4m3, e5m2, f16, fp4, int8, k, mxfp4, mxfp8, nf4, nvfp4, rotated, symmetric, ternary
        error: no parameter of the model is prepared: model.layers.0.mlp.down_proj.weight: the last axis of f16[8,8] is not whole groups of 64, as affine has them
        help: name other parameters or another format: its parameters are model.embed_tokens.weight, model.layers.0.input_layernorm.weight, model.layers.0.mlp.down_proj.weight, model.layers.0.mlp.gate_proj.weight, model.layers.0.mlp.up_proj.weight, model.layers.0.post_attention_layernorm.weight, model.layers.0.self_attn.k_proj.weight, model.layers.0.self_attn.o_proj.weight, model.layers.0.self_attn.q_proj.weight, model.layers.0.self_attn.v_proj.weight, model.norm.weight
        error: cannot open no.jsonl: No such file or directory (os error 2)
        error: data.jsonl is no folder
        help: name a folder, which is made if it is not there
            step      loss      rate      norm  tokens/s
        error: the loss of step 2 is NaN
        help: give a lower `--rate` or a longer `--warmup`; where it is the first step, check the weights
        error: data.jsonl:2: it has neither text, nor a prompt and a completion, nor messages
        help: write {"text": ..}, {"prompt": .., "completion": ..} or {"messages": [{"role": .., "content": ..}, ..]}
        error: data.jsonl: no token of the data is learned
        help: give texts of at least two tokens, or completions that are not empty
    "#]]
    .assert_eq(&said);
    assert_eq!(folder.run(&[], "adapter").status.code(), Some(2));
    assert_eq!(folder.run(&["--lora", "4", "--dora", "4"], "adapter").status.code(), Some(2));
    assert_eq!(folder.run(&["--lora", "0"], "adapter").status.code(), Some(2));
    assert!(!folder.at("adapter").exists());
}

/// Nobody learns after hours that no library has such an adapter.
#[test]
fn an_adapter_that_cannot_be_written_is_refused_before_any_step() {
    let folder = Folder::new();
    expect![[r#"
        error: .adapter.training/rehearsal/adapter_model.safetensors: model.embed_tokens.weight: PEFT has a magnitude for each of its columns, and a Dora has one for each row
        help: merge it, or write it by `mlx_adapter::write`
    "#]]
    .assert_eq(&folder.said(&["--dora", "2", "--layers", "model.embed_tokens.weight", "--steps", "9"], "adapter"));
    assert!(!folder.at(".adapter.training").exists());
}

/// GGUF has no type for their codes, whatever the steps make of them.
#[test]
fn a_file_that_cannot_be_written_is_refused_before_any_step() {
    let folder = Folder::new();
    for options in [&["--qat", "int8:8"][..], &["--lora", "2", "--merge", "int8:8"]] {
        expect![[r#"
            error: m.gguf: blk.0.ffn_down.weight: no type of GGUF has the numbers of Int8(f16[8,8])
            help: name a folder, which holds any model, or take a format that GGUF has, such as mxfp4
        "#]]
        .assert_eq(&folder.said(&[options, &["--steps", "2", "--record", "record.jsonl"]].concat(), "m.gguf"));
        let left = ["m.gguf", ".m.gguf.training", "record.jsonl"].map(|name| folder.at(name).exists());
        assert_eq!(left, [false; 3]);
    }
}

#[test]
fn rows_that_cannot_be_counted_are_refused() {
    expect![[r#"
        error: a step of 18446744073709551615 rows 4 times has more rows than can be counted
        help: give fewer by `--batch` or `--accumulate`
    "#]]
    .assert_eq(&Folder::new().said(&["--lora", "4", "--batch", "18446744073709551615"], "adapter"));
}

#[test]
fn rows_that_are_too_long_are_refused() {
    let folder = Folder::new();
    for length in ["9999999999999", "18446744073709551615"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
        command.current_dir(&folder.0).arg("train").arg(model()).args(["--lora", "2", "--length", length]);
        let run = command.args(["--data", "data.jsonl", "-o", "adapter"]).output().expect("starts");
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(1), "{said}");
        let expected = format!(
            "error: rows of {length} tokens are longer than any model reads\nhelp: give a shorter `--length`\n"
        );
        assert_eq!(said, expected);
    }
}

/// Not even with `--force`: what a command reads is never replaced, and a file that is no record is refused.
#[test]
fn a_record_or_a_drawing_replaces_nothing_that_is_read() {
    let folder = Folder::new();
    fs::write(folder.at("own.txt"), "what somebody wrote\n").expect("writes");
    let data = fs::read(folder.at("data.jsonl")).expect("reads");
    let begun = ["--lora", "2", "--steps", "1"];
    for option in ["--record", "--svg"] {
        let run = folder.run(&[&begun[..], &[option, "data.jsonl", "--force"]].concat(), "adapter");
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(said.contains("data.jsonl is what is read, and would be overwritten"), "{said}");
        assert_eq!(fs::read(folder.at("data.jsonl")).expect("reads"), data);
        let run = folder.run(&[&begun[..], &[option, "own.txt"]].concat(), "adapter");
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(said.contains("own.txt is there already"), "{said}");
        assert_eq!(fs::read_to_string(folder.at("own.txt")).expect("reads"), "what somebody wrote\n");
        assert!(!folder.at(".adapter.training").exists(), "a run that was refused leaves nothing");
    }
    let run = folder.run(&[&begun[..], &["--record", "own.txt", "--force"]].concat(), "adapter");
    assert!(String::from_utf8_lossy(&run.stderr).contains("is not an entry of a record"));
    assert_eq!(fs::read_to_string(folder.at("own.txt")).expect("reads"), "what somebody wrote\n");
    assert!(!folder.at(".adapter.training").exists(), "a run that was refused leaves nothing");
    for svg in ["one.jsonl", "./one.jsonl"] {
        let run = folder.run(&[&begun[..], &["--record", "one.jsonl", "--svg", svg]].concat(), "adapter");
        assert!(String::from_utf8_lossy(&run.stderr).contains("the record and the drawing are one file"));
    }
    let run = folder.run(&[&begun[..], &["--record", "one.jsonl", "--svg", "one.svg"]].concat(), "adapter");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

/// What lies alone is put where the model is, and a folder without an adapter is not taken for one.
#[test]
fn what_lacks_its_configuration_is_said_with_what_to_do() {
    let folder = Folder::new();
    fs::write(folder.at("tokens"), "1 2 3 4").expect("writes");
    let tacit = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
        command.current_dir(&folder.0).args(arguments).output().expect("starts")
    };
    let model = model();
    let model = model.to_str().expect("text");
    assert!(tacit(&["quantize", model, "--format", "int8:8", "-o", "alone.safetensors"]).status.success());
    let said: Vec<String> = [
        &["perplexity", "alone.safetensors", "--text", "data.jsonl"][..],
        &["perplexity", "alone.safetensors", "--tokens", "tokens"],
        &["generate", model, "--prompt", "Hello", "--lora", "."],
    ]
    .map(tacit)
    .map(|output| {
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).expect("text")
    })
    .into();
    expect![[r"
        error: tokenizer.json: there is no such file
        help: copy it from the folder of the model that the tensors were made of, or fetch it
        error: config.json: there is no such file
        help: copy it from the folder of the model that the tensors were made of, or fetch it
        error: .: it has no adapter_config.json, and is no adapter
        help: name the folder of an adapter, as PEFT, mlx-lm or `tacit train` writes it in the end
    "]]
    .assert_eq(&said.concat());
}

/// A run of hours would be told of it at its end.
#[test]
fn where_no_drawing_can_be_made_nothing_is_trained() {
    // Nobody makes a file among the processes, whatever they may.
    expect![[r#"
        error: cannot write /proc/own.svg: No such file or directory (os error 2)
    "#]]
    .assert_eq(&Folder::new().said(&["--lora", "2", "--steps", "1", "--svg", "/proc/own.svg"], "adapter"));
}
