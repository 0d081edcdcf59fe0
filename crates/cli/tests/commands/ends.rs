//! Commands whose output is no terminal or that nobody reads, and commands that are killed.

use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Folder, tacit};

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
