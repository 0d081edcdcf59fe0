//! What commands hold in memory while they change the formats of a checkpoint, as Linux tells it.

#![cfg(target_os = "linux")]

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use mlx_rs::{Dtype, random};
use serde_json::json;
use tacit_io::{hugging_face, save};
use tacit_nn::Parameters;
use tempfile::TempDir;

/// Bytes of floats that are read at a time.
const PIECE: u64 = 64 << 20;

/// A checkpoint of matrices of `f32[rows,1024]`.
fn checkpoint(file: &Path, rows: &[i32]) {
    let layer = |(layer, &rows): (usize, &i32)| {
        let key = random::key(layer as u64).expect("a key");
        let weight = random::normal::<f32>(&[rows, 1024], None, None, &key).expect("numbers");
        (format!("layers.{layer}.weight"), weight.into())
    };
    save(file, &rows.iter().enumerate().map(layer).collect::<Parameters>()).expect("saves");
}

/// The most bytes that a command had, the largest of what was seen every few milliseconds, and what it printed, which is less than
/// a pipe holds.
fn watched(arguments: &[&str]) -> (u64, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tacit"))
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    let status = format!("/proc/{}/status", child.id());
    let mut most = 0;
    let ended = loop {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        most = most.max(kilobytes.unwrap_or(0) * 1024);
        if let Some(ended) = child.try_wait().expect("waits") {
            break ended;
        }
        sleep(Duration::from_millis(2));
    };
    assert!(ended.success(), "{arguments:?}: {ended}");
    (most, io::read_to_string(child.stdout.take().expect("a pipe")).expect("text"))
}

/// The same commands on a small input and on a large one, in a folder that goes with it.
struct Measured {
    folder: TempDir,
    small: String,
    large: String,
}

impl Measured {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("makes a folder");
        let at = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
        Self { small: at("small"), large: at("large"), folder }
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("text").to_owned()
    }

    /// Checks that a command takes at most 1.5 times its result and a piece, beside what it takes of the small input; `words`
    /// are its arguments, in which IN and OUT stand for paths. The result is what is at OUT, or of `result` bytes.
    fn check(&self, what: &str, words: &str, result: Option<u64>) -> u64 {
        let run = |input: &str, output: &str| {
            let argument = |word: &str| word.replace("IN", input).replace("OUT", output);
            let arguments: Vec<String> = words.split(' ').map(argument).collect();
            watched(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).0
        };
        // What the program itself takes.
        let own = run(&self.small, &self.at(&format!("small-{what}")));
        let output = self.at(what);
        let taken = run(&self.large, &output).saturating_sub(own);
        let result = result.unwrap_or_else(|| size(Path::new(&output)));
        let limit = result * 3 / 2 + PIECE;
        println!(
            "{what}: {:.0} MB for {:.0} MB beside {:.0}: {:.2}",
            taken as f64 / 1e6,
            result as f64 / 1e6,
            own as f64 / 1e6,
            taken as f64 / result as f64
        );
        assert!(taken <= limit, "{what}: {taken} bytes, and {limit} are the most");
        result
    }

    /// Removes what a command wrote: the next ones write as much.
    fn remove(&self, what: &str) {
        for file in [self.at(what), self.at(&format!("small-{what}"))] {
            drop(fs::remove_file(&file));
            drop(fs::remove_dir_all(&file));
        }
    }
}

/// The bytes of a file, or of all files of a folder.
fn size(path: &Path) -> u64 {
    if !path.is_dir() {
        return fs::metadata(path).expect("was written").len();
    }
    let files = fs::read_dir(path).expect("was written");
    files.map(|file| file.and_then(|file| file.metadata()).expect("was written").len()).sum()
}

#[test]
fn a_checkpoint_is_quantized_and_converted_in_pieces() {
    let mut of = Measured::new();
    for path in [&mut of.small, &mut of.large] {
        *path += ".safetensors";
    }
    checkpoint(Path::new(&of.small), &[64]);
    // An embedding of 134 MB, and 67 MB in other layers.
    checkpoint(Path::new(&of.large), &[32_768, 2048, 2048, 2048, 2048, 2048, 2048, 2048, 2048]);
    for format in ["nf4:64", "affine:4:64", "nvfp4:global", "rotated:affine:4:64", "k:4"] {
        let what = format!("{}.safetensors", format.replace(':', "-"));
        of.check(&what, &format!("quantize IN --format {format} -o OUT"), None);
        of.remove(&what);
    }
    of.check("floats.safetensors", "convert IN --as floats -o OUT", None);
}

