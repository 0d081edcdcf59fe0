//! `tacit new`: a project of one's own, with a quantized layer that runs.

use std::path::{Path, PathBuf};
use std::{env, fmt, fs, process};

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde::Serialize;
use tacit_core::{Error, Result};

use crate::shell;

#[derive(Args)]
pub(crate) struct Options {
    /// The folder that is made; its last part names the package
    folder: PathBuf,
    /// Take Tacit from this clone, in place of the one that this program was built in
    #[arg(long, value_name = "CLONE", conflicts_with_all = ["git", "rev"])]
    path: Option<PathBuf>,
    /// Take Tacit from the git repository at this address
    #[arg(long, value_name = "URL", value_parser = NonEmptyStringValueParser::new())]
    git: Option<String>,
    /// Stay with this commit of the git repository
    #[arg(long, value_name = "COMMIT", requires = "git", value_parser = NonEmptyStringValueParser::new())]
    rev: Option<String>,
}

#[derive(Serialize)]
pub(crate) struct Made {
    /// With U+FFFD for what is no UTF-8: serde refuses such a path.
    folder: String,
    files: [&'static str; 4],
}

/// The files of a project, with `{..}` for what differs.
const FILES: [(&str, &str); 4] = [
    ("Cargo.toml", include_str!("../templates/new/manifest.toml")),
    ("src/main.rs", include_str!("../templates/new/main.rs")),
    ("README.md", include_str!("../templates/new/readme.md")),
    (".gitignore", include_str!("../templates/new/gitignore")),
];

pub(crate) fn new(options: &Options) -> Result<Made> {
    let name = package_name(&options.folder)?;
    let source = match &options.git {
        Some(url) => Source::Git { url, rev: options.rev.as_deref() },
        None => Source::Clone(clone(options.path.as_deref())?),
    };
    make(&options.folder, name, &source)?;
    Ok(Made { folder: options.folder.display().to_string(), files: FILES.map(|(file, _)| file) })
}

/// Where a project takes Tacit's crates from.
enum Source<'a> {
    Clone(PathBuf),
    Git { url: &'a str, rev: Option<&'a str> },
}

impl Source<'_> {
    /// The keys of a dependency on the crate in this folder of the repository.
    fn keys(&self, folder: &str) -> Result<String> {
        Ok(match self {
            Self::Clone(clone) => {
                let path = clone.join(folder);
                let path = path.to_str().ok_or_else(|| not_text(&path))?;
                format!("path = {}", quoted(path.trim_end_matches('/')))
            }
            Self::Git { url, rev: None } => format!("git = {}", quoted(url)),
            Self::Git { url, rev: Some(rev) } => format!("git = {}, rev = {}", quoted(url), quoted(rev)),
        })
    }
}

fn quoted(text: &str) -> String {
    // Every string of JSON is one of TOML.
    serde_json::Value::from(text).to_string()
}

fn not_text(path: &Path) -> Error {
    Error::invalid(
        format!("{} is no text", path.display()),
        "give a path of Unicode characters, for Cargo.toml is text",
    )
}

/// The clone with this path, or the one that this program was built in.
fn clone(path: Option<&Path>) -> Result<PathBuf> {
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let help = "say where Tacit is: `--path CLONE`, or `--git URL`";
    let Some(path) = path else {
        // Cargo marks the checkouts of its own with this file, and removes them when it likes.
        return match built_in.canonicalize() {
            Ok(clone) if is_clone(&clone) && !clone.join(".cargo-ok").exists() => Ok(clone),
            _ => Err(Error::invalid("the clone that this program was built in is not there", help)),
        };
    };
    let clone = path.canonicalize().map_err(Error::file("open", path))?;
    if is_clone(&clone) {
        Ok(clone)
    } else {
        Err(Error::invalid(format!("{} is no clone of Tacit", path.display()), help))
    }
}

fn is_clone(folder: &Path) -> bool {
    folder.join("crates/tacit/lib.rs").is_file() && folder.join("crates/mlx-sys/Cargo.toml").is_file()
}

/// The last part of the path, if Cargo and the language take it for the name of a package.
fn package_name(folder: &Path) -> Result<&str> {
    let help = "begin with a letter, and go on with letters, digits, `-` and `_`";
    let name = folder.file_name().ok_or_else(|| {
        Error::invalid(format!("{} names no folder to make", folder.display()), "give the name of the project")
    })?;
    let name = name.to_str().ok_or_else(|| not_text(folder))?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.chars().all(allowed) {
        return Err(Error::invalid(format!("`{name}` cannot name a package"), help));
    }
    let krate = name.replace('-', "_");
    if KEYWORDS.contains(&&*krate) {
        return Err(Error::invalid(format!("`{name}` is a word of the language and cannot name a package"), help));
    }
    if TAKEN.contains(&&*krate) {
        return Err(Error::invalid(
            format!("`{name}` is the name of a crate that the project uses"),
            "take another name",
        ));
    }
    Ok(name)
}

