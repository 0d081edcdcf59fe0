//! Names and numbers of files that somebody else wrote: printed and drawn as data.

use std::fs;
use std::process::Command;

use expect_test::expect;
use mlx_rs::{Array, ops};
use tacit_io::save;
use tacit_nn::Parameters;

use super::{Folder, NAMES, strange, tacit};

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
