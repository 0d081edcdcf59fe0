//! Mistakes in the use of the macros and in calls, one a file: the error stands where the mistake is and names the fix.
//!
//! The compiler is called by hand on the libraries that this test was built with, so that nothing is built twice.
//! `UPDATE_EXPECT=1 cargo test -p tacit-core --test ui` rewrites the expected texts.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::available_parallelism;
use std::{env, fs, thread};

use serde_json::Value;

#[test]
fn a_mistake_is_an_error_that_names_the_fix() {
    let libraries = Libraries::find();
    let mut cases: Vec<PathBuf> = fs::read_dir("tests/ui").unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.retain(|path| path.extension() == Some(OsStr::new("rs")));
    cases.sort();
    assert!(!cases.is_empty(), "no cases in tests/ui");
    let share = cases.len().div_ceil(available_parallelism().map_or(1, usize::from));
    let failures: Vec<String> = thread::scope(|scope| {
        let run = |cases: &[PathBuf]| cases.iter().filter_map(|case| libraries.check(case).err()).collect::<Vec<_>>();
        let threads: Vec<_> = cases.chunks(share).map(|cases| scope.spawn(move || run(cases))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(failures.is_empty(), "{} of {} cases differ\n\n{}", failures.len(), cases.len(), failures.join("\n"));
}

/// What the cases are compiled against.
struct Libraries {
    /// The folder of all that was built.
    folder: PathBuf,
    /// The arguments that name the libraries.
    externs: Vec<String>,
}

impl Libraries {
    /// Asks cargo, which has built them already.
    fn find() -> Self {
        let folder = env::current_exe().unwrap().parent().unwrap().to_owned();
        let profile = folder.parent().unwrap();
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--quiet", "--lib", "--message-format=json", "--target-dir"]);
        cargo.arg(profile.parent().unwrap());
        cargo.args([
            "--profile",
            match profile.file_name().and_then(OsStr::to_str).unwrap() {
                "debug" => "dev",
                other => other,
            },
        ]);
        let output = cargo.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        let externs = ["tacit_core", "mlx_rs"].map(|name| {
            let built = |line| serde_json::from_str::<Value>(line).ok().filter(|built| built["target"]["name"] == name);
            let built = text.lines().find_map(built).unwrap_or_else(|| panic!("cargo did not build {name}"));
            let mut libraries = built["filenames"].as_array().unwrap().iter().filter_map(Value::as_str);
            let library = libraries.find(|file| Path::new(file).extension() == Some(OsStr::new("rmeta")));
            format!("--extern={name}={}", library.unwrap_or_else(|| panic!("cargo built no library of {name}")))
        });
        Self { folder, externs: externs.into() }
    }

    /// Compiles a case and compares what the compiler says.
    fn check(&self, case: &Path) -> Result<(), String> {
        let mut compiler = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        compiler.args(["--edition=2024", "--emit=metadata", "--diagnostic-width=140", "--color=never", "--out-dir"]);
        compiler.arg(env!("CARGO_TARGET_TMPDIR")).arg("-L").arg(format!("dependency={}", self.folder.display()));
        // The libraries were compiled in the root of the workspace and name their sources from there.
        compiler.args(&self.externs).arg(Path::new("crates/core").join(case)).current_dir("../..");
        let output = compiler.output().unwrap();
        if output.status.success() {
            return Err(format!("{} compiles\n", case.display()));
        }
        let found = normalized(&String::from_utf8_lossy(&output.stderr));
        let file = case.with_extension("stderr");
        let expected = fs::read_to_string(&file).unwrap_or_default();
        if flush(&expected) == flush(&found) {
            return Ok(());
        }
        if env::var_os("UPDATE_EXPECT").is_some_and(|value| value == "1") {
            fs::write(&file, found).unwrap();
            return Ok(());
        }
        Err(format!("{}\nexpected:\n{expected}\nfound:\n{found}", case.display()))
    }
}

/// The text without what changes with code elsewhere: folders, line numbers, counts.
fn normalized(text: &str) -> String {
    let mut lines = Vec::new();
    let mut elsewhere = false;
    for line in text.replace("crates/core/", "").replace("tacit_core::", "tacit::").lines() {
        let rest = line.trim_start_matches(|character: char| character == ' ' || character.is_ascii_digit());
        let gutter = " ".repeat(line.len() - rest.len());
        let path = rest.strip_prefix("--> ").or_else(|| rest.strip_prefix("::: "));
        if let Some(path) = path {
            elsewhere = !path.starts_with("tests/ui/");
        } else if rest == line && rest != "..." {
            elsewhere = false;
        }
        let summary = ["error: aborting due to", "For more information about", "Some errors have"];
        match path {
            _ if summary.iter().any(|start| line.starts_with(start)) => {}
            Some(path) if elsewhere => {
                let file = path.split(':').next().unwrap_or(path);
                let generated = file.rsplit_once("/out/").map(|(_, name)| format!("$OUT_DIR[tacit-bridge]/{name}"));
                lines.push(format!("{gutter}{}{}", &rest[..4], generated.as_deref().unwrap_or(file)));
            }
            None if elsewhere && rest.starts_with('|') => lines.push(gutter + rest),
            None if rest.starts_with("and ") && rest.ends_with(" others") => lines.push(gutter + "and $N others"),
            _ => lines.push(line.to_owned()),
        }
    }
    lines.join("\n").trim_end().to_owned() + "\n"
}

/// The lines without the space before them, which is as wide as the longest line number of any file.
fn flush(text: &str) -> Vec<&str> {
    text.lines().map(str::trim_start).filter(|line| !line.is_empty()).collect()
}
