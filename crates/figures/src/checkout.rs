//! A tree of sources whose benches are built and run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

use serde::Deserialize;
use tacit_figures::{Line, read};

use crate::succeed;

/// A tree of sources, with a folder for what is built of it.
pub(crate) struct Checkout {
    /// The commit, or `this tree`.
    pub(crate) name: String,
    root: PathBuf,
    target: PathBuf,
}

/// A bench that was built.
pub(crate) struct Built {
    pub(crate) name: String,
    program: PathBuf,
    /// The folder that Cargo starts it in.
    package: PathBuf,
}

impl Checkout {
    /// The tree that this program is of.
    pub(crate) fn here(root: &Path, target: &Path) -> Self {
        Self { name: "this tree".into(), root: root.into(), target: target.into() }
    }

    /// Another commit, in a worktree that stays in the folder, so that it is built once.
    pub(crate) fn new(root: &Path, folder: &Path, commit: &str) -> io::Result<Self> {
        let mut git = Command::new("git");
        git.current_dir(root).args(["rev-parse", "--verify", "--short=12", &format!("{commit}^{{commit}}")]);
        let output = git.stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            return Err(io::Error::other(format!("{commit} is no commit of {}", root.display())));
        }
        let name = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let (tree, target) = (folder.join(&name).join("tree"), folder.join(&name).join("target"));
        if !tree.join("Cargo.toml").exists() {
            fs::create_dir_all(folder)?;
            let mut git = Command::new("git");
            git.current_dir(root).args(["worktree", "add", "--force", "--detach"]).arg(&tree).arg(&name);
            succeed(&mut git)?;
        }
        Ok(Self { name, root: tree, target })
    }

    /// Builds these benches, those of them that the tree has.
    pub(crate) fn benches(&self, names: &[&str]) -> io::Result<Vec<Built>> {
        let mut cargo = self.cargo();
        cargo.args(["metadata", "--no-deps", "--format-version=1", "--locked", "--quiet"]);
        let metadata: Metadata = serde_json::from_slice(&cargo.stderr(Stdio::inherit()).output()?.stdout)?;
        let targets = metadata.packages.iter().flat_map(|package| &package.targets);
        let known: Vec<&str> = targets.filter(|target| target.is_bench()).map(|target| target.name.as_str()).collect();
        let mut cargo = self.cargo();
        cargo.args(["bench", "--workspace", "--no-run", "--locked", "--message-format=json-render-diagnostics"]);
        let wanted: Vec<&str> = names.iter().copied().filter(|name| known.contains(name)).collect();
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        for name in wanted {
            cargo.args(["--bench", name]);
        }
        let output = cargo.stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            return Err(io::Error::other(format!("the benches of {} cannot be built", self.name)));
        }
        let messages = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Message>();
        let mut built = Vec::new();
        for message in messages {
            let Message { target: Some(target), executable: Some(program), manifest_path: Some(manifest) } = message?
            else {
                continue;
            };
            if target.is_bench() {
                let package = manifest.parent().map_or_else(PathBuf::new, Path::to_path_buf);
                built.push(Built { name: target.name, program, package });
            }
        }
        built.sort_by_key(|built| names.iter().position(|name| *name == built.name));
        Ok(built)
    }

    /// Runs a bench and takes its lines.
    pub(crate) fn lines(&self, bench: &Built, arguments: &[String]) -> io::Result<Vec<Line>> {
        // Earlier commits know one place, which this program asks the later ones to write to as well.
        let (file, aside) = (self.target.join("figures.jsonl"), self.target.join("figures.jsonl.aside"));
        let moved = file.exists() && fs::rename(&file, &aside).is_ok();
        let mut program = Command::new(&bench.program);
        program.current_dir(&bench.package).env("TACIT_FIGURES", &file).arg("--bench").args(arguments);
        let lines = succeed(&mut program).and_then(|()| if file.exists() { read(&file) } else { Ok(Vec::new()) });
        if file.exists() {
            fs::remove_file(&file)?;
        }
        if moved {
            fs::rename(&aside, &file)?;
        }
        lines
    }

    fn cargo(&self) -> Command {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target);
        cargo
    }
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

impl Target {
    fn is_bench(&self) -> bool {
        self.kind.iter().any(|kind| kind == "bench")
    }
}

/// What Cargo says of something that it built.
#[derive(Deserialize)]
struct Message {
    target: Option<Target>,
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
}
