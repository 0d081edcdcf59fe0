//! The program as a person calls it.

#![allow(clippy::needless_pass_by_value, reason = "snapshots stand in the call")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use expect_test::{Expect, expect};
use mlx_rs::{Array, ops, random};
use tacit_io::save;
use tacit_nn::Parameters;

/// A folder of a test, which is gone after it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tacit-cli-{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&path));
        fs::create_dir_all(&path).expect("makes a folder");
        Self(path)
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

    fn at(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("a path that is text").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn tacit(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tacit")).args(arguments).output().expect("starts")
}

/// Checks the exit code, and what was printed on either stream.
fn check(arguments: &[&str], code: i32, folder: &Folder, expected: Expect) {
    let output = tacit(arguments);
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).expect("text").replace(folder.0.to_str().expect("text"), "FOLDER");
    expected.assert_eq(&text);
    assert_eq!(output.status.code(), Some(code));
}

#[test]
fn a_checkpoint_is_inspected_quantized_compared_and_converted() {
    let folder = Folder::new("path");
    let (dense, packed) = (folder.checkpoint(), folder.at("packed.safetensors"));
    check(
        &["inspect", &dense, "--histograms"],
        0,
        &folder,
        expect![[r#"
        parameter     value        bits  bytes  spread and reach
        layer.bias    f32[8]     32.000     32
        layer.weight  f32[8,64]  32.000   2048  ████████████████ 1.000
        odd.weight    f32[4,3]   32.000     48  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁█ 1.000
        3 parameters, 532 elements, 2128 bytes, 32.000 bits an element; read by load
    "#]],
    );
    check(
        &["quantize", &dense, "--format", "affine:4:32", "-o", &packed],
        0,
        &folder,
        expect![[r#"
        parameter     value                error  before  after
        layer.bias    f32[8]                          32     32  it is no matrix
        layer.weight  Affine(f32[8,64])  0.00401    2048    384
        odd.weight    f32[4,3]                        48     48  odd.weight: the last axis of f32[4,3] is not whole groups of 32, as affine has them
        2128 bytes before, 464 after
    "#]],
    );
    check(
        &["inspect", &packed],
        0,
        &folder,
        expect![[r#"
        parameter     value                bits  bytes
        layer.bias    f32[8]             32.000     32
        layer.weight  Affine(f32[8,64])   6.000    384
        odd.weight    f32[4,3]           32.000     48
        3 parameters, 532 elements, 464 bytes, 6.977 bits an element; read by load
    "#]],
    );
    check(
        &["compare", &dense, &packed],
        0,
        &folder,
        expect![[r#"
        parameter     a          b                    error    cosine  sqnr dB
        layer.weight  f32[8,64]  Affine(f32[8,64])  4.01e-3  0.999992     47.9
        layer.bias    f32[8]     f32[8]              0.00e0  1.000000    exact
        odd.weight    f32[4,3]   f32[4,3]            0.00e0  1.000000    exact
    "#]],
    );
    check(
        &["compare", &dense, &packed, "--max-error", "0.001"],
        1,
        &folder,
        expect![[r#"
        parameter     a          b                    error    cosine  sqnr dB
        layer.weight  f32[8,64]  Affine(f32[8,64])  4.01e-3  0.999992     47.9
        layer.bias    f32[8]     f32[8]              0.00e0  1.000000    exact
        odd.weight    f32[4,3]   f32[4,3]            0.00e0  1.000000    exact
    "#]],
    );
    let converted = folder.at("mlx");
    check(
        &["convert", &packed, "--as", "mlx-lm", "-o", &converted],
        0,
        &folder,
        expect![[r#"
        3 parameters, 464 bytes before, 464 after
    "#]],
    );
    check(
        &["compare", &packed, &converted, "--max-error", "0"],
        0,
        &folder,
        expect![[r#"
        parameter     a                  b                   error    cosine  sqnr dB
        layer.bias    f32[8]             f32[8]             0.00e0  1.000000    exact
        layer.weight  Affine(f32[8,64])  Affine(f32[8,64])  0.00e0  1.000000    exact
        odd.weight    f32[4,3]           f32[4,3]           0.00e0  1.000000    exact
    "#]],
    );
}

#[test]
fn formats_are_advised_within_the_bits_and_quantize_by_the_rules() {
    let folder = Folder::new("advise");
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
    check(
        &["advise", &dense, "--bits", "5", "--formats", formats, "-o", &rules],
        0,
        &folder,
        expect![[r#"
        parameter    aval         format           bits    error   share
        a.weight     f32[64,128]  affine:6:64     7.000  0.02214  31.1 %
        b.weight     f32[64,128]  nf4:64:double   4.133  0.09164  32.5 %
        c.weight     f32[64,128]  affine:2:64     3.000  0.38624  36.5 %
        norm.weight  f32[128]                    32.000
        4.852 bits an element, error 0.03849; no choice within the budget has less than 0.03579
        rules in FOLDER/rules.json
    "#]],
    );
    assert_eq!(tacit(&["quantize", &dense, "--rules", &rules, "-o", &packed]).status.code(), Some(0));
    let inspected = String::from_utf8(tacit(&["inspect", &packed]).stdout).expect("text");
    let bits = inspected.split(", ").find_map(|part| part.strip_suffix(" bits an element; read by load\n"));
    assert!(bits.expect("a number").parse::<f64>().expect("a number") <= 5.0, "{inspected}");
    // A matrix that is multiplied with next to nothing is worth few bits.
    let inputs = folder.at("inputs.safetensors");
    let small = weight(4, 1e-3);
    save(&inputs, &Parameters::from([("a.weight".to_owned(), small.into())])).expect("saves");
    check(
        &["advise", &dense, "--bits", "5", "--formats", formats, "--fit", "search", "--inputs", &inputs],
        0,
        &folder,
        expect![[r#"
            parameter    aval         format                  bits    error   share
            a.weight     f32[64,128]  affine:2:64+search     3.000  0.34891   0.2 %
            b.weight     f32[64,128]  affine:6:64+search     7.000  0.02080  48.8 %
            c.weight     f32[64,128]  nf4:64:double+search   4.133  0.08449  50.9 %
            norm.weight  f32[128]                           32.000
            4.852 bits an element, error 0.02887; no choice within the budget has less than 0.02777
        "#]],
    );
    check(
        &["advise", &dense, "--bits", "2", "--formats", "affine:4:64"],
        1,
        &folder,
        expect![[r#"
        error: no choice of these formats takes 2 bits an element or fewer: the least is 5.140
        help: allow more bits, or name a format of fewer; parameters that no format fits stay as they are, and count
    "#]],
    );
    let json = tacit(&["advise", &dense, "--bits", "6", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("is JSON");
    assert!(json["bits"].as_f64().expect("a number") <= 6.0 && json["rows"]["a.weight"]["aval"] == "f32[64,128]");
}

#[test]
fn the_same_is_there_as_data() {
    let folder = Folder::new("json");
    let dense = folder.checkpoint();
    check(
        &["inspect", &dense, "--json"],
        0,
        &folder,
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
    "#]],
    );
}

#[test]
fn what_is_wrong_is_said_with_the_way_out() {
    let folder = Folder::new("wrong");
    let dense = folder.checkpoint();
    let packed = folder.at("packed.safetensors");
    check(
        &["inspect", &folder.at("nothing")],
        1,
        &folder,
        expect![[r#"
        error: cannot open FOLDER/nothing: No such file or directory (os error 2)
    "#]],
    );
    check(
        &["quantize", &dense, "--format", "nf5", "-o", &packed],
        1,
        &folder,
        expect![[r#"
            error: no format is named nf5
            help: name one of affine, bf16, binary, codebook, e5m2, f16, fp4, int8, k, mxfp4, mxfp8, nf4, nvfp4, rotated, ternary
        "#]],
    );
    check(
        &["primitives", "matmull"],
        1,
        &folder,
        expect![[r#"
        error: mlx has no primitive matmull
        help: leave the name out for a list of all of them
    "#]],
    );
    assert_eq!(tacit(&["quantize", &dense, "-o", &packed]).status.code(), Some(2));
    assert!(!fs::exists(&packed).expect("looks"));
}

#[test]
fn lists_say_what_the_program_has() {
    let types = String::from_utf8(tacit(&["types"]).stdout).expect("text");
    assert!(types.contains("tacit.Nf4"), "{types}");
    let transpose = String::from_utf8(tacit(&["primitives", "transpose"]).stdout).expect("text");
    let taken = |line: &str| line.starts_with("packed_transpose ") && line.contains("packed.rs:");
    assert!(transpose.lines().any(taken), "{transpose}");
    let man = String::from_utf8(tacit(&["man"]).stdout).expect("text");
    assert!(man.contains(".SH SUBCOMMANDS") && man.contains("quantize"), "{man}");
    assert!(!tacit(&["completions", "bash"]).stdout.is_empty());
}

#[test]
fn the_doctor_names_what_is_wrong_and_the_cure() {
    let well = tacit(&["doctor"]);
    assert!(well.status.success(), "{}", String::from_utf8_lossy(&well.stdout));
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_tacit"));
    let ill = doctor.arg("doctor").env("TACIT_MODE", "fast").env("PATH", "").output().expect("starts");
    let text = String::from_utf8(ill.stdout).expect("text");
    assert_eq!(ill.status.code(), Some(1), "{text}");
    assert!(text.contains("broken  TACIT_MODE") && text.contains("help: eager, lazy or compiled"), "{text}");
    assert!(text.contains("slow    compiler") && text.contains("install g++"), "{text}");
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
