//! Runs that were killed or failed, and go on.

use std::fs;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use expect_test::expect;

use super::{Folder, files, saved};

/// A run that is killed again and again ends in the same bytes as one that nobody has touched.
#[test]
fn a_run_that_is_killed_goes_on_to_the_same_bits() {
    // Of one row no layer is given as many numbers as are worth codes.
    let boundaries = ["--batch", "2", "--saved-activations", "affine:8:64"];
    let all = ["--batch", "2", "--keep-activations", "--saved-activations", "e4m3:32"];
    for (way, value, moments, more) in [
        ("--lora", "4", "8", &[][..]),
        ("--lora", "4", "8", &boundaries[..]),
        ("--dora", "4", "32", &all[..]),
        ("--qat", "int8:8", "4", &boundaries[..]),
    ] {
        let folder = Folder::new();
        let steps = ["--steps", "40", "--rate", "1e-2", "--save-every", "3", "--report-every", "1"];
        let options = [&[way, value, "--moments", moments], more, &steps[..]].concat();
        assert!(folder.run(&options, "whole").status.success());
        let kept = folder.at(".killed.training");
        let (mut kills, mut latest) = (0, 0);
        for goal in [1, 12, 21, 33] {
            let mut child = folder.command(&options, "killed").stdout(Stdio::null()).spawn().expect("starts");
            let begun = Instant::now();
            while latest < goal && child.try_wait().expect("waits").is_none() {
                assert!(begun.elapsed() < Duration::from_mins(2), "no step {goal} in {}", kept.display());
                sleep(Duration::from_millis(1));
                latest = saved(&kept).max(latest);
            }
            // `kill -9`: nothing of the program runs any more.
            child.kill().expect("is ours");
            kills += u64::from(!child.wait().expect("ends").success());
        }
        assert!(kills > 0, "no run was killed before it ended");
        let json = folder.json(&[&options[..], &["--force"]].concat(), "killed");
        assert!(json["resumed"].as_u64() >= Some(3), "{json}");
        assert!(files(&folder.at("whole")) == files(&folder.at("killed")), "{options:?}: the outputs differ");
    }
}

/// As the help says of a file that cannot be written in the end.
#[test]
fn the_steps_of_a_file_go_on_to_a_folder() {
    let folder = Folder::new();
    let options = ["--lora", "2", "--merge", "none", "--steps", "100", "--save-every", "1"];
    killed(&folder, &options, "m.gguf", || saved(&folder.at(".m.gguf.training")) > 0);
    fs::rename(folder.at(".m.gguf.training"), folder.at(".m.training")).expect("renames");
    assert!(folder.json(&options, "m")["resumed"].as_u64() > Some(0));
    assert!(folder.at("m/model.safetensors").is_file() && !folder.at(".m.training").exists());
}

