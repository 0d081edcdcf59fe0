//! `tacit quantize --calibrate` and `tacit advise --calibrate` on a small decoder with a tokenizer of words.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use expect_test::expect;
use mlx_rs::{Array, random};
use serde_json::json;
use tacit_arrays::format::AnyFormat;
use tacit_core::Policy;
use tacit_io::{Resumable, read, save};
use tacit_models::{Positions, caches, load};
use tacit_nn::{Missing, Parameters};
use tempfile::TempDir;

/// A folder of a test, which is gone after it.
struct Folder(TempDir);

const WORDS: i32 = 64;
const HIDDEN: i32 = 128;

fn normal(seed: u64, shape: &[i32]) -> Array {
    random::normal::<f32>(shape, None, 0.1, &random::key(seed).expect("a key")).expect("numbers")
}

impl Folder {
    /// A decoder of two layers with weights of a seed, its tokenizer, and a text.
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().expect("makes a folder"));
        let mut parameters = Parameters::new();
        let mut put = |path: String, shape: &[i32]| {
            let seed = parameters.len() as u64;
            let array = if shape.len() == 1 { Array::from_slice(&[1f32; 128], &[HIDDEN]) } else { normal(seed, shape) };
            parameters.insert(path, array.into());
        };
        put("model.embed_tokens.weight".to_owned(), &[WORDS, HIDDEN]);
        put("lm_head.weight".to_owned(), &[WORDS, HIDDEN]);
        put("model.norm.weight".to_owned(), &[HIDDEN]);
        for layer in 0..2 {
            for norm in ["input_layernorm", "post_attention_layernorm"] {
                put(format!("model.layers.{layer}.{norm}.weight"), &[HIDDEN]);
            }
            for product in
                ["self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down"]
            {
                put(format!("model.layers.{layer}.{product}_proj.weight"), &[HIDDEN, HIDDEN]);
            }
        }
        save(folder.at("model.safetensors"), &parameters).expect("saves");
        let config = json!({
            "model_type": "llama", "vocab_size": WORDS, "hidden_size": HIDDEN, "intermediate_size": HIDDEN,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0, "tie_word_embeddings": false,
        });
        fs::write(folder.at("config.json"), config.to_string()).expect("writes");
        let words: serde_json::Map<_, _> = (0..WORDS).map(|word| (format!("w{word}"), word.into())).collect();
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": { "type": "WhitespaceSplit" }, "post_processor": null, "decoder": null,
            "model": { "type": "WordLevel", "vocab": words, "unk_token": "w0" },
        });
        fs::write(folder.at("tokenizer.json"), tokenizer.to_string()).expect("writes");
        fs::write(folder.at("text.txt"), text(1, 1200)).expect("writes");
        fs::write(folder.at("empty.txt"), "").expect("writes");
        folder
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn quantize(&self, output: &str, options: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
        let command = command.current_dir(&self.0).arg("quantize").arg(self.0.path()).args(["-o", output]);
        command.args(options).output().expect("starts")
    }

    /// What `tacit quantize` says where it refuses these options.
    fn refused(&self, options: &[&str]) -> String {
        let output = self.quantize("none.safetensors", options);
        let text = String::from_utf8([output.stdout, output.stderr].concat()).expect("text");
        assert!(!output.status.success() && !self.at("none.safetensors").exists(), "{text}");
        text.replace(self.0.path().to_str().expect("text"), "FOLDER")
    }

    /// The logits of a text, with the parameters of a file in place of the model's own.
    fn logits(&self, file: Option<&str>) -> Array {
        let _deny = Policy::Deny.scope();
        let (config, mut model) = load(&self.0).expect("loads");
        if let Some(file) = file {
            model.assign(read(self.at(file)).expect("reads"), Missing::Refuse).expect("fits");
        }
        let tokens: Vec<u32> = text(2, 200).split(' ').map(|word| word[1..].parse().expect("a number")).collect();
        let tokens = Array::from_slice(&tokens, &[1, 200]);
        let mut caches = caches(&config, 1, mlx_rs::Dtype::Float32).expect("caches");
        caches.iter_mut().try_for_each(|cache| cache.reserve(200)).expect("room");
        model.run_with(&mut caches, |decoder, caches| decoder.forward(&tokens, caches, Positions::All)).expect("runs")
    }
}