/// A decoder in half floats: `width` of its hidden states, in so many layers. The rows of its queries and keys are in another
/// order in a GGUF file.
fn decoder(folder: &Path, [width, inner, layers, words]: [i32; 4]) {
    fs::create_dir_all(folder).expect("makes a folder");
    let mut shapes = vec![("model.embed_tokens.weight".to_owned(), vec![words, width])];
    shapes.push(("model.norm.weight".to_owned(), vec![width]));
    for layer in 0..layers {
        let mut add = |name: &str, shape: &[i32]| {
            shapes.push((format!("model.layers.{layer}.{name}.weight"), shape.to_vec()));
        };
        for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            add(&format!("self_attn.{name}"), &[width, width]);
        }
        for (name, shape) in [("gate_proj", [inner, width]), ("up_proj", [inner, width]), ("down_proj", [width, inner])]
        {
            add(&format!("mlp.{name}"), &shape);
        }
        for name in ["input_layernorm", "post_attention_layernorm"] {
            add(name, &[width]);
        }
    }
    let parameter = |(at, (name, shape)): (usize, (String, Vec<i32>))| {
        let key = random::key(at as u64).expect("a key");
        let weight = random::normal::<f32>(&shape, None, 0.05, &key).and_then(|x| x.as_dtype(Dtype::Float16));
        (name, weight.expect("numbers").into())
    };
    let parameters: Parameters = shapes.into_iter().enumerate().map(parameter).collect();
    hugging_face::write(folder.join("model.safetensors"), parameters).expect("writes");
    let config = json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": width,
        "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 4,
        "vocab_size": words, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 512,
        "tie_word_embeddings": true, "torch_dtype": "float16",
    });
    fs::write(folder.join("config.json"), config.to_string()).expect("writes");
}

/// A tokenizer of one word, beside the models: those of files have none.
fn tokenizer(folder: &Path) {
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "vocab": { "a": 0 }, "unk_token": "a" },
    });
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).expect("writes");
}

#[test]
fn a_decoder_is_loaded_quantized_and_converted_in_pieces() {
    let mut of = Measured::new();
    decoder(Path::new(&of.small), [128, 256, 1, 256]);
    // An embedding of 67 MB, and 134 MB in the layers.
    decoder(Path::new(&of.large), [1024, 4096, 4, 32_768]);
    let folders = [of.small.clone(), of.large.clone()];
    of.check("q8_0.gguf", "convert IN --as gguf --format q8_0 -o OUT", None);
    (of.small, of.large) = (of.at("small-q8_0.gguf"), of.at("q8_0.gguf"));
    tokenizer(of.folder.path());
    of.check("load", "generate IN --prompt a --max-tokens 1", Some(size(Path::new(&of.large))));
    for (what, target) in [("tacit.safetensors", "tacit"), ("same.gguf", "gguf"), ("mlx", "mlx-lm")] {
        of.check(what, &format!("convert IN --as {target} -o OUT"), None);
        of.remove(what);
    }
    of.check("q4_0.gguf", "convert IN --as gguf --format q4_0 -o OUT", None);
    let quantized = of.check("nf4.safetensors", "quantize IN --format nf4:64 -o OUT", None);
    of.check("floats.safetensors", "convert IN --as floats -o OUT", None);
    // Floats that become codes as they are loaded.
    for folder in &folders {
        tokenizer(Path::new(folder));
    }
    [of.small, of.large] = folders;
    of.check("quantized", "generate IN --weights nf4:64 --prompt a --max-tokens 1", Some(quantized));
}

/// What commands say of their own memory is what the system says of them.
#[test]
fn the_peak_that_is_told_is_that_of_the_process() {
    let of = Measured::new();
    let own = |file: &str| format!("{}/{file}", env!("CARGO_MANIFEST_DIR"));
    let (model, rows) = (own("../../tests/decoder/golden/tokenizers/spm.gguf"), own("tests/rows.jsonl"));
    let adapter = of.at("adapter");
    let generate = ["generate", &model, "--prompt", "Hello", "--max-tokens", "12", "--json"];
    let train =
        ["train", &model, "--lora", "4", "--length", "32", "--steps", "3", "--data", &rows, "-o", &adapter, "--json"];
    for arguments in [&generate[..], &train[..]] {
        let (peak, printed) = watched(arguments);
        let json: serde_json::Value = serde_json::from_str(&printed).expect("json");
        let told = json["peak_bytes"].as_u64().expect("a number");
        assert!(told.abs_diff(peak) <= peak / 50, "{arguments:?}: {told} bytes are told, and there were {peak}");
        // What MLX allocated is a part of it.
        let allocated = json["allocator_peak_bytes"].as_u64();
        assert_eq!(allocated.map(|allocated| allocated < told), (arguments[0] == "train").then_some(true), "{json}");
    }
}
