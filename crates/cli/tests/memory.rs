//! What commands hold in memory while they change the formats of a checkpoint, as Linux tells it.

#![cfg(target_os = "linux")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use mlx_rs::random;
use tacit_io::save;
use tacit_nn::Parameters;

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

/// The most bytes that a command had, the largest of what was seen every few milliseconds.
fn peak(arguments: &[&str]) -> u64 {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tacit"))
        .args(arguments)
        .stdout(Stdio::null())
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
    most
}

#[test]
fn a_checkpoint_is_quantized_and_converted_in_pieces() {
    let folder: PathBuf = std::env::temp_dir().join(format!("tacit-cli-memory-{}", std::process::id()));
    drop(fs::remove_dir_all(&folder));
    fs::create_dir_all(&folder).expect("makes a folder");
    let at = |name: &str| folder.join(name).to_str().expect("text").to_owned();
    let (small, large) = (at("small.safetensors"), at("large.safetensors"));
    checkpoint(Path::new(&small), &[64]);
    // An embedding of 134 MB, and 67 MB in other layers.
    checkpoint(Path::new(&large), &[32_768, 2048, 2048, 2048, 2048, 2048, 2048, 2048, 2048]);
    let size = |file: &str| fs::metadata(file).expect("was written").len();
    let check = |what: &str, arguments: &dyn Fn(&str, &str) -> Vec<String>| {
        let run = |input: &str, output: &str| {
            let arguments = arguments(input, output);
            peak(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
        };
        // What the program itself takes.
        let own = run(&small, &at(&format!("{what}-small.safetensors")));
        let output = at(&format!("{what}.safetensors"));
        let taken = run(&large, &output).saturating_sub(own);
        let limit = size(&output) * 3 / 2 + PIECE;
        println!(
            "{what}: {:.0} MB for {:.0} MB beside {:.0}",
            taken as f64 / 1e6,
            size(&output) as f64 / 1e6,
            own as f64 / 1e6
        );
        assert!(taken <= limit, "{what}: {taken} bytes, and {limit} are the most");
    };
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    for format in ["nf4:64", "affine:4:64", "nvfp4:global", "rotated:affine:4:64", "k:4"] {
        let what = format.replace(':', "-");
        check(&what, &|input, output| words(&["quantize", input, "--format", format, "-o", output]));
    }
    check("floats", &|input, output| words(&["convert", input, "--as", "floats", "-o", output]));
    drop(fs::remove_dir_all(&folder));
}