/// The reserved words of Rust that can be written as a name of a package.
#[rustfmt::skip]
const KEYWORDS: [&str; 52] = [
    "Self", "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate", "do", "dyn", "else",
    "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop", "macro", "match", "mod", "move",
    "mut", "override", "priv", "pub", "ref", "return", "self", "static", "struct", "super", "trait", "true", "try", "type",
    "typeof", "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
];

/// The crates that a program names in code or in its manifest, those of Tacit, of which Cargo wants one of each name, and what
/// Cargo keeps for its own.
#[rustfmt::skip]
const TAKEN: [&str; 32] = [
    "alloc", "build", "core", "deps", "examples", "incremental", "mach_sys", "mlx_rs", "mlx_sys", "proc_macro", "std",
    "tacit", "tacit_arrays", "tacit_blas", "tacit_bridge", "tacit_cli", "tacit_conformance", "tacit_core",
    "tacit_distributed", "tacit_drawing", "tacit_executable", "tacit_files", "tacit_figures", "tacit_fusion",
    "tacit_io", "tacit_kernels", "tacit_macros", "tacit_mlx", "tacit_models", "tacit_nn", "tacit_record", "test",
];

/// Writes the files into a folder beside, which takes its place when it is whole.
fn make(folder: &Path, name: &str, source: &Source) -> Result<()> {
    if folder.symlink_metadata().is_ok() {
        let help = "give the name of a folder that does not exist";
        return Err(Error::invalid(format!("{} exists", folder.display()), help));
    }
    let mut texts = Vec::new();
    for (file, template) in FILES {
        let mut text = template.replace("{name}", name);
        for (place, krate) in [("{tacit}", ""), ("{mlx-sys}", "crates/mlx-sys"), ("{mach-sys}", "crates/mach-sys")] {
            if text.contains(place) {
                text = text.replace(place, &source.keys(krate)?);
            }
        }
        texts.push((file, text));
    }
    let beside = folder.with_file_name(format!(".{name}-{}", process::id()));
    fs::create_dir(&beside).map_err(Error::file("create", folder))?;
    // A folder that was there is somebody else's: in containers many programs have one number.
    let beside = Beside(beside);
    for (file, text) in texts {
        let file = beside.0.join(file);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent).map_err(Error::file("create", parent))?;
        }
        fs::write(&file, text).map_err(Error::file("write", &file))?;
    }
    fs::rename(&beside.0, folder).map_err(Error::file("create", folder))
}

/// A folder that is removed with all it holds, if it is still there.
struct Beside(PathBuf);

impl Drop for Beside {
    fn drop(&mut self) {
        // A folder left behind is only litter.
        drop(fs::remove_dir_all(&self.0));
    }
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let folder = &self.folder;
        for file in self.files {
            writeln!(f, "{folder}/{file}")?;
        }
        write!(f, "run it: cd {} && cargo run", shell::quoted(folder))
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{expect, expect_file};

    use super::*;

