//! Checks the C++ compiler before anything is compiled with it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::environment;
use crate::failure::Failure;

/// What the build needs to know about the C++ compiler.
pub(crate) struct Compiler {
    /// Folder with a stand-in for `<format>`, if the compiler's library lacks it.
    pub(crate) compat: Option<PathBuf>,
}

impl Compiler {
    /// Tries the compiler on two short files.
    pub(crate) fn check() -> Result<Self, Failure> {
        accepts("#include <version>\n#include <concepts>\nint main() {}\n")?;
        let has_format =
            accepts("#include <format>\nint main() { return std::format(\"{}\", 1).size() == 0; }\n").is_ok();
        let compat = environment::manifest_dir().join("csrc/compat");
        Ok(Self { compat: (!has_format).then_some(compat) })
    }
}

/// Starts a build with the settings that every C++ file here shares.
pub(crate) fn settings() -> cc::Build {
    let mut build = cc::Build::new();
    build.cpp(true).std("c++20").warnings(false).debug(false).opt_level(1);
    build
}

fn accepts(source: &str) -> Result<(), Failure> {
    let tool = settings().try_get_compiler().map_err(|error| Failure::no_compiler("c++", &error.to_string()))?;
    let name = tool.path().display().to_string();
    let file = environment::out_dir().join("probe.cpp");
    fs::write(&file, source).map_err(|error| Failure::io("write", &file, &error))?;
    let output = run(tool.to_command(), &file).map_err(|error| Failure::no_compiler(&name, &error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Failure::no_compiler(
        &name,
        text.lines().find(|line| line.contains("error")).unwrap_or("it fails on an empty file"),
    ))
}

/// Compiles the file to an object, without optimization: some compilers for other machines refuse to only check it.
fn run(mut command: std::process::Command, file: &Path) -> std::io::Result<std::process::Output> {
    command.args(["-O0", "-c"]).arg(file).arg("-o").arg(file.with_extension("o")).output()
}
