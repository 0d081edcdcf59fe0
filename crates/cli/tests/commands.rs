//! The program as a person calls it.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

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
    assert!(types.contains("tacit.Nf4"), "{types}");
    let transpose = String::from_utf8(tacit(&["primitives", "transpose"]).stdout).expect("text");
    let taken = |line: &str| line.starts_with("linear_transpose ") && line.contains("views/of_linear.rs:");
    assert!(transpose.lines().any(taken), "{transpose}");
    let man = String::from_utf8(tacit(&["man"]).stdout).expect("text");
    assert!(man.contains(".SH SUBCOMMANDS") && man.contains("quantize"), "{man}");
    let man = String::from_utf8(tacit(&["man", "explain"]).stdout).expect("text");
    assert!(man.contains("tacit\\-explain") && man.contains("input\\-shape"), "{man}");
    assert!(!tacit(&["completions", "bash"]).stdout.is_empty());
}

/// Whoever reads only the first line of a long list closes the pipe.
#[test]
fn a_closed_pipe_is_no_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tacit"))
        .arg("primitives")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty());
}

/// What a command found is its exit code, whether or not anybody reads the rest of what it prints.
#[test]
fn a_closed_pipe_hides_no_finding() {
    let folder = Folder::new();
    let (dense, packed) = (folder.checkpoint(), folder.at("packed.safetensors"));
    assert!(tacit(&["quantize", &dense, "--format", "affine:4:32", "-o", &packed]).status.success());
    let hosts = folder.at("hosts");
    fs::write(&hosts, "127.0.0.1 2\n").expect("writes");
    for (arguments, code) in [
        (&["compare", &dense, &packed, "--max-error", "0.001"][..], 1),
        (&["compare", &dense, &packed, "--max-error", "0.1"], 0),
        (&["explain", &folder.at("none")], 1),
        (&["launch", "--hosts", &hosts, "--", "true"], 0),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
        let mut child = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
        drop(child.stdout.take());
        assert_eq!(child.wait().expect("ends").code(), Some(code), "{arguments:?}");
    }
}

/// JSON is text: what a path has besides is replaced in it. A Mac has no such paths.
#[test]
#[cfg(target_os = "linux")]
fn a_path_that_is_no_text_is_told_as_json() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let folder = Folder::new();
    let dense = folder.checkpoint();
    fs::create_dir(folder.0.path().join(OsStr::from_bytes(b"x\xff"))).expect("makes");
    let (project, rules) = (OsStr::from_bytes(b"x\xff/hello"), OsStr::from_bytes(b"x\xff/rules.json"));
    let told = |arguments: &[&str], place: &OsStr| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
        let output = command.current_dir(&folder.0).arg("--json").args(arguments).arg(place).output().expect("starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("json")
    };
    let json = told(&["new", "--git", "https://example.org/tacit"], project);
    assert_eq!(json["folder"].as_str(), Some("x\u{fffd}/hello"));
    let json = told(&["advise", &dense, "--bits", "8", "-o"], rules);
    assert_eq!(json["rules"].as_str(), Some("x\u{fffd}/rules.json"));
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

/// Whether a text has nothing in it that is more than text, but for the ends of its lines.
fn is_plain(text: &str) -> bool {
    text.chars().all(|c| c == '\n' || tacit_core::printable::is_plain(c))
}

