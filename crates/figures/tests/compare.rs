//! The program `figures` sees what became slower, from lines that were recorded in turn.

use std::fs;
use std::process::{Command, Output};

use expect_test::expect;

/// Lines of a bench by the values of a case in each run, as commits of all ages write them.
fn lines(cases: &[(&str, &str, &[f64])]) -> String {
    let line = |case: &str, unit: &str, value: f64, baseline: &str| {
        format!(r#"{{"bench":"b","case":"{case}","unit":"{unit}","value":{value},"baseline":"{baseline}","ratio":1}}"#)
            + "\n"
    };
    let of = |&(case, unit, values): &(&str, &str, &[f64])| -> String {
        // One run writes a case beside each of its baselines.
        let run = |&value: &f64| line(case, unit, value, "one") + &line(case, unit, value, "other");
        values.iter().map(run).collect()
    };
    cases.iter().map(of).collect()
}

fn compared(name: &str, before: &str, after: &str) -> Output {
    let folder = std::env::temp_dir().join(format!("tacit-compare-{}-{name}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let files = [folder.join("before.jsonl"), folder.join("after.jsonl")];
    for (file, text) in files.iter().zip([before, after]) {
        fs::write(file, text).unwrap();
    }
    let output = Command::new(env!("CARGO_BIN_EXE_figures")).args(["compare", "--lines"]).args(files).output().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    output
}

#[test]
fn a_case_that_is_slower_in_most_rounds_fails() {
    let before = lines(&[
        ("steady", "ms", &[1.0, 2.0, 4.0, 1.0]),
        ("slow", "ms", &[1.0, 2.0, 4.0, 1.0]),
        ("rate", "GB/s", &[10.0, 20.0]),
        ("gone", "ms", &[1.0]),
        ("above", "ns above it", &[-3.0, 5.0]),
    ]);
    // The machine became slower from round to round; what counts is the ratio in a round.
    let after = lines(&[
        ("steady", "ms", &[1.05, 2.1, 4.2, 1.5]),
        ("slow", "ms", &[1.25, 2.5, 5.0, 1.0]),
        ("rate", "GB/s", &[8.0, 16.0]),
        ("new", "ms", &[1.0]),
        ("above", "ns above it", &[4.0, 5.0]),
    ]);
    let output = compared("slower", &before, &after);
    expect![[r#"
        case                                           before        after               slower
        b/steady                                       1.5000       1.8000 ms             1.050 [1.050, 1.163] of 4
        b/slow                                         1.5000       1.8750 ms             1.250 [1.188, 1.250] of 4  SLOWER
        b/rate                                        15.0000      12.0000 GB/s           1.250 [1.250, 1.250] of 2  SLOWER
        b/above                                        5.0000       5.0000 ns above it    1.000 [1.000, 1.000] of 1
        b/new                                    not in both
        b/gone                                   not in both
        2 of 4 cases are more than a tenth slower
    "#]]
    .assert_eq(&String::from_utf8_lossy(&output.stdout));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn what_is_as_fast_or_faster_passes() {
    let before = lines(&[("steady", "ms", &[1.0, 2.0]), ("rate", "GB/s", &[10.0, 20.0])]);
    let after = lines(&[("steady", "ms", &[1.0, 2.1]), ("rate", "GB/s", &[30.0, 40.0])]);
    assert_eq!(compared("faster", &before, &after).status.code(), Some(0));
}

/// A bench that was renamed does not pass for ever.
#[test]
fn nothing_that_was_compared_is_no_success() {
    let (before, after) = (lines(&[("gone", "ms", &[1.0])]), lines(&[("new", "ms", &[1.0])]));
    for (name, before, after) in [("empty", "", ""), ("alone", before.as_str(), after.as_str())] {
        let output = compared(name, before, after);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "error: no case is in both\n");
    }
}

#[test]
fn a_line_that_is_none_is_named_with_its_file() {
    let output = compared("wrong", &lines(&[("steady", "ms", &[1.0])]), "{\"bench\":\"b\"}\n");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && message.starts_with("error: "), "{message}");
    assert!(message.contains("after.jsonl: line 1: missing field `case`"), "{message}");
}

/// A bench that took so many seconds, and writes it to a file.
fn bench(seconds: f64, file: &str) -> String {
    let line = format!(r#"{{\"bench\":\"sums\",\"case\":\"long\",\"unit\":\"s\",\"value\":{seconds}}}\n"#);
    format!("fn main() {{ std::fs::write({file}, \"{line}\").unwrap(); }}\n")
}

#[test]
fn an_earlier_commit_is_built_beside_and_takes_turns() {
    let folder = std::env::temp_dir().join(format!("tacit-commits-{}", std::process::id()));
    fs::create_dir_all(folder.join("benches")).unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        // What the run of this test is built with does not belong to the repository.
        command.current_dir(&folder).args(arguments).env("CARGO_TARGET_DIR", folder.join("target"));
        command.output().unwrap()
    };
    let git = |arguments: &[&str]| {
        let output = run("git", &[&["-c", "user.name=t", "-c", "user.email=t@t.example"][..], arguments].concat());
        assert!(output.status.success(), "{output:?}");
    };
    let package = "[package]\nname = \"sums\"\nedition = \"2024\"\n[lib]\npath = \"lib.rs\"\n[[bench]]\nname = \"sums\"\nharness = false\n[workspace]\n";
    fs::write(folder.join("Cargo.toml"), package).unwrap();
    fs::write(folder.join("lib.rs"), "").unwrap();
    fs::write(folder.join(".gitignore"), "target\n").unwrap();
    assert!(run(env!("CARGO"), &["generate-lockfile", "--offline"]).status.success());
    let written = folder.join("benches/sums.rs");
    fs::write(
        &written,
        bench(1.0, "std::env::current_exe().unwrap().ancestors().nth(3).unwrap().join(\"figures.jsonl\")"),
    )
    .unwrap();
    git(&["init", "--quiet"]);
    git(&["add", "."]);
    git(&["commit", "--quiet", "--message=first"]);
    fs::write(&written, bench(1.5, "std::env::var(\"TACIT_FIGURES\").unwrap()")).unwrap();

    let output = run(env!("CARGO_BIN_EXE_figures"), &["compare", "HEAD", "--rounds", "2", "sums"]);
    let misspelled = run(env!("CARGO_BIN_EXE_figures"), &["compare", "HEAD", "sum"]);
    fs::write(&written, "fn main() {").unwrap();
    let broken = run(env!("CARGO_BIN_EXE_figures"), &["compare", "HEAD", "sums"]);
    fs::remove_dir_all(&folder).unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("1.500 [1.500, 1.500] of 2  SLOWER"), "{output:?}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(misspelled.status.code(), Some(2), "{misspelled:?}");
    assert!(String::from_utf8_lossy(&misspelled.stderr).contains("error: no bench is named sum\n"), "{misspelled:?}");
    assert_eq!(broken.status.code(), Some(2), "{broken:?}");
    expect!["error: the benches of this tree cannot be built"].assert_eq(last(&broken.stderr));
}

/// The last line of what a program printed: others are of those that it started.
fn last(printed: &[u8]) -> &str {
    std::str::from_utf8(printed).unwrap().lines().last().unwrap_or_default()
}

#[test]
fn what_cannot_be_done_is_told() {
    let folder = std::env::temp_dir().join(format!("tacit-told-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let folder = fs::canonicalize(folder).unwrap();
    let program = |name: &str, arguments: &[&str]| {
        let mut command = Command::new(name);
        command.current_dir(&folder).args(arguments).env("CARGO_TARGET_DIR", folder.join("target"));
        command.output().unwrap()
    };
    let told = |arguments: &[&str]| {
        let output = program(env!("CARGO_BIN_EXE_figures"), arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        format!("{}: {}\n", arguments.join(" "), last(&output.stderr).replace(&folder.display().to_string(), "FOLDER"))
    };
    let mut said = [
        told(&["compare", "HEAD", "--rounds", "few"]),
        told(&["compare", "HEAD", "--fast"]),
        told(&["record", "--fast"]),
        told(&["keep", "absent.jsonl"]),
        told(&["record"]),
    ]
    .concat();
    assert!(program("git", &["init", "--quiet"]).status.success());
    said += &told(&["compare", "no-such-commit"]);
    let usage = program(env!("CARGO_BIN_EXE_figures"), &["measure"]);
    fs::remove_dir_all(&folder).unwrap();
    expect![[r#"
        compare HEAD --rounds few: error: --rounds few is no number
        compare HEAD --fast: error: --fast is not known; see `figures` without arguments
        record --fast: error: --fast is not known; see `figures` without arguments
        keep absent.jsonl: error: absent.jsonl: No such file or directory (os error 2)
        record: error: this folder is in no repository
        compare no-such-commit: error: no-such-commit is no commit of FOLDER
    "#]]
    .assert_eq(&said);
    assert_eq!(usage.status.code(), Some(2), "{usage:?}");
    expect![[r#"
        figures compare COMMIT [--rounds N] [BENCH...] [-- ARGUMENT...]
            Builds the benches of an earlier commit in a worktree of its own under target/compare, lets them take turns with those
            of this tree, 5 rounds if not said otherwise, and fails if a case is more than a tenth slower in three quarters of them.
        figures compare --lines BEFORE AFTER
            The same of lines that were recorded before.
        figures record [BENCH...] [-- ARGUMENT...]
            Runs the benches of this tree, keeps their lines in benches/recorded/ours.jsonl, and draws the page of the book.
        figures keep FILE
            Keeps lines that were recorded before, in the place of those of the same benches on the same machine.
    "#]].assert_eq(&String::from_utf8_lossy(&usage.stdout));
}
