//! The program `figures`: compares commits, and records what the book draws.

mod checkout;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::{env, fmt, fs};

use checkout::{Built, Checkout};
use tacit_figures::compare::{Comparison, compare};
use tacit_figures::{Line, page, read};

const USAGE: &str = "\
figures compare COMMIT [--rounds N] [BENCH...] [-- ARGUMENT...]
    Builds the benches of an earlier commit in a worktree of its own under target/compare, lets them take turns with those
    of this tree, 5 rounds if not said otherwise, and fails if a case is more than a tenth slower in three quarters of them.
figures compare --lines BEFORE AFTER
    The same of lines that were recorded before.
figures record [BENCH...] [-- ARGUMENT...]
    Runs the benches of this tree, keeps their lines in benches/recorded/ours.jsonl, and draws the page of the book.
figures keep FILE
    Keeps lines that were recorded before, in the place of those of the same benches on the same machine.
";

/// The benches that are recorded and compared if none are named.
const BENCHES: [&str; 11] = [
    "interception",
    "compile",
    "executable",
    "dense",
    "matmul",
    "quantize",
    "qat",
    "memory",
    "models",
    "generate",
    "distributed",
];

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            note(format_args!("error: {error}"));
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &[String]) -> io::Result<ExitCode> {
    let (own, passed) = match arguments.iter().position(|argument| argument == "--") {
        Some(place) => (&arguments[..place], &arguments[place + 1..]),
        None => (arguments, &[][..]),
    };
    match own.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["compare", "--lines", before, after] => told(&compare(&read(Path::new(before))?, &read(Path::new(after))?)),
        ["compare", commit, "--rounds", rounds, ref benches @ ..] => {
            let rounds = rounds.parse().map_err(|_| io::Error::other(format!("--rounds {rounds} is no number")))?;
            alternate(commit, rounds, &chosen(benches)?, passed)
        }
        ["compare", commit, ref benches @ ..] if !commit.starts_with('-') => {
            alternate(commit, 5, &chosen(benches)?, passed)
        }
        ["record", ref benches @ ..] => record(&chosen(benches)?, passed),
        ["keep", file] => keep(&read(Path::new(file))?),
        _ => {
            show(format_args!("{USAGE}"));
            Ok(ExitCode::from(2))
        }
    }
}

fn chosen<'a>(named: &[&'a str]) -> io::Result<Vec<&'a str>> {
    let wrong = named.iter().find(|name| name.starts_with('-'));
    match wrong {
        Some(wrong) => Err(io::Error::other(format!("{wrong} is not known; see `figures` without arguments"))),
        None if named.is_empty() => Ok(BENCHES.to_vec()),
        None => Ok(named.to_vec()),
    }
}

fn told(comparison: &Comparison) -> io::Result<ExitCode> {
    show(format_args!("{comparison}"));
    // Where nothing was compared, nobody knows that nothing became slower.
    if comparison.changes.is_empty() {
        return Err(io::Error::other("no case is in both"));
    }
    let slower = comparison.regressions().count();
    show(format_args!("{slower} of {} cases are more than a tenth slower\n", comparison.changes.len()));
    Ok(if slower == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints a result. Who has closed the output has read enough, and measuring goes on.
fn show(text: fmt::Arguments<'_>) {
    drop(write!(io::stdout(), "{text}"));
}

/// Says something beside the results.
fn note(text: fmt::Arguments<'_>) {
    drop(writeln!(io::stderr(), "{text}"));
}

/// Checks that each of these benches was built on some side: one that was not is misspelled, or is no more.
fn check_built(benches: &[&str], sides: &[Vec<Built>]) -> io::Result<()> {
    match benches.iter().find(|bench| sides.iter().flatten().all(|built| built.name != **bench)) {
        Some(bench) => Err(io::Error::other(format!("no bench is named {bench}"))),
        None => Ok(()),
    }
}

/// The root of the tree that this program is called in.
fn root() -> io::Result<PathBuf> {
    let output = Command::new("git").args(["rev-parse", "--show-toplevel"]).stderr(Stdio::inherit()).output()?;
    let shown = String::from_utf8_lossy(&output.stdout);
    if output.status.success() {
        Ok(shown.trim().into())
    } else {
        Err(io::Error::other("this folder is in no repository"))
    }
}

/// Where Cargo builds this tree.
fn target(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// Runs the benches of another commit and of this tree in turn.
fn alternate(commit: &str, rounds: usize, benches: &[&str], arguments: &[String]) -> io::Result<ExitCode> {
    let root = root()?;
    let target = target(&root);
    let sides = [Checkout::new(&root, &target.join("compare"), commit)?, Checkout::here(&root, &target)];
    let built = [sides[0].benches(benches)?, sides[1].benches(benches)?];
    check_built(benches, &built)?;
    let mut lines = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        for bench in benches {
            for turn in 0..2 {
                let side = (round + turn) % 2;
                let Some(bench) = built[side].iter().find(|built| built.name == *bench) else { continue };
                note(format_args!("round {} of {rounds}: {} of {}", round + 1, bench.name, sides[side].name));
                lines[side].extend(sides[side].lines(bench, arguments)?);
            }
        }
    }
    told(&compare(&lines[0], &lines[1]))
}

/// Runs the benches of this tree and keeps what they record.
fn record(benches: &[&str], arguments: &[String]) -> io::Result<ExitCode> {
    let root = root()?;
    let here = Checkout::here(&root, &target(&root));
    let built = [here.benches(benches)?];
    check_built(benches, &built)?;
    let mut lines = Vec::new();
    for bench in built.iter().flatten() {
        note(format_args!("{}", bench.name));
        lines.extend(here.lines(bench, arguments)?);
    }
    keep(&lines)
}

/// Keeps these lines in the place of those of the same benches on the same machine, and draws the page.
fn keep(lines: &[Line]) -> io::Result<ExitCode> {
    let root = root()?;
    let file = root.join(page::OURS);
    let place = |line: &Line| {
        let machine =
            line.run.as_ref().map(|run| (run.machine.cpu.clone(), run.machine.isa.clone(), run.machine.threads));
        (line.bench.clone(), machine)
    };
    let known = if file.exists() { read(&file)? } else { Vec::new() };
    let kept = known.iter().filter(|known| lines.iter().all(|line| place(line) != place(known)));
    let mut text = String::new();
    for line in kept.chain(lines) {
        text += &serde_json::to_string(line)?;
        text.push('\n');
    }
    fs::create_dir_all(file.parent().unwrap_or(&root))?;
    fs::write(&file, text)?;
    let charts = root.join(page::FOLDER).join("figures");
    if charts.exists() {
        fs::remove_dir_all(charts)?;
    }
    for (name, text) in page::files(&root)? {
        let file = root.join(page::FOLDER).join(name);
        fs::create_dir_all(file.parent().unwrap_or(&root))?;
        fs::write(file, text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a command to its end, whose output goes on to who is looking.
fn succeed(command: &mut Command) -> io::Result<()> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{command:?} ends with {status}"))) }
}
