//! `tacit perplexity` on a model whose perplexity is computed by hand.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use expect_test::expect;
use mlx_rs::{Array, Dtype};
use tacit_arrays::format::AnyFormat;
use tacit_io::save;
use tacit_models::{Convention, Windows};
use tacit_nn::Parameters;
use tempfile::TempDir;

/// A folder of a test, which is gone after it.
struct Folder(TempDir);

impl Folder {
    /// A folder with a decoder whose only layer adds nothing, so that the last token alone says what comes next, and a file of
    /// tokens.
    ///
    /// The embedding of token `t` is the unit vector `t` of 64; the last norm makes that 8 times as long, and so the head has an
    /// eighth of the logarithms of what each token follows with.
    fn new(tokens: &str) -> Self {
        const PROBABILITIES: [[f32; 4]; 4] = [
            [1.0 / 2.0, 1.0 / 4.0, 1.0 / 8.0, 1.0 / 8.0],
            [1.0 / 4.0; 4],
            [1.0 / 8.0, 1.0 / 8.0, 1.0 / 4.0, 1.0 / 2.0],
            [1.0 / 4.0, 1.0 / 2.0, 1.0 / 8.0, 1.0 / 8.0],
        ];
        let folder = Self(tempfile::tempdir().expect("makes a folder"));
        let (mut embedding, mut head) = ([0.0; 4 * 64], [0.0; 4 * 64]);
        for (t, next) in PROBABILITIES.iter().enumerate() {
            embedding[64 * t + t] = 1.0;
            for (word, p) in next.iter().enumerate() {
                head[64 * word + t] = p.ln() / 8.0;
            }
        }
        let layer = "model.layers.0";
        let mut parameters = Parameters::from([
            ("model.embed_tokens.weight".to_owned(), Array::from_slice(&embedding, &[4, 64]).into()),
            ("lm_head.weight".to_owned(), Array::from_slice(&head, &[4, 64]).into()),
        ]);
        for norm in
            ["model.norm".to_owned(), format!("{layer}.input_layernorm"), format!("{layer}.post_attention_layernorm")]
        {
            parameters.insert(format!("{norm}.weight"), Array::from_slice(&[1.0f32; 64], &[64]).into());
        }
        for product in ["self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down"] {
            parameters.insert(
                format!("{layer}.{product}_proj.weight"),
                Array::from_slice(&[0.0f32; 64 * 64], &[64, 64]).into(),
            );
        }
        save(folder.at("model.safetensors"), &parameters).expect("saves");
        let config = r#"{
            "model_type": "llama", "vocab_size": 4, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
            "num_attention_heads": 1, "num_key_value_heads": 1, "rms_norm_eps": 1e-12, "rope_theta": 10000.0,
            "tie_word_embeddings": false
        }"#;
        fs::write(folder.at("config.json"), config).expect("writes");
        fs::write(folder.at("tokens"), tokens).expect("writes");
        fs::write(folder.at("coarse.toml"), "\"lm_head.weight\" = \"nf4:64\"\n").expect("writes");
        folder
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, options: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
        command
            .current_dir(&self.0)
            .arg("perplexity")
            .arg(self.0.path())
            .arg("--tokens")
            .arg(self.at("tokens"))
            .args(options);
        command
    }

    fn run(&self, options: &[&str]) -> Output {
        self.command(options).output().expect("starts")
    }

    /// What the program says with these options, and with this code.
    fn said(&self, options: &[&str], code: i32) -> String {
        let output = self.run(options);
        let text = String::from_utf8([output.stdout, output.stderr].concat()).expect("text");
        assert_eq!(output.status.code(), Some(code), "{text}");
        text.replace(self.0.path().to_str().expect("text"), "FOLDER")
    }

    fn json(&self, options: &[&str]) -> serde_json::Value {
        let output = self.run(&[options, &["--json"]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("json")
    }
}

fn number(json: &serde_json::Value) -> f64 {
    json.as_f64().expect("a number")
}

#[test]
fn perplexities_are_those_computed_by_hand() {
    // The last token is in no whole window.
    let folder = Folder::new("[0, 0, 1, 2,\n 3, 1, 0, 2, 1]");
    let bit = 2f64.ln();
    // In bits: 1, 2 and 2 of the first window, then 1, 2 and 3.
    for (convention, bits, squares, count) in [("mlx-lm", 11.0, 23.0, 6.0), ("llama.cpp", 5.0, 13.0, 2.0)] {
        let json = folder.json(&["--window", "4", "--convention", convention]);
        let row = &json["formats"][0];
        let mean: f64 = bits / count;
        let (perplexity, variance) = (mean.exp2(), squares / count - mean * mean);
        let error = (variance / (count - 1.0)).sqrt() * bit * perplexity;
        assert!((number(&row["perplexity"]) / perplexity - 1.0).abs() < 1e-5, "{json}");
        assert!((number(&row["standard_error"]) / error - 1.0).abs() < 1e-4, "{json}");
        assert_eq!(
            (number(&json["tokens"]), &json["windows"], &json["convention"]),
            (count, &2.into(), &convention.into())
        );
        assert_eq!(row["bits_per_weight"], 32.0);
    }
    // Of the first window alone: 5 bits of 3 tokens.
    let json = folder.json(&["--window", "4", "--convention", "mlx-lm", "--windows", "1"]);
    assert!((number(&json["formats"][0]["perplexity"]) / (5f64 / 3.0).exp2() - 1.0).abs() < 1e-5, "{json}");
}

/// The first of two windows begins with another token than the text has there.
#[test]
fn the_first_token_of_a_window_is_the_one_that_begins_a_text() {
    let folder = Folder::new("");
    let (config, mut model) = tacit_models::load(&folder.0).expect("loads");
    let (tokens, bits) = ([0, 0, 1, 2, 3, 1, 0, 2], |perplexity: f64| perplexity.log2());
    // In bits: 3, 2 and 2 of the first window, then 3, 2 and 3.
    let windows = Windows { tokens: &tokens, length: 4, convention: Convention::MlxLm, first: Some(2) };
    let found = tacit_models::perplexity(&config, &mut model, &windows, |_, _| ()).expect("measures");
    assert!((bits(found.perplexity) - 15.0 / 6.0).abs() < 1e-5, "{found:?}");
    // One token has no standard error.
    let windows = Windows { tokens: &tokens[..2], length: 2, convention: Convention::MlxLm, first: Some(2) };
    let found = tacit_models::perplexity(&config, &mut model, &windows, |_, _| ()).expect("measures");
    assert!((bits(found.perplexity) - 3.0).abs() < 1e-5, "{found:?}");
    assert_eq!((found.error, found.tokens), (None, 1));
}

/// A Mac has no such disk.
#[test]
#[cfg(target_os = "linux")]
fn what_was_measured_is_said_where_it_cannot_be_drawn() {
    let folder = Folder::new("0 0 1 2 3 1 0 2");
    // A disk that is always full.
    let output = folder.run(&["--window", "4", "--json", "--svg", "/dev/full"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("error: cannot write /dev/full: "), "{output:?}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
    assert!(number(&json["formats"][0]["perplexity"]) > 1.0, "{json}");
}

#[test]
fn a_format_with_commas_is_one_format() {
    let folder = Folder::new("0 0 1 2 3 1 0 2");
    let json = folder.json(&["--window", "4", "--formats", "codebook:32:-1,-0.25,0.25,1"]);
    assert_eq!(json["formats"].as_array().map(Vec::len), Some(1));
    assert!(number(&json["formats"][0]["bits_per_weight"]) < 8.0, "{json}");
}

#[test]
fn a_format_that_no_weight_took_is_not_measured() {
    let folder = Folder::new("0 0 1 2 3 1 0 2");
    let file = folder.at("model.safetensors");
    let packed = Command::new(env!("CARGO_BIN_EXE_tacit"))
        .args(["quantize".as_ref(), file.as_os_str(), "--format".as_ref(), "int8:64".as_ref()])
        .args(["--force".as_ref(), "-o".as_ref(), folder.at("packed.safetensors").as_os_str()])
        .status();
    assert!(packed.expect("starts").success());
    fs::rename(folder.at("packed.safetensors"), file).expect("renames");
    expect![[r#"
        format    perplexity       error    bits         bytes
        none          5.6607      1.9658   8.654         31776
        error: the rules quantize no parameter of the model: model.layers.0.mlp.down_proj.weight: it is implicit already
        help: name other parameters or another format: its parameters are lm_head.weight, model.embed_tokens.weight, model.layers.0.input_layernorm.weight, model.layers.0.mlp.down_proj.weight, model.layers.0.mlp.gate_proj.weight, model.layers.0.mlp.up_proj.weight, model.layers.0.post_attention_layernorm.weight, model.layers.0.self_attn.k_proj.weight, model.layers.0.self_attn.o_proj.weight, model.layers.0.self_attn.q_proj.weight, model.layers.0.self_attn.v_proj.weight, model.norm.weight; codes are quantized anew by `tacit quantize`, or once they are made dense
    "#]]
    .assert_eq(&folder.said(&["--window", "4", "--formats", "none", "--formats", "nf4:64"], 1));
}

/// Where some weights are floats and others codes, the output says which stay.
#[test]
fn codes_that_stay_are_told() {
    let folder = Folder::new("0 0 1 2 3 1 0 2");
    let file = folder.at("model.safetensors");
    let mut parameters = tacit_io::read(&file).expect("reads");
    let up = "model.layers.0.mlp.up_proj.weight";
    let format: AnyFormat = "int8:64".parse().expect("a format");
    let codes = format.quantize(&parameters[up].dense().expect("dense")).expect("quantizes");
    parameters.insert(up.to_owned(), codes);
    fs::remove_file(&file).expect("removes");
    save(&file, &parameters).expect("saves");
    expect![[r#"
        format    perplexity       error    bits         bytes
        nf4:64        5.6569      1.9605   5.316         19520
        2 tokens in 2 windows of 4 counted as llama.cpp does: the later half of each
        lm_head.weight is in affine:8:64, model.embed_tokens.weight is in affine:8:64: embedding and head have at least 6 bits, since each token goes through them; rules of your own decide otherwise
        model.layers.0.mlp.up_proj.weight, Int8(f32[64,64]): codes stay as they are, and `tacit quantize` makes others of them
    "#]]
    .assert_eq(&folder.said(&["--window", "4", "--formats", "nf4:64"], 0));
}

/// A rule that is misspelt would be a measurement of another model.
#[test]
fn rules_that_name_nothing_are_told() {
    let folder = Folder::new("0 0 1 2 3 1 0 2");
    fs::write(folder.at("rules.json"), r#"{"lm_head.weight": "int8:64", "model.layer.*": "nf4:64"}"#).expect("writes");
    let run = folder.run(&["--window", "4", "--formats", "rules.json"]);
    assert_eq!(String::from_utf8_lossy(&run.stderr), "these rules name no parameter: model.layer.*\n");
    assert!(run.status.success());
}

/// Weights that a format does not fit stay floats, and are no measurement of the format.
#[test]
fn weights_that_a_format_does_not_fit_are_told() {
    let folder = Folder::new("0 0 1 2 3 1 0 2");
    let rules = r#"{"model.layers.*": "affine:4:128", "lm_head.weight": "int8:64"}"#;
    fs::write(folder.at("rules.json"), rules).expect("writes");
    let run = folder.run(&["--window", "4", "--formats", "rules.json"]);
    expect![[r#"
        model.layers.0.mlp.down_proj.weight and 6 more stay as they are: the last axis of f32[64,64] is not whole groups of 128, as affine has them
    "#]]
    .assert_eq(&String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success());
}

#[test]
fn a_loss_that_is_not_finite_is_an_error() {
    let folder = Folder::new("0 0 1 2");
    let file = folder.at("model.safetensors");
    let mut parameters = tacit_io::read(&file).expect("reads");
    parameters.insert("model.norm.weight".to_owned(), Array::from_slice(&[f32::NAN; 64], &[64]).into());
    fs::remove_file(&file).expect("removes");
    save(&file, &parameters).expect("saves");
    expect![[r#"
        error: the loss of token 3 in window 1 is NaN
        help: check the weights: some are not finite, or too large for their dtype
    "#]]
    .assert_eq(&folder.said(&["--window", "4"], 1));
}

#[test]
fn formats_stand_in_one_table_beside_their_bits() {
    let folder = Folder::new("0 0 1 2 3 1 0 2");
    let formats = ["none", "affine:8:64", "nf4:64", "coarse.toml"].map(|format| ["--formats", format]).concat();
    expect![[r#"
        format         perplexity       error    bits         bytes
        none               5.6569      1.9605  32.000        117504
        affine:8:64        5.6569      1.9605   9.150         33600
        nf4:64             5.6569      1.9605   4.758         17472
        coarse.toml        5.7651      2.1072  31.760        116624
        2 tokens in 2 windows of 4 counted as llama.cpp does: the later half of each
        lm_head.weight is in affine:8:64, model.embed_tokens.weight is in affine:8:64: embedding and head have at least 6 bits, since each token goes through them; rules of your own decide otherwise
    "#]]
    .assert_eq(&folder.said(&[&["--window", "4"][..], &*formats].concat(), 0));
}

/// The codes of the head are multiplied as integers, its table and the activations are rounded for that.
#[test]
fn activations_of_8_bits_change_little() {
    let folder = Folder::new("0 0 1 2 3 1 0 2");
    expect![[r#"
        format         perplexity       error    bits         bytes
        coarse.toml        5.7607      2.1013  31.760        116624
        2 tokens in 2 windows of 4 counted as llama.cpp does: the later half of each, with activations in 8 bits
        1 parameter rounds activations to 8 bits; model.embed_tokens.weight and 7 more: it is dense
    "#]]
    .assert_eq(&folder.said(&["--window", "4", "--formats", "coarse.toml", "--int8"], 0));
    let file = folder.at("model.safetensors");
    let replaced = |parameters: &Parameters| {
        fs::remove_file(&file).expect("removes");
        save(&file, parameters).expect("saves");
    };
    let floats = tacit_io::read(&file).expect("reads");
    let dense = |path: &str| floats[path].dense().expect("dense");
    let nf4: AnyFormat = "nf4:64".parse().expect("a format");
    let mut packed = floats.clone();
    let head = "lm_head.weight";
    packed.insert(head.to_owned(), nf4.quantize(&dense(head)).expect("quantizes"));
    replaced(&packed);
    let perplexity = |options: &[&str]| {
        let json = folder.json(&[&["--window", "4"][..], options].concat());
        assert_eq!(json["int8"], options.contains(&"--int8"));
        number(&json["formats"][0]["perplexity"])
    };
    let off = (perplexity(&["--int8"]) / perplexity(&[]) - 1.0).abs();
    assert!((1e-5..1e-2).contains(&off), "{off}");

    let mut halves = Parameters::new();
    for path in floats.keys() {
        halves.insert(path.clone(), dense(path).as_dtype(Dtype::Bfloat16).expect("is cast").into());
    }
    replaced(&halves);
    expect![[r#"
        error: no parameter rounds activations to 8 bits; lm_head.weight and 8 more: bf16 has no products with activations in 8 bits
        help: quantize weights first, in a format whose codes are multiplied as integers, such as nf4:64
    "#]]
    .assert_eq(&folder.said(&["--window", "4", "--int8"], 1));
}

#[test]
fn the_table_is_drawn_with_its_errors() {
    let folder = Folder::new("0 0 1 2 3 1 0 2");
    let drawn = |options: &[&str], name: &str| {
        let output = folder.run(&[options, &["--svg", name]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::read_to_string(folder.at(name)).expect("is drawn")
    };
    // Of all that is drawn bars alone are so wide.
    let bars = |svg: &str| svg.matches("stroke-width=\"6\"").count();
    let svg = drawn(&["--window", "4", "--formats", "none", "--formats", "coarse.toml"], "two.svg");
    assert!(svg.starts_with("<svg ") && svg.contains("perplexity of 2 tokens, counted as llama.cpp does"), "{svg}");
    for words in [">none<", ">5.6569 ± 1.9605, 32.000 bits<", ">coarse.toml<", ">5.7651 ± 2.1072, 31.760 bits<"] {
        assert!(svg.contains(words), "{words}: {svg}");
    }
    assert_eq!(bars(&svg), 2, "{svg}");
    // The error of one token is not known.
    let svg = drawn(&["--window", "2", "--windows", "1", "--convention", "mlx-lm"], "one.svg");
    assert!(svg.contains("perplexity of 1 tokens, counted as mlx-lm does") && !svg.contains('±'), "{svg}");
    assert_eq!(bars(&svg), 0, "{svg}");
    // Where the drawing goes to the standard output, the table does not.
    let output = folder.run(&["--window", "4", "--svg", "/dev/stdout"]);
    let (svg, table) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && table.contains("5.6569"), "{svg}{table}");
}

#[test]
fn a_reader_that_goes_ends_no_measurement() {
    let folder = Folder::new("0 0 1 2 3 1 0 2");
    let mut command =
        folder.command(&["--window", "4", "--formats", "none", "--formats", "affine:8:64", "--svg", "own.svg"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("ends").code(), Some(0));
    assert!(fs::read_to_string(folder.at("own.svg")).expect("was drawn").starts_with("<svg "));
}

/// Nothing that is read is overwritten, and what else is there only by force.
#[test]
fn a_drawing_replaces_nothing_by_itself() {
    let folder = Folder::new("0 0 1 2 3 1 0 2");
    fs::write(folder.at("mine.svg"), "mine").expect("writes");
    let rules = ["--window", "4", "--formats", "coarse.toml", "--svg"];
    let with = |file: &'static str, more: &[&'static str]| [&rules[..], &[file], more].concat();
    expect![[r#"
        error: mine.svg is there already
        help: write to another place, or replace it with `--force`
    "#]]
    .assert_eq(&folder.said(&with("mine.svg", &[]), 1));
    let of_text = ["tokenizer_config.json", "generation_config.json"];
    for name in of_text {
        fs::write(folder.at(name), "{}").expect("writes");
    }
    for file in ["tokens", "coarse.toml", "model.safetensors", "config.json"].into_iter().chain(of_text) {
        let before = fs::read(folder.at(file)).expect("reads");
        let output = folder.run(&with(file, &["--force"]));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("{file} is what is read, and would be overwritten")), "{said}");
        assert!(fs::read(folder.at(file)).expect("reads") == before, "{file}");
    }
    assert!(folder.run(&with("mine.svg", &["--force"])).status.success());
    assert!(fs::read_to_string(folder.at("mine.svg")).expect("reads").starts_with("<svg "));
}

/// As `common_tokenize` of llama-perplexity does it, which parses no special tokens, and as `mlx_lm.perplexity` does it.
#[test]
fn special_tokens_in_a_text_are_those_of_the_convention() {
    let folder = Folder::new("0 1 2 1 0 1 2");
    let tokenizer = r#"{
        "model": {"type": "BPE", "vocab": {"<": 0, "s": 1, ">": 2, "<s>": 3}, "merges": []},
        "added_tokens": [{
            "id": 3, "content": "<s>", "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false
        }]
    }"#;
    fs::write(folder.at("tokenizer.json"), tokenizer).expect("writes");
    let text = folder.at("text");
    fs::write(&text, "<s>s<s>").expect("writes");
    let of_text = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
        command.arg("perplexity").arg(folder.0.path()).arg("--text").arg(&text).args(["--window", "3", "--json"]);
        let output = command.args(options).output().expect("starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("json")
    };
    assert_eq!(of_text(&[]), folder.json(&["--window", "3"]));
    fs::write(folder.at("tokens"), "3 1 3").expect("writes");
    let of_mlx_lm = ["--convention", "mlx-lm"];
    assert_eq!(of_text(&of_mlx_lm), folder.json(&[&of_mlx_lm[..], &["--window", "3"]].concat()));
}

#[test]
fn what_cannot_be_measured_is_said() {
    let folder = Folder::new("0 1 x");
    let mut said = folder.said(&["--window", "4"], 1);
    fs::write(folder.at("tokens"), "0 1 2").expect("writes");
    said += &[folder.said(&["--window", "4"], 1), folder.said(&["--window", "2"], 1)].concat();
    fs::write(folder.at("tokens"), "0 1 2 4").expect("writes");
    said += &[
        folder.said(&["--window", "4"], 1),
        folder.said(&["--window", "1", "--convention", "mlx-lm"], 1),
        folder.said(&["--window", "3", "--formats", "none", "--formats", "no.toml"], 1),
    ]
    .concat();
    assert_eq!(folder.run(&["--windows", "0"]).status.code(), Some(2));
    fs::write(folder.at("tokens"), "x".repeat(99)).expect("writes");
    said += &[folder.said(&["--window", "4"], 1), folder.said(&["--window", "3", "--formats", "nf5"], 1)].concat();
    expect![[r#"
        error: FOLDER/tokens: x is not the number of a token
        help: write the numbers of tokens alone, or give the text with `--text`
        error: a text of 3 tokens has no window of 4
        help: give a longer text or shorter windows
        error: no token counts in windows of 2 tokens
        help: give at least 3 tokens a window
        error: token 4 is not among the 4 that the model knows
        help: give tokens of this model's tokenizer
        error: no token counts in windows of 1 tokens
        help: give at least 2 tokens a window
        error: cannot read no.toml: No such file or directory (os error 2)
        error: FOLDER/tokens: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx.. is not the number of a token
        help: write the numbers of tokens alone, or give the text with `--text`
        error: no format is named nf5
        help: name one of affine, bf16, binary, codebook, dynamic, e4m3, e5m2, f16, fp4, int8, k, mxfp4, mxfp8, nf4, nvfp4, rotated, symmetric, ternary
    "#]]
    .assert_eq(&said);
}
