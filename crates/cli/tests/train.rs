//! `tacit train` on a tiny model with its tokenizer in one file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use expect_test::expect;
use tempfile::TempDir;

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/decoder/golden/tokenizers/spm.gguf")
}

/// A folder of a test with data in it, which is gone after it.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().expect("makes a folder"));
        let words = ["Hello, world!", "The quick brown fox", "jumps over the lazy dog.", "numbers", "x=y+z"];
        // Those of the book are among them.
        let mut lines = include_str!("rows.jsonl").to_owned();
        for (number, word) in words.iter().enumerate() {
            let others = [
                serde_json::json!({"text": word}),
                serde_json::json!({"prompt": word, "completion": words[(number + 1) % words.len()]}),
                serde_json::json!({"messages": [{"role": "user", "content": word}, {"role": "assistant", "content": "yes"}]}),
            ];
            lines.extend(others.iter().map(|row| format!("{row}\n")));
        }
        fs::write(folder.at("data.jsonl"), lines).expect("writes");
        folder
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, options: &[&str], output: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
        command.current_dir(&self.0).arg("train").arg(model()).args(options).args(["--length", "32"]);
        command.args(["--data", "data.jsonl", "-o", output]);
        command
    }

    fn run(&self, options: &[&str], output: &str) -> Output {
        self.command(options, output).output().expect("starts")
    }

    fn json(&self, options: &[&str], output: &str) -> serde_json::Value {
        let run = self.run(&[options, &["--json"]].concat(), output);
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        serde_json::from_slice(&run.stdout).expect("json")
    }

    /// What the program says where it refuses the arguments.
    fn said(&self, options: &[&str], output: &str) -> String {
        let run = self.run(options, output);
        let text = String::from_utf8([run.stdout, run.stderr].concat()).expect("text");
        assert_eq!(run.status.code(), Some(1), "{text}");
        let text = text.replace(self.0.path().to_str().expect("text"), "FOLDER");
        text.replace(model().to_str().expect("text"), "MODEL")
    }

    /// The perplexity of the data as a text, with more options.
    fn perplexity(&self, model: &Path, options: &[&str]) -> f64 {
        self.measured(model, options)["formats"][0]["perplexity"].as_f64().expect("a number")
    }

    /// What is said of that.
    fn measured(&self, model: &Path, options: &[&str]) -> serde_json::Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
        command.current_dir(&self.0).arg("perplexity").arg(model).args(["--text", "data.jsonl", "--window", "32"]);
        let run = command.args(options).arg("--json").output().expect("starts");
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        serde_json::from_slice(&run.stdout).expect("json")
    }
}

fn number(json: &serde_json::Value) -> f64 {
    json.as_f64().unwrap_or_else(|| panic!("{json} is no number"))
}

/// Rates that suit a model of eight numbers a token.
const FAST: [&str; 6] = ["--rate", "3e-2", "--steps", "30", "--warmup", "3"];

#[test]
fn an_adapter_learns_and_is_read_by_other_commands() {
    let folder = Folder::new();
    let before = folder.perplexity(&model(), &[]);
    for (way, library) in [("--lora", "peft"), ("--dora", "peft"), ("--lora", "mlx-lm")] {
        let own = [way, "4", "--as", library, "--evaluate", "data.jsonl", "--evaluate-every", "10"];
        let output = format!("adapter{way}-{library}");
        let drawing = format!("{output}.svg");
        let recorded = format!("{output}.jsonl");
        let more = ["--record", &recorded, "--svg", &drawing];
        let json = folder.json(&[&own[..], &FAST, &more].concat(), &output);
        assert_eq!((json["steps"].as_u64(), json["resumed"].as_u64()), (Some(30), Some(0)));
        assert!(json["loss"].is_number() && number(&json["evaluated"]) < before.ln(), "{json}");
        // An adapter is no model: nobody finds a folder that looks like one.
        let mut convert = Command::new(env!("CARGO_BIN_EXE_tacit"));
        convert.current_dir(&folder.0).args(["convert", &output, "--as", "mlx-lm", "-o", "model"]);
        let said = convert.output().expect("starts").stderr;
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains(&format!("{output} has no config.json")) && !folder.at("model").exists(), "{said}");
        let after = folder.perplexity(&model(), &["--lora", &output]);
        assert!(after < 0.5 * before, "{way} {library}: {before} became {after}");
        assert_eq!(folder.measured(&model(), &["--lora", &output])["adapter"].as_str(), Some(&*output));
        // Nothing of the run is left but the output.
        assert!(!folder.at(&format!(".{output}.training")).exists());
        let record = fs::read_to_string(folder.at(&recorded)).expect("was recorded");
        assert_eq!(record.lines().filter(|line| line.contains("\"loss\"")).count(), 30, "{record}");
        assert_eq!(record.lines().filter(|line| line.contains("\"evaluated\"")).count(), 4, "{record}");
        assert!(fs::read_to_string(folder.at(&drawing)).expect("was drawn").starts_with("<svg"));
    }
}