/// Words of a seed.
fn text(seed: u64, words: i32) -> String {
    let drawn = random::randint::<_, i32>(0, WORDS, &[words], &random::key(seed).expect("a key")).expect("numbers");
    drawn.eval().expect("evaluates");
    drawn.as_slice::<i32>().iter().map(|word| format!("w{word}")).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_decoder_quantized_by_a_text_loses_less_on_another() {
    let folder = Folder::new();
    let float = folder.logits(None);
    let lost = |file: &str, options: &[&str]| {
        let output = folder.quantize(file, &[&["--format", "affine:3:64"], options].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let lost =
            folder.logits(Some(file)).subtract(&float).and_then(|lost| lost.square()?.mean(None)).expect("a mean");
        lost.eval().expect("evaluates");
        lost.item_exact::<f32>()
    };
    let plain = lost("plain.safetensors", &[]);
    let gptq = lost("gptq.safetensors", &["--calibrate", "text.txt"]);
    let awq = lost("awq.safetensors", &["--calibrate", "text.txt", "--method", "awq", "--windows", "2"]);
    assert!(gptq < 0.7 * plain, "{gptq} where rounding has {plain}");
    assert!(awq < plain, "{awq} where rounding has {plain}");
    // The rows of the embedding are only looked up, and rounded as ever, which is said.
    let output = folder.quantize("again.safetensors", &["--format", "affine:3:64", "--calibrate", "text.txt"]);
    let said = String::from_utf8(output.stdout).expect("text");
    assert!(said.ends_with("rounded, as the text multiplies nothing with it: model.embed_tokens.weight\n"), "{said}");
    let [plain, calibrated] = ["plain.safetensors", "gptq.safetensors"].map(|file| {
        let _allow = Policy::Allow.scope();
        read(folder.at(file)).expect("reads")["model.embed_tokens.weight"].dense().expect("dense")
    });
    assert!(plain.eq_exact(&calibrated).expect("compares"));
}

/// A pass over the text for each part of the weights, or one for all: the file is the same.
#[test]
fn sums_are_held_within_a_bound() {
    let folder = Folder::new();
    let file = |name: &str, options: &[&str]| {
        let options = [&["--format", "affine:3:64", "--calibrate", "text.txt", "--windows", "1"], options].concat();
        let output = folder.quantize(name, &options);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (fs::read(folder.at(name)).expect("reads"), output.stdout)
    };
    // Sixteen weights of 128 inputs, whose sums take 64 KiB each, are more than one megabyte.
    let [(once, said), (twice, said_of_passes)] =
        [file("once.safetensors", &[]), file("twice.safetensors", &["--calibration-memory", "1"])];
    assert!(once == twice, "the codes are others");
    assert_eq!(said, said_of_passes);
}

/// What a run that failed had made is not observed again, and is told of as if it were: some of the weights, or all that there are.
#[test]
fn a_calibration_goes_on_with_what_is_left() {
    // Before the weight that fails: the head, the embedding, the first layer's seven and two of the second, or all others.
    for (fails, becomes, made) in [("mlp.up", "affine:4:64", 11), ("self_attn.v", "skip", 15)] {
        let folder = Folder::new();
        let rules = |name: &str, format: &str| {
            let rules = format!(r#"{{"model.layers.1.{fails}_proj.weight": "{format}", "*": "affine:4:64"}}"#);
            fs::write(folder.at(name), rules).expect("writes");
        };
        rules("good.json", becomes);
        rules("bad.json", "rotated:nf4:64");
        let run = |name: &str, rules: &str| {
            let options = ["--rules", rules, "--calibrate", "text.txt", "--windows", "1", "--json"];
            let output = folder.quantize(name, &options);
            let said: Option<serde_json::Value> = serde_json::from_slice(&output.stdout).ok();
            (output.status.success(), said.unwrap_or_default())
        };
        assert!(!run("parts.safetensors", "bad.json").0);
        let (parts, whole) = (run("parts.safetensors", "good.json"), run("whole.safetensors", "good.json"));
        assert!(parts.0 && whole.0, "{parts:?} {whole:?}");
        assert_eq!((parts.1["resumed"].as_u64(), whole.1["resumed"].as_u64()), (Some(made), Some(0)));
        for key in ["parameters", "note"] {
            assert_eq!(parts.1[key], whole.1[key]);
        }
        let [parts, whole] =
            ["parts", "whole"].map(|name| fs::read(folder.at(&format!("{name}.safetensors"))).expect("reads"));
        assert!(parts == whole, "the codes are others");
    }
}

#[test]
fn where_nothing_is_left_no_decoder_is_read() {
    const MADE: &str = "model.layers.0.mlp.up_proj.weight";
    let folder = Folder::new();
    fs::write(folder.at("config.json"), r#"{"model_type": "of no decoder"}"#).expect("writes");
    fs::write(folder.at("rules.json"), format!(r#"{{"{MADE}": "affine:4:64"}}"#)).expect("writes");
    let inputs = [folder.0.path().to_owned(), folder.at("text.txt"), folder.at("tokenizer.json")];
    let mut work = Resumable::open(folder.at("made.safetensors"), &inputs).expect("begins");
    let weight = read(&folder.0).expect("reads")[MADE].clone();
    let recipe = format!("affine:4:64 of {weight} by gptq, its scales fitted twice, on 1 windows at most");
    let made = work.value(MADE, &recipe, || {
        let codes = "affine:4:64".parse::<AnyFormat>()?.quantize(&weight.dense()?)?;
        Ok((codes, json!({ "error": 0.5, "unmet": null })))
    });
    made.expect("is kept");
    drop(work);
    let options = ["--rules", "rules.json", "--calibrate", "text.txt", "--windows", "1", "--json"];
    let output = folder.quantize("made.safetensors", &options);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
    assert_eq!(said["resumed"].as_u64(), Some(1));
}

#[test]
fn a_decoder_advised_by_a_text_loses_less_on_another() {
    let folder = Folder::new();
    let float = folder.logits(None);
    let lost = |name: &str, options: &[&str]| {
        let (rules, file) = (format!("{name}.json"), format!("{name}.safetensors"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
        let command = command.current_dir(&folder.0).arg("advise").arg(folder.0.path());
        let output = command.args(["--bits", "4.2", "-o", &rules]).args(options).output().expect("starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let output = folder.quantize(&file, &["--rules", &rules]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let lost = folder.logits(Some(&file)).subtract(&float).and_then(|lost| lost.square()?.mean(None));
        lost.expect("a mean").item_exact::<f32>()
    };
    let (plain, observed) = (lost("plain", &[]), lost("observed", &["--calibrate", "text.txt"]));
    assert!(observed < plain, "{observed} where weights alone have {plain}");
}

/// Corrections of codes are adapters, which no type of GGUF has, whatever else is trained.
#[test]
fn a_corrected_decoder_is_not_trained_for_a_file_that_cannot_have_it() {
    let folder = Folder::new();
    let rules = r#"{"lm_head.weight": "skip", "model.embed_tokens.weight": "skip", "*": "affine:4:64"}"#;
    fs::write(folder.at("rules.json"), rules).expect("writes");
    let options = ["--rules", "rules.json", "--calibrate", "text.txt", "--windows", "1", "--correct", "2"];
    let output = folder.quantize("corrected.safetensors", &options);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::rename(folder.at("corrected.safetensors"), folder.at("model.safetensors")).expect("renames");
    fs::write(folder.at("data.jsonl"), json!({"text": text(3, 16)}).to_string()).expect("writes");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
    let command = command.current_dir(&folder.0).arg("train").arg(folder.0.path()).args(["--data", "data.jsonl"]);
    let options = ["--qat", "mxfp4", "--layers", "lm_head.weight", "--steps", "2", "-o", "m.gguf"];
    let output = command.args(options).output().expect("starts");
    let said = String::from_utf8([output.stdout, output.stderr].concat()).expect("text");
    expect![[r#"
        error: m.gguf: blk.0.ffn_down.weight: no type of GGUF has the numbers of Lora(f32[128,128])
        help: name a folder, which holds any model, or take a format that GGUF has, such as mxfp4
    "#]]
    .assert_eq(&said);
    assert_eq!(output.status.code(), Some(1));
    assert!(!folder.at(".m.gguf.training").exists());
}

/// Experts of a folder of Hugging Face, each an array of its own and of half floats.
#[test]
fn experts_are_calibrated_together() {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/decoder/golden/float/qwen3_moe");
    let folder = Folder::new();
    for entry in fs::read_dir(golden).expect("a folder") {
        let file = entry.expect("an entry").path();
        fs::copy(&file, folder.0.path().join(file.file_name().expect("a name"))).expect("copies");
    }
    let output = folder.quantize("int8.safetensors", &["--format", "int8", "--calibrate", "text.txt", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
    let found = read(folder.at("int8.safetensors")).expect("reads");
    assert_eq!(found["model.layers.1.mlp.switch_mlp.up_proj.weight"].to_string(), "Int8(bf16[4,32,32])");
    let note = said["note"].as_str().unwrap_or_default();
    assert!(!note.contains("switch_mlp") && note.ends_with(": model.embed_tokens.weight"), "{note}");

    // A token goes through two of four experts: the others are rounded, and named.
    fs::write(folder.at("one.txt"), "w1").expect("writes");
    let options = ["--format", "affine:4:32", "--calibrate", "one.txt", "--json"];
    let output = folder.quantize("one.safetensors", &options);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
    let mut named = said["note"].as_str().unwrap_or_default().split(", ");
    let experts = named.find_map(|one| one.strip_suffix(" of model.layers.1.mlp.switch_mlp.down_proj.weight"));
    let experts = experts.and_then(|experts| experts.strip_prefix("experts ")).unwrap_or_default();
    assert_eq!(experts.split(' ').count(), 2, "{}", said["note"]);
}

/// A change cannot be added to such codes block by block, and the help names a command.
#[test]
fn scaled_channels_that_a_merge_would_build_are_told_with_a_way_out() {
    let folder = Folder::new();
    let scaled = folder.at("scaled");
    fs::create_dir(&scaled).expect("makes");
    for name in ["config.json", "tokenizer.json"] {
        fs::copy(folder.at(name), scaled.join(name)).expect("copies");
    }
    let rules = r#"{"*.q_proj.weight": "skip", "*_proj.weight": "affine:3:64"}"#;
    fs::write(folder.at("rules.json"), rules).expect("writes");
    let awq = ["--rules", "rules.json", "--calibrate", "text.txt", "--method", "awq"];
    assert!(folder.quantize("scaled/model.safetensors", &awq).status.success());
    fs::write(folder.at("data.jsonl"), json!({ "text": text(2, 16) }).to_string()).expect("writes");
    let tacit = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
        command.current_dir(&folder.0).args(arguments).output().expect("starts")
    };
    let options = ["--lora", "2", "--merge", "affine:4:64", "--data", "data.jsonl", "--length", "16", "-o", "merged"];
    let output = tacit(&[&["train", "scaled"], &options[..]].concat());
    assert_eq!(output.status.code(), Some(1));
    expect![[r"
        error: a dense array of Lora(f32[128,128]) needs Lora materialized, which the policy forbids
        help: take another format, or floats, which `tacit convert --as hugging-face` makes
    "]]
    .assert_eq(&String::from_utf8(output.stderr).expect("text"));
    let aware = ["--qat", "affine:4:64", "--data", "data.jsonl", "--length", "16", "-o", "aware"];
    let output = tacit(&[&["train", "scaled"], &aware[..]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(": it is implicit already\nhelp: ") && said.contains("`tacit convert --as"), "{said}");
    assert!(tacit(&["convert", "scaled", "--as", "hugging-face", "-o", "floats"]).status.success());
    let output = tacit(&[&["train", "floats"], &options[..]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn what_cannot_be_calibrated_is_said() {
    let folder = Folder::new();
    // What says which tokens the text has is read.
    let tokenizer = fs::read(folder.at("tokenizer.json")).expect("reads");
    let output = folder.quantize("tokenizer.json", &["--format", "nf4:64", "--calibrate", "text.txt", "--force"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("tokenizer.json is what is read, and would be overwritten"), "{text}");
    assert!(fs::read(folder.at("tokenizer.json")).expect("reads") == tokenizer);
    let mut said = [
        folder.refused(&["--format", "nf4:64", "--calibrate", "none.txt"]),
        folder.refused(&["--format", "nf4:64", "--calibrate", "empty.txt"]),
    ]
    .concat();
    // A tokenizer that begins each text with a token of its own gives that to an empty one too.
    let file = folder.at("tokenizer.json");
    let plain = fs::read_to_string(&file).expect("reads");
    let mut tokenizer: serde_json::Value = serde_json::from_str(&plain).expect("json");
    let [first, second] = ["A", "B"].map(|id| json!({ "Sequence": { "id": id, "type_id": 0 } }));
    tokenizer["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [{ "SpecialToken": { "id": "w1", "type_id": 0 } }, &first],
        "pair": [&first, &second],
        "special_tokens": { "w1": { "id": "w1", "ids": [1], "tokens": ["w1"] } },
    });
    fs::write(&file, tokenizer.to_string()).expect("writes");
    said += &folder.refused(&["--format", "nf4:64", "--calibrate", "empty.txt"]);
    fs::write(&file, plain).expect("writes");
    said += &folder.refused(&["--format", "nf4:64", "--method", "awq"]);
    said += &folder.refused(&["--format", "rotated:nf4:64", "--calibrate", "text.txt"]);
    fs::remove_file(&file).expect("removes");
    said += &folder.refused(&["--format", "nf4:64", "--calibrate", "text.txt"]);
    expect![[r#"
        error: cannot read none.txt: No such file or directory (os error 2)
        error: the text in empty.txt has no tokens
        help: give a text such as the model will read
        error: the text in empty.txt has no tokens
        help: give a text such as the model will read
        error: the following required arguments were not provided:
          --calibrate <FILE>

        Usage: tacit quantize --output <OUTPUT> --calibrate <FILE> --method <METHOD> <--rules <RULES>|--format <FORMAT>> <INPUT>

        For more information, try '--help'.
        error: the parameter model.layers.0.mlp.down_proj.weight: GPTQ does not code f32[128,128] in rotated:nf4:64: a rotation makes each element of all inputs
        help: take a format whose blocks lie along the rows and divide them, or another method
        error: FOLDER/tokenizer.json: there is no such file
        help: copy it from the folder of the model that the tensors were made of, or fetch it
    "#]]
    .assert_eq(&said);
}