    /// A folder of a test, which is gone after it.
    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("makes a folder"))
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).expect("reads");
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect()
        }

        fn make(&self, name: &str, path: Option<&Path>, git: Option<&str>) -> Result<Made> {
            let (path, git) = (path.map(Path::to_owned), git.map(str::to_owned));
            new(&Options { folder: self.0.path().join(name), path, git, rev: None })
        }
    }

    #[test]
    fn a_project_takes_tacit_from_the_clone_that_the_program_was_built_in() {
        let folder = Folder::new();
        folder.make("hello-there", None, None).expect("makes");
        assert_eq!(folder.names(), ["hello-there"]);
        let manifest = fs::read_to_string(folder.0.path().join("hello-there/Cargo.toml")).expect("reads");
        let clone = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("a path");
        let manifest: toml::Table = manifest.replace(clone.to_str().expect("text"), "CLONE").parse().expect("TOML");
        assert_eq!(manifest["package"]["name"].as_str(), Some("hello-there"));
        assert_eq!(manifest["dependencies"]["tacit-mlx"]["path"].as_str(), Some("CLONE"));
        assert_eq!(manifest["patch"]["crates-io"]["mach-sys"]["path"].as_str(), Some("CLONE/crates/mach-sys"));
    }

    #[test]
    fn what_is_to_be_run_goes_into_a_folder_with_spaces() {
        let folder = Folder::new();
        fs::create_dir(folder.0.path().join("my work")).expect("makes");
        let message = folder.make("my work/hello", None, Some("https://example.org/tacit")).expect("makes").to_string();
        let command =
            message.lines().last().expect("a line").replace(folder.0.path().to_str().expect("text"), "FOLDER");
        assert_eq!(command, "run it: cd 'FOLDER/my work/hello' && cargo run");
    }

    #[test]
    fn a_project_takes_tacit_from_a_git_repository() {
        let folder = Folder::new();
        // What would end the string in the manifest stays in it.
        folder.make("hello", None, Some("file:///a \"b\"")).expect("makes");
        let manifest = fs::read_to_string(folder.0.path().join("hello/Cargo.toml")).expect("reads");
        let manifest: toml::Table = manifest.parse().expect("TOML");
        for crates in [&manifest["dependencies"]["tacit-mlx"], &manifest["patch"]["crates-io"]["mlx-sys"]] {
            assert_eq!(crates["git"].as_str(), Some("file:///a \"b\""));
        }
    }

    #[test]
    fn no_project_has_the_name_of_a_crate_of_tacit() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let manifests =
            fs::read_dir(crates).expect("reads").map(|entry| entry.expect("an entry").path().join("Cargo.toml"));
        let mut count = 0;
        for manifest in manifests.filter(|manifest| manifest.is_file()) {
            let manifest: toml::Table = fs::read_to_string(manifest).expect("reads").parse().expect("TOML");
            let name = manifest["package"]["name"].as_str().expect("a name");
            assert!(package_name(Path::new(name)).is_err(), "{name} is taken");
            count += 1;
        }
        assert!(count > 10);
    }

    /// Cargo takes a package in the folder of a workspace for a member that was forgotten, but for one with its own.
    #[test]
    fn a_project_in_a_workspace_is_one_of_its_own() {
        let folder = Folder::new();
        fs::write(folder.0.path().join("Cargo.toml"), "[workspace]\nmembers = []\n").expect("writes");
        folder.make("hello", None, None).expect("makes");
        let manifest = folder.0.path().join("hello/Cargo.toml");
        let cargo = process::Command::new(env!("CARGO"))
            .args(["locate-project", "--workspace", "--message-format=plain"])
            .arg("--manifest-path")
            .arg(&manifest)
            .output()
            .expect("starts");
        let found = String::from_utf8(cargo.stdout).expect("text");
        assert_eq!(Path::new(found.trim()).canonicalize().expect("a path"), manifest.canonicalize().expect("a path"));
        let parsed: toml::Table = fs::read_to_string(&manifest).expect("reads").parse().expect("TOML");
        assert!(parsed.contains_key("workspace"));
    }

    #[test]
    fn the_manifest_is_the_one_in_the_book() {
        let folder = Folder::new();
        folder.make("hello", None, Some("https://example.org/tacit")).expect("makes");
        let manifest = fs::read_to_string(folder.0.path().join("hello/Cargo.toml")).expect("reads");
        expect_file!["../../../book/src/output/installing/manifest.toml"].assert_eq(&manifest);
    }

    #[test]
    fn what_is_somebody_elses_stays() {
        let folder = Folder::new();
        let theirs = folder.0.path().join(format!(".hello-{}", process::id()));
        fs::create_dir(&theirs).expect("makes");
        fs::write(theirs.join("mine"), "mine").expect("writes");
        assert!(folder.make("hello", None, Some("https://example.org/tacit")).is_err());
        assert!(theirs.join("mine").is_file());
    }

    #[test]
    fn what_cannot_be_made_leaves_nothing() {
        let folder = Folder::new();
        fs::create_dir(folder.0.path().join("there")).expect("makes");
        let before = folder.names();
        let mut said = String::new();
        for name in ["there", "1st", "a b", "async", "mlx-rs", "tacit-core", "..", "no/folder", "hello"] {
            let no_clone = (name == "hello").then_some(folder.0.path());
            let error = folder.make(name, no_clone, None).map(|project| project.folder).expect_err(name);
            said.extend([error.to_string().as_str(), "\n"]);
            assert_eq!(folder.names(), before, "{name}");
        }
        expect![[r#"
            FOLDER/there exists
            help: give the name of a folder that does not exist
            `1st` cannot name a package
            help: begin with a letter, and go on with letters, digits, `-` and `_`
            `a b` cannot name a package
            help: begin with a letter, and go on with letters, digits, `-` and `_`
            `async` is a word of the language and cannot name a package
            help: begin with a letter, and go on with letters, digits, `-` and `_`
            `mlx-rs` is the name of a crate that the project uses
            help: take another name
            `tacit-core` is the name of a crate that the project uses
            help: take another name
            FOLDER/.. names no folder to make
            help: give the name of the project
            cannot create FOLDER/no/folder: No such file or directory (os error 2)
            FOLDER is no clone of Tacit
            help: say where Tacit is: `--path CLONE`, or `--git URL`
        "#]]
        .assert_eq(&said.replace(folder.0.path().to_str().expect("text"), "FOLDER"));
    }
}
