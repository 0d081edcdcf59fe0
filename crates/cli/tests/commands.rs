//! The program as a person calls it.

#[path = "commands/decoders.rs"]
mod decoders;
#[path = "commands/ends.rs"]
mod ends;
#[path = "commands/messages.rs"]
mod messages;
#[path = "commands/names.rs"]
mod names;

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use expect_test::{expect, expect_file};
use mlx_rs::{Array, ops, random};
use tacit_io::save;
use tacit_nn::Parameters;
use tempfile::TempDir;

/// A folder of a test, which is gone after it.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("makes a folder"))
    }

    /// A checkpoint of a matrix that no format holds exactly, one whose rows are no whole groups, and a vector.
    fn checkpoint(&self) -> String {
        let path = self.at("dense.safetensors");
        let ramp =
            ops::arange::<_, f32>(0, 8 * 64, None).expect("a ramp").divide(Array::from_f32(256.0)).expect("scaled");
        let ramp = ramp.subtract(Array::from_f32(1.0)).expect("shifted").reshape(&[8, 64]).expect("a matrix");
        let parameters = Parameters::from([
            ("layer.bias".to_owned(), ops::zeros::<f32>(&[8]).expect("zeros").into()),
            ("layer.weight".to_owned(), ramp.into()),
            ("odd.weight".to_owned(), ops::ones::<f32>(&[4, 3]).expect("ones").into()),
        ]);
        save(&path, &parameters).expect("saves");
        path
    }

    /// A checkpoint of so many matrices of `f32[256,256]`, each of its own numbers.
    fn layers(&self, count: u64) -> String {
        let path = self.at("layers.safetensors");
        let layer = |layer: u64| {
            let key = random::key(layer).expect("a key");
            let weight = random::normal::<f32>(&[256, 256], None, None, &key).expect("numbers");
            (format!("layers.{layer}.weight"), weight.into())
        };
        save(&path, &(0..count).map(layer).collect()).expect("saves");
        path
    }

    fn at(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("a path that is text").to_owned()
    }

    /// What is printed on either stream, with this exit code.
    fn said(&self, arguments: &[&str], code: i32) -> String {
        let output = tacit(arguments);
        let text = String::from_utf8([output.stdout, output.stderr].concat()).expect("text");
        assert_eq!(output.status.code(), Some(code), "{text}");
        text.replace(self.0.path().to_str().expect("text"), "FOLDER")
    }
}

fn tacit(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tacit")).args(arguments).output().expect("starts")
}