/// Also where they are not those of the last layers, which alone a short configuration of mlx-lm's can say.
#[test]
fn adapters_of_chosen_layers_are_read_again() {
    let folder = Folder::new();
    for (at, layers) in
        ["model.layers.0.*_proj.weight", "*.layers.0.*.q_proj.weight", "*_proj.weight"].iter().enumerate()
    {
        for library in ["peft", "mlx-lm"] {
            let output = format!("{library}{at}");
            folder.json(&["--lora", "2", "--steps", "1", "--layers", layers, "--as", library], &output);
            folder.perplexity(&model(), &["--lora", &output]);
        }
    }
}

/// What is merged was trained as it is stored, and what was trained for a format is stored in it: the files are models.
#[test]
fn a_model_is_merged_or_trained_for_a_format() {
    let folder = Folder::new();
    let before = folder.perplexity(&model(), &[]);
    for (name, options) in [
        ("merged", ["--lora", "4", "--merge", "int8:8"]),
        ("floats.gguf", ["--dora", "4", "--merge", "none"]),
        ("aware", ["--qat", "int8:8", "--seed", "0"]),
    ] {
        let json = folder.json(&[&options[..], &FAST].concat(), name);
        let after = folder.perplexity(&folder.at(name), &[]);
        assert!(after < 0.7 * before, "{name}: {before} became {after}");
        let lost = json["lost"].as_f64();
        assert_eq!(lost, if name == "merged" { Some(0.0) } else { None }, "{json}");
    }
}

/// Tokens of several batches are as those of one: gradients are of the mean over all of them.
#[test]
fn batches_that_are_accumulated_are_one_batch() {
    let folder = Folder::new();
    let losses = ["4,1", "1,4", "2,2"].map(|way| {
        let (batch, accumulate) = way.split_once(',').expect("two numbers");
        let options = ["--lora", "4", "--apart", "--batch", batch, "--accumulate", accumulate];
        let pace = ["--rate", "1e-2", "--steps", "12"];
        number(&folder.json(&[&options[..], &pace].concat(), &format!("adapter-{way}"))["loss"])
    });
    for loss in &losses {
        assert!((loss / losses[0] - 1.0).abs() < 1e-3, "{losses:?}");
    }
}

/// The forward pass is the same, and so is the loss of the first step. Those of later ones follow gradients that codes were read
/// for.
#[test]
fn activations_in_codes_change_no_loss_and_gradients_a_little() {
    let folder = Folder::new();
    for (way, value) in [("--lora", "4"), ("--dora", "4"), ("--qat", "int8:8")] {
        for kept in [&[][..], &["--keep-activations"]] {
            let loss = |steps: &str, format: &[&str]| {
                // So slow that a step of Adam, which has one size for all gradients, does not make much of little differences.
                let pace = ["--batch", "2", "--rate", "1e-3", "--steps", steps, "--force"];
                number(&folder.json(&[&[way, value], kept, &pace[..], format].concat(), &format!("made{way}"))["loss"])
            };
            let saved = ["--saved-activations", "affine:8:64"];
            assert_eq!(loss("1", &saved).to_bits(), loss("1", &[]).to_bits(), "{way} {kept:?}");
            let (found, plain) = (loss("12", &saved), loss("12", &[]));
            assert!(found.to_bits() != plain.to_bits(), "{way} {kept:?}: no gradient has read codes");
            assert!((found / plain - 1.0).abs() < 1e-2, "{way} {kept:?}: {found}, and {plain} without codes");
        }
    }
}

