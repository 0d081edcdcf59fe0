//! `tacit train` on a tiny model with its tokenizer in one file.

#[cfg(unix)]
#[path = "told/numbers.rs"]
mod numbers;
#[path = "train/refused.rs"]
mod refused;
#[path = "train/resumed.rs"]
mod resumed;
#[cfg(unix)]
#[path = "train/told.rs"]
mod told;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

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

/// The head of this model is its embedding, and PEFT adapts the head only where its configuration says so.
#[test]
fn an_adapter_of_the_embedding_is_that_of_a_tied_head_too() {
    let folder = Folder::new();
    let [of_peft, of_mlx] = ["peft", "mlx-lm"].map(|library| {
        let layers = ["--lora", "2", "--layers", "model.embed_tokens.weight", "--as", library];
        folder.json(&[&layers[..], &FAST].concat(), library);
        folder.perplexity(&model(), &["--lora", library])
    });
    assert!((of_peft / of_mlx - 1.0).abs() < 1e-6, "{of_peft} and {of_mlx}");
    let config = fs::read(folder.at("peft/adapter_config.json")).expect("reads");
    let config: serde_json::Value = serde_json::from_slice(&config).expect("json");
    assert_eq!(config["ensure_weight_tying"], true, "{config}");
    assert_eq!(config["target_modules"], serde_json::json!(["lm_head", "model.embed_tokens"]));
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
