//! Commands that are interrupted.

use std::fs;
use std::process::Command;

use expect_test::expect;
use mlx_rs::random;
use tacit_bridge::process::Signal;
use tacit_io::save;

use super::{Folder, ended, ok, stderr};

/// What took long to find is shown, whatever becomes of the file.
#[test]
fn advice_is_shown_where_its_rules_cannot_be_written() {
    let folder = Folder::new();
    let dense = folder.checkpoint("dense.safetensors");
    // As on a disk that is full, on which a file can be made and not written.
    let program = env!("CARGO_BIN_EXE_tacit");
    let command = format!("ulimit -f 0; exec '{program}' advise '{dense}' --bits 8 -o '{}'", folder.at("r.json"));
    let output = Command::new("bash").args(["-c", &command]).output().expect("starts");
    let [told, said] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    assert!(told.contains("bits an element, error "), "{told}");
    assert!(output.status.code() == Some(1) && said.contains("cannot write "), "{said}");
    assert_eq!(folder.names(), ["dense.safetensors"]);
}

/// A checkpoint that takes a while to write.
fn large(folder: &Folder) -> String {
    let path = folder.at("large.safetensors");
    let layer = |layer: u64| {
        let weight = random::normal::<f32>(&[1024, 1024], None, None, &random::key(layer).expect("a key"));
        (format!("layers.{layer}.weight"), weight.expect("numbers").into())
    };
    save(&path, &(0..32).map(layer).collect()).expect("saves");
    path
}

/// Whether this process ignores hangups, and with it what it starts.
fn hangups_are_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 != 0)
}

#[test]
fn an_interrupt_leaves_nothing_and_says_so() {
    let folder = Folder::new();
    let input = large(&folder);
    let output = folder.at("out.safetensors");
    // An empty one may be that by which the command sees that it can make files.
    let is_written =
        |name: &String| name.ends_with(".partial") && fs::metadata(folder.at(name)).is_ok_and(|file| file.len() > 0);
    let writes = || folder.names().iter().any(is_written);
    let arguments = ["convert", &input, "--as", "floats", "-o", &output];
    for (with, code) in [(Signal::Interrupt, 130), (Signal::Terminate, 143), (Signal::Hangup, 129)] {
        if matches!(with, Signal::Hangup) && hangups_are_ignored() {
            // As under `nohup`, where they stay so.
            continue;
        }
        let mut tries = 0;
        let (child, ended) = loop {
            match ended(&arguments, with, writes) {
                Some(ended) => break ended,
                None => fs::remove_file(&output).expect("it was faster"),
            }
            tries += 1;
            assert!(tries < 20, "it is always faster");
        };
        assert_eq!((ended, &*stderr(child)), (Some(code), "interrupted: what was not finished is removed\n"));
        assert_eq!(folder.names(), ["large.safetensors"]);
    }
    // Neither does a folder that was made for it stay.
    let made = folder.at("made/here");
    let writes_there = || fs::read_dir(&made).is_ok_and(|there| there.count() > 0);
    while ended(&["convert", &input, "--as", "mlx-lm", "-o", &made], Signal::Interrupt, writes_there).is_none() {
        fs::remove_dir_all(folder.0.path().join("made")).expect("it was faster");
    }
    assert_eq!(folder.names(), ["large.safetensors"]);
    // A program that is killed cannot clear up; the next save does.
    while ended(&arguments, Signal::Kill, writes).is_none() || !writes() {
        fs::remove_file(&output).expect("it was faster");
    }
    ok(&["convert", &input, "--as", "floats", "-o", &output]);
    assert_eq!(folder.names(), ["large.safetensors", "out.safetensors"]);
}

#[test]
fn an_interrupted_quantization_says_where_it_goes_on() {
    let folder = Folder::new();
    let (input, output) = (large(&folder), folder.at("out.safetensors"));
    let arguments = ["quantize", &input, "--format", "nf4:64", "-o", &output];
    let parts = folder.0.path().join(".out.safetensors.parts");
    let some = || fs::read_to_string(parts.join("journal")).is_ok_and(|journal| journal.lines().count() > 3);
    let (child, code) = ended(&arguments, Signal::Interrupt, some).expect("takes long");
    let said = stderr(child).replace(folder.0.path().to_str().expect("text"), "FOLDER");
    assert_eq!(code, Some(130));
    expect![[r#"
        interrupted: what was made is in FOLDER/.out.safetensors.parts, and the same command goes on there
    "#]]
    .assert_eq(&said);
    assert!(ok(&arguments).contains(" parameters were made before"));
    assert_eq!(folder.names(), ["large.safetensors", "out.safetensors"]);
}