/// No command prints a name as it is, to either stream, as a table or as data, nor writes one into a drawing.
#[test]
fn names_of_files_are_data() {
    let folder = Folder::new();
    let (a, b) = (strange(&folder, "a.safetensors", 1), strange(&folder, "b.safetensors", 2));
    let [packed, rules, svg, html, trace] =
        ["packed.safetensors", "rules.json", "far.svg", "trace.html", "trace.svg"].map(|name| folder.at(name));
    let only = "d\nerror: all is lost.weight";
    let commands: [&[&str]; 10] = [
        &["inspect", &a, "--histograms"],
        &["compare", &a, &b, "--outputs", "--svg", &svg],
        &["advise", &a, "--bits", "6", "-o", &rules],
        &["quantize", &a, "--rules", &rules, "-o", &packed],
        &["inspect", &packed],
        &["explain", &packed, "--trace", "--html", &html, "--svg", &trace],
        &["explain", &a, "--only", only],
        // What fails because of a name.
        &["convert", &a, "--as", "floats", "-o", &folder.at("no\u{1b}[2J/out.safetensors")],
        &["inspect", &folder.at("no\u{1b}[2J\u{202e}.safetensors")],
        &["compare", &a, &b, "--inputs", &packed],
    ];
    for arguments in commands {
        for json in [false, true] {
            if json && arguments[0] == "quantize" {
                continue;
            }
            let arguments: Vec<&str> = arguments.iter().copied().chain(json.then_some("--json")).collect();
            let output = tacit(&arguments);
            for stream in [output.stdout, output.stderr] {
                let text = String::from_utf8(stream).expect("text");
                assert!(is_plain(&text), "{arguments:?}: {text:?}");
                assert!(!text.lines().any(|line| line.starts_with("error: all is lost")), "{arguments:?}: {text:?}");
                if json && text.starts_with('{') {
                    let data: serde_json::Value = serde_json::from_str(&text).expect("JSON");
                    let rows = data["parameters"].as_array().map_or(0, Vec::len);
                    let paths =
                        || data["parameters"].as_array().into_iter().flatten().filter_map(|row| row["path"].as_str());
                    assert_eq!(paths().filter(|path| NAMES.contains(path)).count(), rows, "{arguments:?}");
                }
            }
        }
    }
    // The rules name the parameters that they were made for, whatever signs of globs are in the names.
    let inspected = String::from_utf8(tacit(&["inspect", &packed]).stdout).expect("text");
    assert_eq!(inspected.lines().filter(|line| line.contains("f32[8,64])")).count(), NAMES.len(), "{inspected}");
    for file in [svg, html, trace] {
        let text = fs::read_to_string(&file).expect("is written");
        assert!(is_plain(&text) && !text.contains("<script>"), "{file}");
        // A page of HTML has tags that are not closed.
        if text.starts_with("<svg") {
            well_formed(&text);
        }
    }
}

/// Fails where a text is no well-formed XML: tags that close each other, and no other signs than entities between them.
fn well_formed(xml: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = xml;
    while let Some(at) = rest.find('<') {
        let text = &rest[..at];
        assert!(text.split('&').skip(1).all(|entity| entity.find(';').is_some_and(|end| end < 8)), "{text}");
        let end = rest[at..].find('>').expect("a tag ends") + at;
        let tag = &rest[at + 1..end];
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        assert!(!tag.contains('<'), "{tag}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "{tag}");
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().expect("a name"));
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?}");
}