#[test]
fn a_run_with_other_options_is_not_gone_on_with() {
    let folder = Folder::new();
    let begun = ["--lora", "4", "--steps", "4000", "--save-every", "1"];
    let mut child = folder.command(&begun, "adapter").stdout(Stdio::null()).spawn().expect("starts");
    while saved(&folder.at(".adapter.training")) == 0 {
        assert!(child.try_wait().expect("waits").is_none());
        sleep(Duration::from_millis(2));
    }
    // Two do not write one output.
    expect![[r#"
        error: another program trains in .adapter.training
        help: wait until it ends, or write to another place; of ranks that `tacit launch` starts each would train by itself
    "#]]
    .assert_eq(&folder.said(&begun, "adapter"));
    child.kill().expect("is ours");
    child.wait().expect("ends");
    expect![[r#"
        error: .adapter.training holds another run, in which --lora was 4, and is 8
        help: give the same options to go on, or remove the folder to begin anew
    "#]]
    .assert_eq(&folder.said(&["--lora", "8", "--steps", "4000"], "adapter"));
    expect![[r#"
        error: .adapter.training holds another run, in which --seed was 0, and is 1
        help: give the same options to go on, or remove the folder to begin anew
    "#]]
    .assert_eq(&folder.said(&[&begun[..], &["--seed", "1"]].concat(), "adapter"));
    expect![[r#"
        error: .adapter.training holds another run, in which --saved-activations was not given, and is affine:8:64
        help: give the same options to go on, or remove the folder to begin anew
    "#]]
    .assert_eq(&folder.said(&[&begun[..], &["--saved-activations", "affine:8:64"]].concat(), "adapter"));
    // A file of another content is another option.
    let rules = |format: &str| fs::write(folder.at("rules.json"), format!(r#"{{"*_proj.weight": "{format}"}}"#));
    rules("int8").expect("writes");
    let begun = ["--lora", "4", "--steps", "4000", "--save-every", "1", "--weights", "rules.json"];
    let mut child = folder.command(&begun, "other").stdout(Stdio::null()).spawn().expect("starts");
    while saved(&folder.at(".other.training")) == 0 {
        assert!(child.try_wait().expect("waits").is_none());
        sleep(Duration::from_millis(2));
    }
    child.kill().expect("is ours");
    child.wait().expect("ends");
    rules("nf4:32").expect("writes");
    expect![[r#"
        error: .other.training holds another run, in which what `--weights` says was {"*_proj.weight":"int8"}, and is {"*_proj.weight":"nf4:32"}
        help: give the same options to go on, or remove the folder to begin anew
    "#]]
    .assert_eq(&folder.said(&begun, "other"));
}

/// Starts a training, and kills it when `reached`.
pub(super) fn killed(folder: &Folder, options: &[&str], output: &str, reached: impl Fn() -> bool) {
    let mut child = folder.command(options, output).stdout(Stdio::null()).spawn().expect("starts");
    while !reached() {
        assert!(child.try_wait().expect("waits").is_none(), "it ended before it was killed");
        sleep(Duration::from_millis(2));
    }
    child.kill().expect("is ours");
    child.wait().expect("ends");
}

/// The record is there already, and is the run's own.
#[test]
fn a_run_that_is_killed_before_its_first_save_begins_again() {
    let folder = Folder::new();
    // Of the number of steps nothing is saved yet.
    let steps =
        |steps: &'static str| ["--lora", "2", "--steps", steps, "--save-every", "4000", "--record", "own.jsonl"];
    killed(&folder, &steps("4000"), "adapter", || !fs::read(folder.at("own.jsonl")).unwrap_or_default().is_empty());
    assert_eq!(saved(&folder.at(".adapter.training")), 0);
    let json = folder.json(&steps("2"), "adapter");
    assert_eq!((json["steps"].as_u64(), json["resumed"].as_u64()), (Some(2), Some(0)));
    let record = fs::read_to_string(folder.at("own.jsonl")).expect("a record");
    assert_eq!(record.lines().filter(|line| line.contains("\"loss\"")).count(), 2, "{record}");
}

#[test]
fn a_run_that_goes_on_spares_records_of_others() {
    let folder = Folder::new();
    folder.json(&["--lora", "2", "--steps", "9", "--record", "old.jsonl"], "first");
    let record = fs::read(folder.at("old.jsonl")).expect("a record");
    let begun = ["--lora", "2", "--steps", "4000", "--save-every", "1", "--record", "own.jsonl"];
    killed(&folder, &begun, "second", || saved(&folder.at(".second.training")) > 0);
    fs::write(folder.at("own.svg"), "what somebody drew").expect("writes");
    for (option, file) in [("--record", "old.jsonl"), ("--svg", "own.svg")] {
        let run = folder.run(&[&begun[..6], &[option, file]].concat(), "second");
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(1), "{said}");
        assert!(said.starts_with(&format!("error: {file} is there already\nhelp: ")), "{said}");
    }
    assert_eq!(fs::read(folder.at("old.jsonl")).expect("a record"), record);
    assert_eq!(fs::read_to_string(folder.at("own.svg")).expect("reads"), "what somebody drew");
    assert!(saved(&folder.at(".second.training")) > 0, "the run can go on");
}

/// The drawing comes before the output; and where a run is ended between its output and its end, it goes on as well.
#[test]
fn a_run_that_fails_at_its_end_goes_on() {
    let folder = Folder::new();
    let options = ["--lora", "2", "--steps", "100", "--save-every", "1", "--svg", "own.svg"];
    let mut command = folder.command(&options, "adapter");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts");
    let kept = folder.at(".adapter.training");
    while saved(&kept) == 0 {
        assert!(child.try_wait().expect("waits").is_none());
        sleep(Duration::from_millis(2));
    }
    fs::create_dir(folder.at("own.svg")).expect("makes");
    assert_eq!(child.wait().expect("ends").code(), Some(1));
    assert!(saved(&kept) == 100 && !folder.at("adapter").exists());
    fs::remove_dir(folder.at("own.svg")).expect("removes");
    let copy = files(&kept);
    assert_eq!(folder.json(&options, "adapter")["resumed"].as_u64(), Some(100));
    assert!(folder.at("own.svg").is_file() && !kept.exists());
    let written = files(&folder.at("adapter"));
    // As a program leaves it that is killed once the output is written: the folder says that the output is the run's. What was saved goes
    // first, the oldest before the others.
    let own = ["own.svg", "adapter/adapter_model.safetensors", "adapter/adapter_config.json"];
    let here = fs::canonicalize(&folder.0).expect("is there");
    let own: Vec<String> = own.iter().map(|name| format!("{}\0", here.join(name).display())).collect();
    for (gone, resumed) in [(0, 100), (1, 100), (2, 0)] {
        fs::create_dir(&kept).expect("makes");
        let (saves, others): (Vec<_>, Vec<_>) = copy.iter().partition(|(name, _)| name.starts_with("step-"));
        for (name, content) in saves.into_iter().skip(gone).chain(others) {
            fs::write(kept.join(name), content).expect("writes");
        }
        fs::write(kept.join("own"), own.concat()).expect("writes");
        assert_eq!(folder.json(&options, "adapter")["resumed"].as_u64(), Some(resumed));
        assert!(files(&folder.at("adapter")) == written && !kept.exists(), "{gone} saves are gone");
    }
    // Nothing of a run that came to its end is replaced by itself.
    let run = folder.run(&options, "adapter");
    assert!(String::from_utf8_lossy(&run.stderr).contains("adapter_model.safetensors is there already"));
}