/// The bytes of every file of a folder.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder).expect("reads").map(|entry| entry.expect("reads").path());
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    let mut files: Vec<_> = entries.map(|path| (name(&path), fs::read(&path).expect("reads"))).collect();
    files.sort();
    files
}

/// The latest step that is saved in the folder of a run; 0 where there is none.
fn saved(folder: &Path) -> u64 {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let step = |name: String| name.strip_prefix("step-")?.strip_suffix(".safetensors")?.parse().ok();
    names.map(|name| name.to_string_lossy().into_owned()).filter_map(step).max().unwrap_or(0)
}

/// A run that is killed again and again ends in the same bytes as one that nobody has touched.
#[test]
fn a_run_that_is_killed_goes_on_to_the_same_bits() {
    // Of one row no layer is given as many numbers as are worth codes.
    let boundaries = ["--batch", "2", "--saved-activations", "affine:8:64"];
    let all = ["--batch", "2", "--keep-activations", "--saved-activations", "e4m3:32"];
    for (way, value, moments, more) in [
        ("--lora", "4", "8", &[][..]),
        ("--lora", "4", "8", &boundaries[..]),
        ("--dora", "4", "32", &all[..]),
        ("--qat", "int8:8", "4", &boundaries[..]),
    ] {
        let folder = Folder::new();
        let steps = ["--steps", "40", "--rate", "1e-2", "--save-every", "3", "--report-every", "1"];
        let options = [&[way, value, "--moments", moments], more, &steps[..]].concat();
        assert!(folder.run(&options, "whole").status.success());
        let kept = folder.at(".killed.training");
        let (mut kills, mut latest) = (0, 0);
        for goal in [1, 12, 21, 33] {
            let mut child = folder.command(&options, "killed").stdout(Stdio::null()).spawn().expect("starts");
            let begun = Instant::now();
            while latest < goal && child.try_wait().expect("waits").is_none() {
                assert!(begun.elapsed() < Duration::from_mins(2), "no step {goal} in {}", kept.display());
                sleep(Duration::from_millis(1));
                latest = saved(&kept).max(latest);
            }
            // `kill -9`: nothing of the program runs any more.
            child.kill().expect("is ours");
            kills += u64::from(!child.wait().expect("ends").success());
        }
        assert!(kills > 0, "no run was killed before it ended");
        let json = folder.json(&[&options[..], &["--force"]].concat(), "killed");
        assert!(json["resumed"].as_u64() >= Some(3), "{json}");
        assert!(files(&folder.at("whole")) == files(&folder.at("killed")), "{options:?}: the outputs differ");
    }
}

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

/// Nothing of a step that made NaN is saved or written.
#[test]
fn a_step_that_is_not_finite_ends_the_run() {
    let folder = Folder::new();
    let run = folder.run(&["--lora", "4", "--rate", "1e30", "--warmup", "0", "--steps", "5"], "adapter");
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(1), "{said}");
    assert!(said.contains("of step ") && (said.contains("NaN") || said.contains("inf")), "{said}");
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