/// A Mac has no such disk.
#[test]
#[cfg(target_os = "linux")]
fn what_was_found_is_said_where_it_cannot_be_drawn() {
    let folder = Folder::new();
    let dense = folder.checkpoint();
    // A disk that is always full.
    let output = tacit(&["compare", &dense, &dense, "--json", "--svg", "/dev/full"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("error: cannot write /dev/full: "), "{output:?}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("is JSON");
    assert_eq!(json["parameters"].as_array().map(Vec::len), Some(3));
    for drawing in ["--svg", "--html"] {
        let output = tacit(&["explain", &dense, "--json", drawing, "/dev/full"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains("error: cannot write /dev/full: "), "{output:?}");
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("is JSON");
        assert!(json["layers"].as_array().is_some_and(|layers| !layers.is_empty()), "{json}");
    }
}

#[test]
fn infinite_errors_empty_tensors_and_no_numbers_are_shown() {
    let folder = Folder::new();
    let parameters = |numbers: [f32; 3]| {
        Parameters::from([
            ("blk.10.weight".to_owned(), Array::from_slice(&numbers, &[1, 3]).into()),
            ("blk.2.weight".to_owned(), ops::zeros::<f32>(&[1, 3]).expect("zeros").into()),
            ("empty".to_owned(), ops::zeros::<f32>(&[0, 4]).expect("nothing").into()),
        ])
    };
    let [a, b, svg] = ["a.safetensors", "b.safetensors", "far.svg"].map(|name| folder.at(name));
    save(&a, &parameters([f32::NAN, f32::INFINITY, 1.0])).expect("saves");
    save(&b, &parameters([1.0, f32::INFINITY, 1.0])).expect("saves");
    expect![[r#"
        parameter      value     format    bits  bytes  spread and reach
        blk.2.weight   f32[1,3]          32.000     12
        blk.10.weight  f32[1,3]          32.000     12  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁█ 1.000, 2 not finite
        empty          f32[0,4]           0.000      0
        3 parameters, 6 elements, 24 bytes, 32.000 bits an element; read by load
    "#]]
    .assert_eq(&folder.said(&["inspect", &a, "--histograms"], 0));
    let lost = folder.at("lost.safetensors");
    save(&lost, &parameters([f32::NAN, f32::NEG_INFINITY, 0.0])).expect("saves");
    let json = tacit(&["inspect", &lost, "--histograms", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("is JSON");
    let spread = &json["parameters"][1]["histogram"];
    assert_eq!((spread["reach"].as_f64(), spread["not_finite"].as_u64()), (Some(0.0), Some(2)), "{json}");
    expect![[r#"
        parameter      a         b          error    cosine  sqnr dB
        blk.10.weight  f32[1,3]  f32[1,3]  0.00e0  1.000000    exact
        blk.2.weight   f32[1,3]  f32[1,3]  0.00e0  1.000000    exact
        empty          f32[0,4]  f32[0,4]  0.00e0  1.000000    exact
    "#]]
    .assert_eq(&folder.said(&["compare", &a, &a, "--max-error", "0"], 0));
    expect![[r#"
        parameter      a         b          error    cosine  sqnr dB
        blk.10.weight  f32[1,3]  f32[1,3]     inf       NaN     -inf
        blk.2.weight   f32[1,3]  f32[1,3]  0.00e0  1.000000    exact
        empty          f32[0,4]  f32[0,4]  0.00e0  1.000000    exact
        farther than 1: 1 of 3 parameters
    "#]]
    .assert_eq(&folder.said(&["compare", &a, &b, "--max-error", "1", "--svg", &svg], 1));
    well_formed(&fs::read_to_string(&svg).expect("is written"));
    let json = tacit(&["compare", &a, &b, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("is JSON");
    let far = &json["parameters"][0]["distance"];
    assert_eq!(
        (far["error"].as_str(), far["cosine"].as_str(), far["sqnr"].as_str()),
        (Some("inf"), Some("NaN"), Some("-inf"))
    );
    assert!(json["parameters"][1]["distance"]["sqnr"].is_null());
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

#[test]
fn who_takes_each_layer_is_told_and_drawn() {
    let folder = Folder::new();
    let (dense, packed) = (folder.layers(3), folder.at("packed.safetensors"));
    assert!(tacit(&["quantize", &dense, "--format", "rotated:nf4:64", "-o", &packed]).status.success());
    let (svg, html) = (folder.at("trace.svg"), folder.at("trace.html"));
    expect![[r#"
        parameters       of them  value                  call     taken by                    bytes built
        layers.*.weight        3  Rotated(f32[256,256])  x @ w.T  view_moving, linear_matmul
        3 calls for tokens [1,16], 0 arrays materialized (0 bytes)
    "#]]
    .assert_eq(
        &folder.said(&["explain", &packed, "--input-shape", "1,16", "--svg", &svg, "--html", &html, "--deny"], 0),
    );
    let (svg, html) = (fs::read_to_string(svg).expect("drawn"), fs::read_to_string(html).expect("written"));
    assert!(svg.starts_with("<svg") && svg.contains("layers.*.weight (3)"), "{svg}");
    assert!(html.contains("<table>") && html.contains("matmul"), "{html}");
    let json = tacit(&["explain", &packed, "--only", "layers.1.*", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("json");
    let layers = json["layers"].as_array().expect("a list");
    assert_eq!((layers.len(), &layers[0]["path"], &json["materialized"]), (1, &"layers.1.weight".into(), &0.into()));
    assert!(json["trace"].is_null(), "{json}");
    let json = tacit(&["explain", &packed, "--only", "layers.1.*", "--json", "--trace"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("json");
    let trace = json["trace"].as_str().expect("a text");
    assert!(trace.starts_with("{ lambda") && trace.contains("matmul"), "{trace}");
    expect![[r#"
        error: FOLDER/packed.safetensors has no matrix of a path nothing
        help: see what there is with `tacit inspect`
    "#]]
    .assert_eq(&folder.said(&["explain", &packed, "--only", "nothing"], 1));
    assert_eq!(tacit(&["explain", &packed, "--input-shape", "0"]).status.code(), Some(2));
}

#[test]
fn a_known_model_is_told_as_a_whole() {
    let folder = Folder::new();
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/decoder/golden/affine/llama");
    let svg = folder.at("model.svg");
    let golden = golden.to_str().expect("text");
    let output = tacit(&["explain", golden, "--input-shape", "1,16", "--deny", "--svg", &svg, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
    assert!(output.status.success(), "{json}");
    let of_model = |key: &str| json["model"][key].as_u64().expect("a number");
    assert!(of_model("ops") > 100 && of_model("handled") > 20, "{json}");
    assert_eq!((of_model("materialized"), json["unbuilt"].is_null()), (0, true));
    let svg = fs::read_to_string(svg).expect("drawn");
    assert!(svg.contains(">rsqrt<") && svg.contains(">gather<"), "{svg}");
    // On a GPU, which need not be here, its products and its embedding have sources.
    for gpu in ["cuda", "metal"] {
        let told = tacit(&["explain", golden, "--input-shape", "1,16", "--deny", "--gpu", gpu]);
        let text = String::from_utf8(told.stdout).expect("text");
        assert!(told.status.success() && text.contains(", 0 kernels as plain ops on the GPU"), "{text}");
    }
    let mut without = Command::new(env!("CARGO_BIN_EXE_tacit"));
    without.args(["explain", golden, "--input-shape", "1,16", "--gpu", "metal"]).env("TACIT_GPU_SOURCES", "off");
    let text = String::from_utf8(without.output().expect("starts").stdout).expect("text");
    let told = " kernels as plain ops on the GPU, since TACIT_GPU_SOURCES is off";
    assert!(text.contains(told) && !text.contains(&format!(", 0{told}")), "{text}");
    // Of a model that lacks a tensor, its layers are told; nobody knows what it would materialize.
    let config = fs::read(format!("{golden}/config.json")).expect("reads");
    fs::write(folder.at("config.json"), config).expect("writes");
    let lacking = folder.layers(1);
    for (options, code) in [(&[][..], 0), (&["--deny"], 1)] {
        let told = tacit(&[&["explain", lacking.as_str()][..], options].concat());
        let text = String::from_utf8(told.stdout).expect("text");
        assert!(text.contains("layers.0.weight") && text.contains("the model cannot be built: "), "{text}");
        assert_eq!(told.status.code(), Some(code), "{options:?}");
    }
}

/// Their caches are codes in a step.
#[test]
fn models_of_half_floats_are_told_as_a_whole() {
    for name in ["float/llama", "float/gemma2", "float/qwen3_next", "tokenizers/spm.gguf"] {
        let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/decoder/golden").join(name);
        let output = tacit(&["explain", golden.to_str().expect("text"), "--input-shape", "2,5", "--deny", "--json"]);
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
        assert!(output.status.success() && json["unbuilt"].is_null(), "{name}: {}", json["unbuilt"]);
        assert_eq!(json["model"]["materialized"].as_u64(), Some(0), "{name}");
    }
}

#[test]
fn what_would_be_materialized_fails_where_that_is_denied() {
    let folder = Folder::new();
    let (dense, packed) = (folder.at("dense.safetensors"), folder.at("packed.safetensors"));
    let table = ops::ones::<f32>(&[32, 64]).expect("ones");
    save(&dense, &Parameters::from([("embed_tokens.weight".to_owned(), table.into())])).expect("saves");
    // A row of codes whose scales belong to columns is no such row.
    assert!(tacit(&["quantize", &dense, "--format", "int8:columns", "-o", &packed]).status.success());
    expect![[r#"
        parameters           of them  value             call       taken by                         bytes built
        embed_tokens.weight        1  Int8(f32[32,64])  x @ w.T    linear_transpose, linear_matmul
        embed_tokens.weight        1  Int8(f32[32,64])  w[tokens]                                          8192
        embed_tokens.weight declined: linear_gather: only whole rows are gathered from packed codes
        2 calls for tokens [1,1], 1 arrays materialized (8192 bytes)
    "#]]
    .assert_eq(&folder.said(&["explain", &packed, "--deny"], 1));
    assert!(tacit(&["explain", &packed]).status.success());
    assert!(tacit(&["explain", &dense, "--deny"]).status.success());
}

#[test]
fn layers_are_compared_by_what_they_give() {
    let folder = Folder::new();
    let (dense, packed) = (folder.layers(2), folder.at("packed.safetensors"));
    assert!(tacit(&["quantize", &dense, "--format", "affine:8:64", "-o", &packed]).status.success());
    let (inputs, svg) = (folder.at("inputs.safetensors"), folder.at("errors.svg"));
    let ramp = ops::arange::<_, f32>(0, 512, None).expect("a ramp").reshape(&[2, 256]).expect("rows");
    save(&inputs, &Parameters::from([("layers.1.weight".to_owned(), ramp.into())])).expect("saves");
    let output = tacit(&["compare", &dense, &packed, "--inputs", &inputs, "--svg", &svg, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
    for row in json["parameters"].as_array().expect("rows") {
        let error = |of: &str| row[of]["error"].as_f64();
        let given = row["path"] == "layers.1.weight";
        assert!(error("distance").is_some_and(|error| error > 1e-4 && error < 0.02), "{row}");
        assert_eq!(error("outputs").is_some_and(|error| error > 1e-6 && error < 0.02), given, "{row}");
    }
    let svg = fs::read_to_string(svg).expect("drawn");
    assert!(svg.starts_with("<svg") && svg.contains("What layers give") && svg.contains("layers.0.weight"), "{svg}");
    let output = tacit(&["compare", &dense, &packed, "--outputs", "--max-error", "0.02"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success() && text.contains("of outputs: error") && text.lines().count() == 3, "{text}");
    let wrong = Parameters::from([("layers.0.weight".to_owned(), ops::ones::<f32>(&[2, 3]).expect("ones").into())]);
    save(&inputs, &wrong).expect("saves");
    expect![[r#"
        error: FOLDER/inputs.safetensors: layers.0.weight: the layer takes 256 numbers, and its inputs are f32[2,3]
        help: give floats whose last axis is that of the weight
    "#]]
    .assert_eq(&folder.said(&["compare", &dense, &packed, "--inputs", &inputs], 1));
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
    assert!(text.contains("\nleft out: affine:4:64: ") && text.contains("\nmxfp4 "), "{text}");
    assert_eq!(tacit(&["bench", "affine:4:64", "--shape", "64x96"]).status.code(), Some(1));
    assert_eq!(tacit(&["bench", "--shape", "64"]).status.code(), Some(2));
    assert_eq!(tacit(&["bench", "nf5"]).status.code(), Some(2));
}

/// Ended at any point, a run goes on where it was; its output is there when it is whole, and the same bytes.
#[test]
fn a_killed_quantization_goes_on_where_it_was() {
    const LAYERS: u64 = 24;
    let folder = Folder::new();
    let (dense, whole, killed) = (folder.layers(LAYERS), folder.at("whole"), folder.at("killed"));
    let arguments =
        |output: &str| ["quantize", &dense, "--format", "nf4:64", "-o", output, "--json"].map(str::to_owned);
    let finish = |output: &str| {
        let made = Command::new(env!("CARGO_BIN_EXE_tacit")).args(arguments(output)).output().expect("starts");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let json: serde_json::Value = serde_json::from_slice(&made.stdout).expect("json");
        json["resumed"].as_u64().expect("a number")
    };
    assert_eq!(finish(&whole), 0);
    let whole = fs::read(whole).expect("is there");
    let parts = folder.0.path().join(".killed.parts");
    let on_their_way = || -> Vec<_> {
        let entries = fs::read_dir(&folder.0).expect("reads").flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(".partial")).collect()
    };
    // An empty one may be that by which the command sees that it can make files.
    let writes = || on_their_way().iter().any(|entry| entry.metadata().is_ok_and(|file| file.len() > 0));
    // A line for each part behind the first one.
    let kept = || {
        let journal = fs::read(parts.join("journal")).unwrap_or_default();
        journal.split(|&byte| byte == b'\n').skip(2).count() as u64
    };
    let (mut resumed, mut before) = (0, 0);
    // When there are so many parts, or the output is being written.
    for point in [0, 1, 5, LAYERS / 2, LAYERS - 1, LAYERS, LAYERS + 1] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tacit"))
            .args(arguments(&killed))
            .stdout(Stdio::null())
            .spawn()
            .expect("starts");
        let begin = Instant::now();
        let reached = || if point > LAYERS { writes() } else { kept() >= point };
        while !reached() && child.try_wait().expect("runs").is_none() {
            assert!(begin.elapsed() < Duration::from_mins(2), "it makes nothing");
            sleep(Duration::from_micros(200));
        }
        child.kill().expect("is ours");
        if child.wait().expect("ends").success() {
            // Faster than it was killed: then it is whole, and the next begins anew.
            assert!(fs::read(&killed).expect("is there") == whole);
            fs::remove_file(&killed).expect("is ours");
            before = 0;
            continue;
        }
        match fs::read(&killed) {
            // Killed after its output was in its place.
            Ok(there) => {
                assert!(there == whole, "what is there is whole");
                // The next run replaces nothing.
                fs::remove_file(&killed).expect("is ours");
            }
            Err(_) => assert!(kept() >= before, "what was made is kept"),
        }
        before = kept();
        resumed = resumed.max(before);
    }
    assert!(resumed > 0, "no run was killed on its way");
    let left = kept();
    assert_eq!(finish(&killed), left);
    assert!(fs::read(&killed).expect("is there") == whole, "the same bytes");
    assert!(!parts.exists() && on_their_way().is_empty());
}

/// What a snapshot would not show: nothing colors its output, asked or not.
#[test]
fn nothing_is_colored() {
    for set in [("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")] {
        for arguments in [&["--help"][..], &["types"], &["quantize"]] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
            let output = command.args(arguments).env(set.0, set.1).output().expect("starts");
            assert!(![output.stdout, output.stderr].concat().contains(&0x1b), "{arguments:?}");
        }
    }
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

/// A GGUF file, the folder of Hugging Face that it was made of, and what is written of it have the same parameters.
#[test]
fn models_of_several_programs_have_the_same_names() {
    let folder = Folder::new();
    let golden = |name: &str| format!("{}/../../tests/decoder/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    let (file, own) = (golden("gguf/qwen3_moe.gguf"), golden("gguf/qwen3_moe"));
    let mut said = String::new();
    for target in ["tacit", "mlx-lm", "hugging-face"] {
        let made = folder.at(target);
        said += &String::from_utf8(tacit(&["convert", &file, "--as", target, "-o", &made]).stdout).expect("text");
        for (a, b) in [(&file, &made), (&made, &own)] {
            let output = tacit(&["compare", a, b, "--max-error", "0"]);
            let said = String::from_utf8(output.stdout).expect("text");
            assert_eq!((output.status.code(), said.contains("only in")), (Some(0), false), "{said}");
        }
    }
    for (at, source) in [&file, &own, &folder.at("tacit"), &folder.at("mlx-lm")].into_iter().enumerate() {
        let made = folder.at(&format!("{at}.gguf"));
        said += &String::from_utf8(tacit(&["convert", source, "--as", "gguf", "-o", &made]).stdout).expect("text");
        assert_eq!(tacit(&["compare", &file, &made, "--max-error", "0"]).status.code(), Some(0), "{source}");
    }
    expect![[r#"
        26 parameters, 34752 bytes before, 34752 after
        26 parameters, 34752 bytes before, 34752 after
        44 parameters, 34752 bytes before, 34752 after
        26 parameters, 34752 bytes before, 37120 after
        44 parameters, 17376 bytes before, 20224 after
        26 parameters, 34752 bytes before, 37120 after
        26 parameters, 34752 bytes before, 37120 after
    "#]]
    .assert_eq(&said);
    // What a device takes of it is not counted.
    let said = tacit(&["convert", &file, "--as", "gguf", "-o", "/dev/null"]).stdout;
    assert_eq!(String::from_utf8(said).expect("text"), "26 parameters, 34752 bytes before\n");
    let rules = folder.at("rules.json");
    assert_eq!(tacit(&["advise", &file, "--bits", "8", "--formats", "nf4:64", "-o", &rules]).status.code(), Some(0));
    for input in [&file, &folder.at("mlx-lm")] {
        let arguments = ["quantize", input, "--rules", &rules, "-o", &folder.at("packed.safetensors"), "--force"];
        assert_eq!(tacit(&arguments).status.code(), Some(0), "{input}");
    }
    let strange = folder.at("strange.json");
    fs::write(&strange, r#"{"blk.*.ffn_up.weight": "nf4:64"}"#).expect("writes");
    fs::write(folder.at("own.json"), r#"{"blk.*.ffn_up_exps.weight": "nf4:64"}"#).expect("writes");
    let arguments = ["quantize", &file, "--rules", &folder.at("own.json"), "-o", &folder.at("own.safetensors")];
    let said = String::from_utf8(tacit(&arguments).stdout).expect("text");
    let quantized =
        said.lines().filter(|line| line.contains("Nf4(") && line.contains(".mlp.switch_mlp.up_proj.weight "));
    assert_eq!(quantized.count(), 2, "{said}");
    let dense = folder.checkpoint();
    let refused: [&[&str]; 7] = [
        &["convert", &file, "--as", "gguf", "--format", "q4_9", "-o", &folder.at("none.gguf")],
        &["convert", &file, "--as", "gguf", "--format", "q6_k", "-o", &folder.at("none.gguf")],
        &["convert", &file, "--as", "mlx-lm", "--format", "q8_0", "-o", &folder.at("none")],
        &["convert", &dense, "--as", "gguf", "-o", &folder.at("none.gguf")],
        &["compare", &file, &dense],
        &["quantize", &dense, "--rules", &strange, "-o", &folder.at("none.safetensors")],
        &["convert", &dense, "--as", "hugging-face", "-o", &folder.at("none")],
    ];
    let said = refused.map(|arguments| {
        let output = tacit(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        String::from_utf8(output.stderr).expect("text").replace(folder.0.path().to_str().expect("text"), "FOLDER")
    });
    expect![[r#"
        error: GGUF has no type q4_9
        help: take one of f32, f16, bf16, q4_0, q4_1, q5_0, q5_1 and q8_0
        error: there is no quantizing to Q6_K
        help: take one of f32, f16, bf16, q4_0, q4_1, q5_0, q5_1 and q8_0
        error: `--format` is a type of GGUF, and another checkpoint is written
        help: leave it out, or quantize by `tacit quantize` first
        error: FOLDER/none.gguf: nothing says of what model it would be: FOLDER has no config.json
        help: name a GGUF file, or the folder of a model with its config.json
        error: the two have no parameter in common: a begins with model.embed_tokens.weight, b with layer.bias
        help: compare two checkpoints of one model; `tacit inspect` lists their parameters
        error: no rule gives a parameter of FOLDER/dense.safetensors a format: the first is layer.bias
        help: name parameters as `tacit inspect` lists them, or, of a GGUF file, as the file does
        error: FOLDER/none/model.safetensors: nothing says of what model it would be: FOLDER has no config.json
        help: name a GGUF file, or the folder of a model with its config.json
    "#]]
    .assert_eq(&said.concat());
    let packed = folder.at("k.safetensors");
    let wide = Parameters::from([("a.weight".to_owned(), ops::ones::<f32>(&[8, 256]).expect("ones").into())]);
    save(folder.at("wide.safetensors"), &wide).expect("saves");
    assert_eq!(
        tacit(&["quantize", &folder.at("wide.safetensors"), "--format", "k:6", "-o", &packed]).status.code(),
        Some(0)
    );
    expect![[r#"
        1 parameters, 1696 bytes before, 8192 after
        1 are floats now: mlx-lm does not have their format
    "#]]
    .assert_eq(&folder.said(&["convert", &packed, "--as", "mlx-lm", "-o", &folder.at("floats")], 0));
    expect![[r#"
        1 parameters, 1696 bytes before, 8192 after
        1 are floats now
    "#]]
    .assert_eq(&folder.said(&["convert", &packed, "--as", "floats", "-o", &folder.at("floats.safetensors")], 0));
}

/// They are one parameter for mlx-lm.
#[test]
fn experts_of_a_layer_are_counted_once() {
    let folder = Folder::new();
    let experts = folder.at("experts");
    fs::create_dir(&experts).expect("makes a folder");
    fs::write(folder.at("experts/config.json"), r#"{"model_type": "qwen3_moe"}"#).expect("writes");
    let expert = |expert| format!("model.layers.0.mlp.experts.{expert}.up_proj.weight");
    let wide = ops::ones::<f32>(&[8, 64]).expect("ones");
    let codes = || tacit_arrays::Nf4Array::quantize(&wide, 64).expect("whole blocks");
    let parameters: Parameters = (0..3).map(|number| (expert(number), codes().into())).collect();
    save(folder.at("experts/model.safetensors"), &parameters).expect("saves");
    expect![[r#"
        1 parameters, 864 bytes before, 6144 after
        1 are floats now: mlx-lm does not have their format
    "#]]
    .assert_eq(&folder.said(&["convert", &experts, "--as", "mlx-lm", "-o", &folder.at("of_experts")], 0));
}

/// A checkpoint of two experts as Hugging Face has them.
fn experts(folder: &Folder) -> String {
    let path = folder.at("experts.safetensors");
    let expert = |expert: u64| {
        let weight =
            random::normal::<f32>(&[8, 64], None, None, &random::key(expert).expect("a key")).expect("numbers");
        (format!("model.layers.0.mlp.experts.{expert}.up_proj.weight"), weight.into())
    };
    save(&path, &(0..2).map(expert).collect()).expect("saves");
    path
}

/// Rules name experts as either library does, and those that name nothing are told.
#[test]
fn rules_name_experts_as_either_library_does() {
    let folder = Folder::new();
    let (path, rules, made) = (experts(&folder), folder.at("rules.json"), folder.at("made.safetensors"));
    let outputs =
        ["model.layers.0.mlp.switch_mlp.up_proj.weight", "model.layers.*.mlp.experts.*.up_proj.weight"].map(|named| {
            let text = format!("{{\"{named}\": \"affine:8:64\", \"model.layers.7.*\": \"nf4:64\"}}");
            fs::write(&rules, text).expect("writes");
            tacit(&["quantize", &path, "--rules", &rules, "-o", &made, "--force"])
        });
    let said = String::from_utf8_lossy(&outputs[0].stdout);
    expect![[r#"
        parameter                                    value                error  before  after
        model.layers.0.mlp.experts.0.up_proj.weight  Affine(f32[8,64])  0.00518    2048    576
        model.layers.0.mlp.experts.1.up_proj.weight  Affine(f32[8,64])  0.00517    2048    576
        4096 bytes before, 1152 after
        these rules name no parameter: model.layers.7.*
    "#]]
    .assert_eq(&said);
    assert_eq!(outputs[1].stdout, outputs[0].stdout);
}

/// What is made of a hybrid decoder is one that loads, whatever the format.
#[test]
fn filters_of_a_hybrid_decoder_stay_floats() {
    let folder = Folder::new();
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/decoder/golden/float/qwen3_next");
    fs::copy(golden.join("config.json"), folder.at("config.json")).expect("copies");
    let (golden, output) = (golden.to_str().expect("text"), folder.at("model.safetensors"));
    for format in ["int8", "nf4:32", "k:4", "ternary"] {
        let made = tacit(&["quantize", golden, "--format", format, "-o", &output, "--force"]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let table = String::from_utf8(made.stdout).expect("text");
        let row =
            table.lines().find(|row| row.starts_with("model.layers.0.linear_attn.conv1d.weight ")).expect("a row");
        assert!(row.contains("[64,1,4] ") && row.ends_with("  it is no matrix"), "{row}");
        let loaded = tacit_models::load(&folder.0);
        assert!(loaded.is_ok(), "{format}: {}", loaded.err().map(|error| error.to_string()).unwrap_or_default());
    }
    let rules = folder.at("advised.json");
    let advised = tacit(&["advise", golden, "--bits", "8.5", "--formats", "int8,nf4:32", "-o", &rules]);
    assert!(advised.status.success(), "{}", String::from_utf8_lossy(&advised.stderr));
    assert!(!fs::read_to_string(rules).expect("reads").contains("conv1d"));
}

/// Inputs of a parameter that is no layer would be a comparison that nobody made.
#[test]
fn inputs_of_no_layer_are_refused() {
    let folder = Folder::new();
    let (path, inputs) = (folder.checkpoint(), folder.at("inputs.safetensors"));
    let x = ops::ones::<f32>(&[2, 64]).expect("ones");
    save(&inputs, &Parameters::from([("layer.wieght".to_owned(), x.into())])).expect("saves");
    expect![[r#"
        error: FOLDER/inputs.safetensors: layer.wieght: a has no such parameter
        help: name inputs by the weights of the layers, as `tacit inspect` lists them
    "#]]
    .assert_eq(&folder.said(&["compare", &path, &path, "--inputs", &inputs, "--max-error", "0.1"], 1));
}