#[test]
fn a_checkpoint_is_inspected_quantized_compared_and_converted() {
    let folder = Folder::new();
    let (dense, packed) = (folder.checkpoint(), folder.at("packed.safetensors"));
    expect![[r#"
        parameter     value      format    bits  bytes  spread and reach
        layer.bias    f32[8]             32.000     32
        layer.weight  f32[8,64]          32.000   2048  ████████████████ 1.000
        odd.weight    f32[4,3]           32.000     48  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁█ 1.000
        3 parameters, 532 elements, 2128 bytes, 32.000 bits an element; read by load
    "#]]
    .assert_eq(&folder.said(&["inspect", &dense, "--histograms"], 0));
    expect![[r#"
        parameter     value                error  before  after
        layer.bias    f32[8]                          32     32  it is no matrix
        layer.weight  Affine(f32[8,64])  0.00401    2048    384
        odd.weight    f32[4,3]                        48     48  the last axis of f32[4,3] is not whole groups of 32, as affine has them
        2128 bytes before, 464 after
    "#]]
    .assert_eq(&folder.said(&["quantize", &dense, "--format", "affine:4:32", "-o", &packed], 0));
    expect![[r#"
        parameter     value              format         bits  bytes
        layer.bias    f32[8]                          32.000     32
        layer.weight  Affine(f32[8,64])  affine:4:32   6.000    384
        odd.weight    f32[4,3]                        32.000     48
        3 parameters, 532 elements, 464 bytes, 6.977 bits an element; read by load
    "#]]
    .assert_eq(&folder.said(&["inspect", &packed], 0));
    expect![[r#"
        parameter     a          b                    error    cosine  sqnr dB
        layer.weight  f32[8,64]  Affine(f32[8,64])  4.01e-3  0.999992     47.9
        layer.bias    f32[8]     f32[8]              0.00e0  1.000000    exact
        odd.weight    f32[4,3]   f32[4,3]            0.00e0  1.000000    exact
    "#]]
    .assert_eq(&folder.said(&["compare", &dense, &packed], 0));
    expect![[r#"
        parameter     a          b                    error    cosine  sqnr dB
        layer.weight  f32[8,64]  Affine(f32[8,64])  4.01e-3  0.999992     47.9
        layer.bias    f32[8]     f32[8]              0.00e0  1.000000    exact
        odd.weight    f32[4,3]   f32[4,3]            0.00e0  1.000000    exact
        farther than 0.001: 1 of 3 parameters
    "#]]
    .assert_eq(&folder.said(&["compare", &dense, &packed, "--max-error", "0.001"], 1));
    let converted = folder.at("mlx");
    expect![[r#"
        3 parameters, 464 bytes before, 464 after
    "#]]
    .assert_eq(&folder.said(&["convert", &packed, "--as", "mlx-lm", "-o", &converted], 0));
    expect![[r#"
        parameter     a                  b                   error    cosine  sqnr dB
        layer.bias    f32[8]             f32[8]             0.00e0  1.000000    exact
        layer.weight  Affine(f32[8,64])  Affine(f32[8,64])  0.00e0  1.000000    exact
        odd.weight    f32[4,3]           f32[4,3]           0.00e0  1.000000    exact
    "#]]
    .assert_eq(&folder.said(&["compare", &packed, &converted, "--max-error", "0"], 0));
}

/// Only a format that does not fit a matrix leaves it as it is.
#[test]
fn what_cannot_be_quantized_ends_the_command() {
    let folder = Folder::new();
    let (input, output) = (folder.at("in.safetensors"), folder.at("out.safetensors"));
    let of = |numbers: &[f32]| {
        let weight = Array::from_slice(&numbers.repeat(64), &[2, 64]);
        let fine = ops::ones::<f32>(&[8, 64]).expect("ones");
        save(&input, &Parameters::from([("a.weight".to_owned(), fine.into()), ("b.weight".to_owned(), weight.into())]))
            .expect("saves");
    };
    of(&[2e38, -2e38]);
    expect![[r#"
        error: the parameter b.weight: what affine:4:64 loses of f32[2,64] is not finite
        help: leave it as it is, or choose a format whose scales hold its greatest numbers
    "#]]
    .assert_eq(&folder.said(&["quantize", &input, "--format", "affine:4:64", "-o", &output], 1));
    let drawn = "nf4:64+stochastic";
    for command in [
        ["quantize", &input, "--format", drawn, "-o", &output].as_slice(),
        &["advise", &input, "--bits", "8", "--formats", drawn],
    ] {
        let failed = tacit(command);
        let said = String::from_utf8(failed.stderr).expect("text");
        let reason = "error: the format nf4:64+stochastic rounds by a random key, and there is none here\nhelp: ";
        assert!(failed.status.code() == Some(1) && said.starts_with(reason), "{said}");
    }
    of(&[1.0, f32::NAN]);
    let failed = tacit(&["quantize", &input, "--format", "nf4:64", "-o", &output]);
    let said = String::from_utf8(failed.stderr).expect("text");
    assert!(failed.status.code() == Some(1) && said.contains("b.weight: "), "{said}");
    assert!(!fs::exists(&output).expect("a folder"));
    // Of a run that made nothing, nothing is left.
    let (lone, none) = (folder.at("lone.safetensors"), folder.at("none.safetensors"));
    let weight = Array::from_slice(&[f32::NAN; 64], &[1, 64]);
    save(&lone, &Parameters::from([("b.weight".to_owned(), weight.into())])).expect("saves");
    let failed = tacit(&["quantize", &lone, "--format", "nf4:64", "-o", &none]);
    let said = String::from_utf8(failed.stderr).expect("text");
    assert!(failed.status.code() == Some(1) && said.contains("b.weight: "), "{said}");
    assert!(!fs::exists(folder.at(".none.safetensors.parts")).expect("a folder"));
}

#[test]
fn formats_are_advised_within_the_bits_and_quantize_by_the_rules() {
    let folder = Folder::new();
    let key = |seed| random::key(seed).expect("a key");
    let weight = |seed, scale: f32| {
        let weight = random::normal::<f32>(&[64, 128], None, None, Some(&key(seed))).expect("normal numbers");
        weight.multiply(Array::from_f32(scale)).expect("scaled")
    };
    let parameters = Parameters::from([
        ("a.weight".to_owned(), weight(1, 4.0).into()),
        ("b.weight".to_owned(), weight(2, 1.0).into()),
        ("c.weight".to_owned(), weight(3, 0.25).into()),
        ("norm.weight".to_owned(), ops::ones::<f32>(&[128]).expect("ones").into()),
    ]);
    let [dense, rules, packed] = ["dense.safetensors", "rules.json", "packed.safetensors"].map(|name| folder.at(name));
    save(&dense, &parameters).expect("saves");
    let formats = "affine:2:64,affine:4:64,nf4:64:double,affine:6:64";
    expect![[r#"
        parameter    aval         format           bits    error   share
        a.weight     f32[64,128]  affine:6:64     7.000  0.02214  31.1 %
        b.weight     f32[64,128]  nf4:64:double   4.133  0.09164  32.5 %
        c.weight     f32[64,128]  affine:2:64     3.000  0.38624  36.5 %
        norm.weight  f32[128]                    32.000
        4.852 bits an element, error 0.03849; no choice within the budget has less than 0.03579
        rules go to FOLDER/rules.json
    "#]]
    .assert_eq(&folder.said(&["advise", &dense, "--bits", "5", "--formats", formats, "-o", &rules], 0));
    assert_eq!(tacit(&["quantize", &dense, "--rules", &rules, "-o", &packed]).status.code(), Some(0));
    let inspected = String::from_utf8(tacit(&["inspect", &packed]).stdout).expect("text");
    let bits = inspected.split(", ").find_map(|part| part.strip_suffix(" bits an element; read by load\n"));
    assert!(bits.expect("a number").parse::<f64>().expect("a number") <= 5.0, "{inspected}");
    // A matrix that is multiplied with next to nothing is worth few bits.
    let inputs = folder.at("inputs.safetensors");
    let small = weight(4, 1e-3);
    save(&inputs, &Parameters::from([("a.weight".to_owned(), small.into())])).expect("saves");
    expect![[r#"
        parameter    aval         format                  bits    error   share
        a.weight     f32[64,128]  affine:2:64+search     3.000  0.34891   0.2 %
        b.weight     f32[64,128]  affine:6:64+search     7.000  0.02080  48.8 %
        c.weight     f32[64,128]  nf4:64:double+search   4.133  0.08449  50.9 %
        norm.weight  f32[128]                           32.000
        4.852 bits an element, error 0.02887; no choice within the budget has less than 0.02777
    "#]]
    .assert_eq(
        &folder
            .said(&["advise", &dense, "--bits", "5", "--formats", formats, "--fit", "search", "--inputs", &inputs], 0),
    );
    expect![[r#"
        error: no choice of these formats takes 2 bits an element or fewer: the least is 5.140
        help: allow more bits, or name a format of fewer; parameters that no format fits stay as they are, and count
    "#]]
    .assert_eq(&folder.said(&["advise", &dense, "--bits", "2", "--formats", "affine:4:64"], 1));
    // No text is read in windows.
    let of_text = tacit(&["advise", &dense, "--bits", "6", "--inputs", &dense, "--windows", "2"]);
    assert_eq!(of_text.status.code(), Some(2));
    let json = tacit(&["advise", &dense, "--bits", "6", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("is JSON");
    assert!(json["bits"].as_f64().expect("a number") <= 6.0 && json["rows"]["a.weight"]["aval"] == "f32[64,128]");
}

#[test]
fn the_same_is_there_as_data() {
    let folder = Folder::new();
    let dense = folder.checkpoint();
    expect![[r#"
        {
          "read_by": "load",
          "parameters": [
            {
              "path": "layer.bias",
              "value": "f32[8]",
              "bits": 32.0,
              "nbytes": 32
            },
            {
              "path": "layer.weight",
              "value": "f32[8,64]",
              "bits": 32.0,
              "nbytes": 2048
            },
            {
              "path": "odd.weight",
              "value": "f32[4,3]",
              "bits": 32.0,
              "nbytes": 48
            }
          ],
          "elements": 532,
          "nbytes": 2128
        }
    "#]]
    .assert_eq(&folder.said(&["inspect", &dense, "--json"], 0));
}

#[test]
fn what_is_wrong_is_said_with_the_way_out() {
    let folder = Folder::new();
    let dense = folder.checkpoint();
    let packed = folder.at("packed.safetensors");
    expect![[r#"
        error: cannot open FOLDER/nothing: No such file or directory (os error 2)
    "#]]
    .assert_eq(&folder.said(&["inspect", &folder.at("nothing")], 1));
    expect![[r#"
        error: no format is named nf5
        help: name one of affine, bf16, binary, codebook, dynamic, e4m3, e5m2, f16, fp4, int8, k, mxfp4, mxfp8, nf4, nvfp4, rotated, symmetric, ternary
    "#]]
    .assert_eq(&folder.said(&["quantize", &dense, "--format", "nf5", "-o", &packed], 1));
    expect![[r#"
        error: mlx has no primitive matmull
        help: leave the name out for a list of all of them
    "#]]
    .assert_eq(&folder.said(&["primitives", "matmull"], 1));
    expect![[r#"
        error: the rules are written in JSON
        help: name the file .json
    "#]]
    .assert_eq(&folder.said(&["advise", &dense, "--bits", "4", "-o", &folder.at("rules.toml")], 1));
    expect![[r#"
        error: the drawing and the page are one file
        help: give each a place of its own
    "#]]
    .assert_eq(&folder.said(&["explain", &dense, "--svg", &folder.at("one"), "--html", &folder.at("one")], 1));
    assert_eq!(tacit(&["quantize", &dense, "-o", &packed]).status.code(), Some(2));
    assert!(!fs::exists(&packed).expect("looks"));
}

#[test]
fn lists_say_what_the_program_has() {
    let types = String::from_utf8(tacit(&["types"]).stdout).expect("text");
    assert!(types.contains("tacit.Nf4") && types.contains("\nformats with a text: affine, "), "{types}");
    let transpose = String::from_utf8(tacit(&["primitives", "transpose"]).stdout).expect("text");
    let taken = |line: &str| line.starts_with("linear_transpose ") && line.contains("views/of_linear.rs:");
    assert!(transpose.lines().any(taken), "{transpose}");
    let man = String::from_utf8(tacit(&["man"]).stdout).expect("text");
    assert!(man.contains(".SH SUBCOMMANDS") && man.contains("quantize"), "{man}");
    let man = String::from_utf8(tacit(&["man", "explain"]).stdout).expect("text");
    assert!(man.contains("tacit\\-explain") && man.contains("input\\-shape"), "{man}");
    assert!(!tacit(&["completions", "bash"]).stdout.is_empty());
}

/// Names as a stranger's file may have them: each would do something to a terminal, a reader, a line or to XML.
const NAMES: [&str; 7] = [
    "a\u{1b}]0;title\u{7}\u{1b}[2J.weight",
    "b\u{9b}31m.weight",
    "c\u{202e}thgiew.weight",
    "d\nerror: all is lost.weight",
    "e<script>&\"'.weight",
    "f\u{0}\u{1}\u{8}\u{fffe}.weight",
    "g\r.\u{2028}weight",
];

/// A checkpoint of such names, with numbers that differ a little by `seed`.
fn strange(folder: &Folder, file: &str, seed: u64) -> String {
    let weight = |at: usize| {
        let key = random::key(at as u64 + seed).expect("a key");
        random::normal::<f32>(&[8, 64], None, None, &key).expect("numbers").into()
    };
    let parameters = NAMES.iter().enumerate().map(|(at, name)| ((*name).to_owned(), weight(at))).collect();
    save(folder.at(file), &parameters).expect("saves");
    folder.at(file)
}

/// The file that names those of a run's ranks holds nothing by itself.
#[test]
fn the_index_of_a_run_is_no_checkpoint_of_nothing() {
    let folder = Folder::new();
    let file = folder.at("run.safetensors");
    let metadata = tacit_io::Metadata::from([("tacit.ranks".to_owned(), "{}".to_owned())]);
    tacit_io::write(&file, Vec::new(), &metadata).expect("writes");
    expect![[r#"
        error: FOLDER/run.safetensors: it is the index of a run on several ranks, whose arrays are in the files of these
        help: inspect one of the files beside it, whose names have `-of-`
    "#]]
    .assert_eq(&folder.said(&["inspect", &file], 1));
}

/// A variable that is not set gives an empty address, by which Cargo would find nothing.
#[test]
fn a_project_has_an_address_or_a_clone() {
    let folder = Folder::new();
    let project = folder.at("hello");
    let clone = env!("CARGO_MANIFEST_DIR");
    for options in
        [&["--git", ""][..], &["--git", "https://example.org/tacit", "--rev", ""], &["--path", clone, "--rev", "1"]]
    {
        assert_eq!(tacit(&[&["new", &project][..], options].concat()).status.code(), Some(2), "{options:?}");
    }
    assert!(!fs::exists(&project).expect("looks"));
    assert!(tacit(&["new", &project, "--git", "https://example.org/tacit"]).status.success());
}

/// A limit that no error keeps, and rows that nobody is given, are asked for by mistake.
#[test]
fn limits_and_rows_that_mean_nothing_are_refused() {
    let folder = Folder::new();
    let (path, inputs) = (folder.checkpoint(), folder.at("inputs.safetensors"));
    let x = ops::ones::<f32>(&[2, 64]).expect("ones");
    save(&inputs, &Parameters::from([("layer.weight".to_owned(), x.into())])).expect("saves");
    let refused: [&[&str]; 4] = [
        &["--max-error", "nan"],
        &["--max-error=-1"],
        &["--rows", "3"],
        &["--outputs", "--rows", "3", "--inputs", &inputs],
    ];
    for options in refused {
        let output = tacit(&[&["compare", &path, &path][..], options].concat());
        assert_eq!(output.status.code(), Some(2), "{options:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let output = tacit(&["compare", &path, &path, "--max-error", "0", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
    assert_eq!((json["max_error"].as_f64(), json["farther"].as_u64()), (Some(0.0), Some(0)));
    assert!(tacit(&["compare", &path, &path, "--outputs", "--rows", "3"]).status.success());
    expect![[r#"
        error: 2147483647 rows for layer.weight, f32[8,64], are more numbers than an array has
        help: give fewer `--rows`
    "#]]
    .assert_eq(&folder.said(&["compare", &path, &path, "--outputs", "--rows", "2147483647"], 1));
    expect![[r#"
        error: 2147483647 rows for a weight of 64x32 are more numbers than an array has
        help: give fewer `--rows`
    "#]]
    .assert_eq(&folder.said(&["bench", "int8", "--shape", "64x32", "--rows", "1,2147483647"], 1));
}

#[test]
fn products_are_measured_beside_dense_ones() {
    // The format is named twice, and measured once.
    let output =
        tacit(&["bench", "nf4:32", "nf4:32", "--shape", "64x96", "--rows", "1,3", "--seconds", "0.1", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
    let products = json["products"].as_array().expect("rows");
    let formats: Vec<&str> = products.iter().filter_map(|row| row["format"].as_str()).collect();
    assert_eq!(formats, ["dense f32", "dense bf16, by MLX", "nf4:32"].repeat(2));
    for row in products {
        assert!(row["milliseconds"].as_f64().is_some_and(|time| time > 0.0 && time < 1e3), "{row}");
        assert!(row["beside_f32"][1].as_f64().is_some_and(|times| times > 0.0), "{row}");
    }
    assert_eq!(json["machine"]["threads"].as_u64(), Some(tacit_kernels::threads::count() as u64));
    let text = String::from_utf8(tacit(&["bench", "--shape", "64x256", "--seconds", "0"]).stdout).expect("text");
    for format in ["affine:4:64", "ternary", "k:4", "e4m3:32", "e5m2:32"] {
        assert!(text.lines().any(|line| line.starts_with(format)), "{text}");
    }
    let text = String::from_utf8(tacit(&["bench", "--shape", "64x96", "--seconds", "0"]).stdout).expect("text");
    for part in
        [" threads; ", " GB/s from its caches, multiplies ", "times dense f32", "\nleft out: affine:4:64: ", "\nmxfp4 "]
    {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(tacit(&["bench", "affine:4:64", "--shape", "64x96"]).status.code(), Some(1));
    assert_eq!(tacit(&["bench", "--shape", "64"]).status.code(), Some(2));
    assert_eq!(tacit(&["bench", "nf5"]).status.code(), Some(2));
}

/// The book's page of commands is what each says of itself.
#[test]
fn the_book_lists_the_commands() {
    let help = |arguments: &[&str]| String::from_utf8(tacit(arguments).stdout).expect("text");
    let all = help(&["--help"]);
    let (_, listed) = all.split_once("Commands:\n").expect("a list");
    let commands = listed.lines().take_while(|line| !line.is_empty()).filter_map(|line| line.split_whitespace().next());
    let mut page = format!(
        "<!-- Made by `UPDATE_EXPECT=1 cargo test -p tacit-cli --test commands`. -->\n# Commands\n\n\
         The program `tacit` is run in the repository by `cargo run --release -p tacit-cli -- COMMAND`. Commands print tables \
         for people, or with `--json` the same as data; `launch`, `completions` and `man` print no table and ignore `--json`. The \
         exit code is 0 where all is well, 1 where a command fails or finds what it was asked to look for, 2 where its arguments \
         are wrong, and 128 and the number of the signal after an interruption. `launch` ends with the code of the first rank that \
         failed.\n\n```text\n{all}```\n"
    );
    for command in commands.filter(|name| *name != "help") {
        let _ = write!(page, "\n## {command}\n\n```text\n{}```\n", help(&[command, "--help"]));
    }
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../book/src/reference/commands.md");
    expect_file![file].assert_eq(&page);
}