/// As the help says of a file that cannot be written in the end.
#[test]
fn the_steps_of_a_file_go_on_to_a_folder() {
    let folder = Folder::new();
    let options = ["--lora", "2", "--merge", "none", "--steps", "100", "--save-every", "1"];
    killed(&folder, &options, "m.gguf", || saved(&folder.at(".m.gguf.training")) > 0);
    fs::rename(folder.at(".m.gguf.training"), folder.at(".m.training")).expect("renames");
    assert!(folder.json(&options, "m")["resumed"].as_u64() > Some(0));
    assert!(folder.at("m/model.safetensors").is_file() && !folder.at(".m.training").exists());
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

#[test]
fn a_run_with_other_options_is_not_gone_on_with() {
    let folder = Folder::new();
    let begun = ["--lora", "4", "--steps", "4000", "--save-every", "1"];
    let mut child = folder.command(&begun, "adapter").stdout(Stdio::null()).spawn().expect("starts");
    while saved(&folder.at(".adapter.training")) == 0 {
        assert!(child.try_wait().expect("waits").is_none());
        sleep(Duration::from_millis(2));
    }
    // Two do not write one output.
    expect![[r#"
        error: another program trains in .adapter.training
        help: wait until it ends, or write to another place; of ranks that `tacit launch` starts each would train by itself
    "#]]
    .assert_eq(&folder.said(&begun, "adapter"));
    child.kill().expect("is ours");
    child.wait().expect("ends");
    expect![[r#"
        error: .adapter.training holds another run, in which --lora was 4, and is 8
        help: give the same options to go on, or remove the folder to begin anew
    "#]]
    .assert_eq(&folder.said(&["--lora", "8", "--steps", "4000"], "adapter"));
    expect![[r#"
        error: .adapter.training holds another run, in which --seed was 0, and is 1
        help: give the same options to go on, or remove the folder to begin anew
    "#]]
    .assert_eq(&folder.said(&[&begun[..], &["--seed", "1"]].concat(), "adapter"));
    expect![[r#"
        error: .adapter.training holds another run, in which --saved-activations was not given, and is affine:8:64
        help: give the same options to go on, or remove the folder to begin anew
    "#]]
    .assert_eq(&folder.said(&[&begun[..], &["--saved-activations", "affine:8:64"]].concat(), "adapter"));
    // A file of another content is another option.
    let rules = |format: &str| fs::write(folder.at("rules.json"), format!(r#"{{"*_proj.weight": "{format}"}}"#));
    rules("int8").expect("writes");
    let begun = ["--lora", "4", "--steps", "4000", "--save-every", "1", "--weights", "rules.json"];
    let mut child = folder.command(&begun, "other").stdout(Stdio::null()).spawn().expect("starts");
    while saved(&folder.at(".other.training")) == 0 {
        assert!(child.try_wait().expect("waits").is_none());
        sleep(Duration::from_millis(2));
    }
    child.kill().expect("is ours");
    child.wait().expect("ends");
    rules("nf4:32").expect("writes");
    expect![[r#"
        error: .other.training holds another run, in which what `--weights` says was {"*_proj.weight":"int8"}, and is {"*_proj.weight":"nf4:32"}
        help: give the same options to go on, or remove the folder to begin anew
    "#]]
    .assert_eq(&folder.said(&begun, "other"));
}

/// A record of another run stays; and an adapter that lies beside one of the other library is the one that was written last.
#[test]
fn a_run_replaces_what_is_there_only_where_it_may() {
    let folder = Folder::new();
    folder.json(&["--lora", "2", "--steps", "2", "--record", "record.jsonl"], "first");
    let record = fs::read(folder.at("record.jsonl")).expect("a record");
    expect![[r#"
        error: record.jsonl is there already
        help: write to another place, or replace it with `--force`
    "#]]
    .assert_eq(&folder.said(&["--lora", "2", "--steps", "1", "--record", "record.jsonl"], "second"));
    assert_eq!(fs::read(folder.at("record.jsonl")).expect("a record"), record);
    let generated = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
        command.arg("generate").arg(model()).args(["--prompt", "Hello", "--max-tokens", "4", "--lora"]);
        command.arg(folder.at("adapter")).output().expect("starts")
    };
    // The configuration says whose tensors are read.
    for library in ["mlx-lm", "peft", "mlx-lm"] {
        folder.json(&["--lora", "2", "--steps", "2", "--as", library, "--force"], "adapter");
        let run = generated();
        assert!(run.status.success(), "{library}: {}", String::from_utf8_lossy(&run.stderr));
    }
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

/// As behind `| head -1`, or behind `| less` that was left.
#[test]
fn a_reader_that_goes_ends_no_training() {
    let folder = Folder::new();
    let mut command = folder.command(&["--lora", "2", "--steps", "3", "--report-every", "1"], "adapter");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("ends").code(), Some(0));
    assert!(folder.at("adapter/adapter_model.safetensors").is_file());
    assert!(!folder.at(".adapter.training").exists());
}

/// What was trained is not given away for a drawing of it, and the rules of the weights are read.
#[test]
fn a_drawing_does_not_replace_what_was_trained() {
    let folder = Folder::new();
    let refused = |options: &[&str], output: &str, reason: &str| {
        let run = folder.run(&[options, &["--steps", "1", "--force"]].concat(), output);
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(1), "{options:?}: {said}");
        assert!(said.contains(reason), "{options:?}: {said}");
    };
    fs::create_dir(folder.at("adapter")).expect("makes");
    for option in ["--svg", "--record"] {
        let trained = "is what is trained, and would be overwritten";
        refused(&["--lora", "2", "--merge", "none", option, "m.gguf"], "m.gguf", trained);
        refused(&["--lora", "2", option, "adapter/adapter_config.json"], "adapter", trained);
        refused(&["--lora", "2", option, "new"], "./new", trained);
    }
    assert!(!folder.at("m.gguf").exists() && !folder.at("new").exists());
    let rules = r#"{"*_proj.weight": "int8"}"#;
    fs::write(folder.at("rules.json"), rules).expect("writes");
    for option in ["--svg", "--record"] {
        let read = "rules.json is what is read, and would be overwritten";
        refused(&["--lora", "2", "--weights", "rules.json", option, "rules.json"], "other", read);
    }
    assert_eq!(fs::read_to_string(folder.at("rules.json")).expect("reads"), rules);
}

/// Starts a training, and kills it when `reached`.
fn killed(folder: &Folder, options: &[&str], output: &str, reached: impl Fn() -> bool) {
    let mut child = folder.command(options, output).stdout(Stdio::null()).spawn().expect("starts");
    while !reached() {
        assert!(child.try_wait().expect("waits").is_none(), "it ended before it was killed");
        sleep(Duration::from_millis(2));
    }
    child.kill().expect("is ours");
    child.wait().expect("ends");
}

/// The record is there already, and is the run's own.
#[test]
fn a_run_that_is_killed_before_its_first_save_begins_again() {
    let folder = Folder::new();
    // Of the number of steps nothing is saved yet.
    let steps =
        |steps: &'static str| ["--lora", "2", "--steps", steps, "--save-every", "4000", "--record", "own.jsonl"];
    killed(&folder, &steps("4000"), "adapter", || !fs::read(folder.at("own.jsonl")).unwrap_or_default().is_empty());
    assert_eq!(saved(&folder.at(".adapter.training")), 0);
    let json = folder.json(&steps("2"), "adapter");
    assert_eq!((json["steps"].as_u64(), json["resumed"].as_u64()), (Some(2), Some(0)));
    let record = fs::read_to_string(folder.at("own.jsonl")).expect("a record");
    assert_eq!(record.lines().filter(|line| line.contains("\"loss\"")).count(), 2, "{record}");
}

#[test]
fn a_run_that_goes_on_spares_records_of_others() {
    let folder = Folder::new();
    folder.json(&["--lora", "2", "--steps", "9", "--record", "old.jsonl"], "first");
    let record = fs::read(folder.at("old.jsonl")).expect("a record");
    let begun = ["--lora", "2", "--steps", "4000", "--save-every", "1", "--record", "own.jsonl"];
    killed(&folder, &begun, "second", || saved(&folder.at(".second.training")) > 0);
    fs::write(folder.at("own.svg"), "what somebody drew").expect("writes");
    for (option, file) in [("--record", "old.jsonl"), ("--svg", "own.svg")] {
        let run = folder.run(&[&begun[..6], &[option, file]].concat(), "second");
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(1), "{said}");
        assert!(said.starts_with(&format!("error: {file} is there already\nhelp: ")), "{said}");
    }
    assert_eq!(fs::read(folder.at("old.jsonl")).expect("a record"), record);
    assert_eq!(fs::read_to_string(folder.at("own.svg")).expect("reads"), "what somebody drew");
    assert!(saved(&folder.at(".second.training")) > 0, "the run can go on");
}

/// A device or a pipe is not read back.
#[test]
fn a_record_that_is_not_kept_is_not_drawn() {
    expect![[r#"
        error: a drawing is made of the record, which is a device or a pipe
        help: record to a file, or leave `--svg` out
    "#]]
    .assert_eq(
        &Folder::new().said(&["--lora", "2", "--steps", "1", "--record", "/dev/null", "--svg", "own.svg"], "adapter"),
    );
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

/// The drawing comes before the output; and where a run is ended between its output and its end, it goes on as well.
#[test]
fn a_run_that_fails_at_its_end_goes_on() {
    let folder = Folder::new();
    let options = ["--lora", "2", "--steps", "100", "--save-every", "1", "--svg", "own.svg"];
    let mut command = folder.command(&options, "adapter");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts");
    let kept = folder.at(".adapter.training");
    while saved(&kept) == 0 {
        assert!(child.try_wait().expect("waits").is_none());
        sleep(Duration::from_millis(2));
    }
    fs::create_dir(folder.at("own.svg")).expect("makes");
    assert_eq!(child.wait().expect("ends").code(), Some(1));
    assert!(saved(&kept) == 100 && !folder.at("adapter").exists());
    fs::remove_dir(folder.at("own.svg")).expect("removes");
    let copy = files(&kept);
    assert_eq!(folder.json(&options, "adapter")["resumed"].as_u64(), Some(100));
    assert!(folder.at("own.svg").is_file() && !kept.exists());
    let written = files(&folder.at("adapter"));
    // As a program leaves it that is killed once the output is written: the folder says that the output is the run's. What was saved goes
    // first, the oldest before the others.
    let own = ["own.svg", "adapter/adapter_model.safetensors", "adapter/adapter_config.json"];
    let here = fs::canonicalize(&folder.0).expect("is there");
    let own: Vec<String> = own.iter().map(|name| format!("{}\0", here.join(name).display())).collect();
    for (gone, resumed) in [(0, 100), (1, 100), (2, 0)] {
        fs::create_dir(&kept).expect("makes");
        let (saves, others): (Vec<_>, Vec<_>) = copy.iter().partition(|(name, _)| name.starts_with("step-"));
        for (name, content) in saves.into_iter().skip(gone).chain(others) {
            fs::write(kept.join(name), content).expect("writes");
        }
        fs::write(kept.join("own"), own.concat()).expect("writes");
        assert_eq!(folder.json(&options, "adapter")["resumed"].as_u64(), Some(resumed));
        assert!(files(&folder.at("adapter")) == written && !kept.exists(), "{gone} saves are gone");
    }
    // Nothing of a run that came to its end is replaced by itself.
    let run = folder.run(&options, "adapter");
    assert!(String::from_utf8_lossy(&run.stderr).contains("adapter_model.safetensors is there already"));
}

#[test]
fn a_record_on_the_standard_output_is_alone_there() {
    let folder = Folder::new();
    let options = ["--lora", "2", "--steps", "1", "--force", "--record", "/dev/stdout"];
    for json in [&[] as &[&str], &["--json"]] {
        let run = folder.run(&[&options[..], json].concat(), "adapter");
        let text = String::from_utf8(run.stdout).expect("text");
        assert!(text.lines().count() > 3 && text.lines().all(|line| line.starts_with("{\"step\":")), "{text}");
    }
}

/// JSON is text: what a path has besides is replaced in it. A Mac has no such paths.
#[test]
#[cfg(target_os = "linux")]
fn an_output_whose_name_is_no_text_is_told_as_json() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let folder = Folder::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
    command.current_dir(&folder.0).arg("train").arg(model()).args(["--lora", "2", "--steps", "1", "--length", "32"]);
    command.args(["--json", "--data", "data.jsonl", "-o"]).arg(OsStr::from_bytes(b"x\xff"));
    let run = command.output().expect("starts");
    assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stderr));
    let json: serde_json::Value = serde_json::from_slice(&run.stdout).expect("json");
    assert_eq!(json["output"].as_str(), Some("x\u{fffd}"));
}

#[test]
fn a_last_step_that_diverges_is_no_success() {
    let folder = Folder::new();
    let run = folder.run(&["--lora", "2", "--steps", "1", "--rate", "1e30"], "made");
    assert_eq!(run.status.code(), Some(1));
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(
        said.starts_with("error: the loss after step 1, the last one, is NaN\nhelp: give a lower `--rate`"),
        "{said}"
    );
    assert!(!folder.at("made").exists());
}
