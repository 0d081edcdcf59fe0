//! Reads in advance what MLX's `compile` has the C++ compiler read for every kernel.
//!
//! A kernel is a few lines behind one header, whose standard C++ takes three quarters of the half second that each one
//! costs. The compiler takes a precompiled header without being told, if it stands where it looks first: beside the
//! kernel, where `csrc/jit_directory.cpp` puts it. If it does not fit the compiler of the day, it is passed over.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::environment;
use crate::locate::Mlx;

/// MLX's command for a kernel, up to its files.
const COMPILER: &str = "g++";
const FLAGS: &[&str] = &["-std=c++17", "-O3", "-Wall", "-fPIC", "-shared"];
pub(crate) const HEADER: &str = "mlx/backend/cpu/compiled_preamble.h";

/// Where the precompiled header is written.
pub(crate) fn file() -> PathBuf {
    environment::out_dir().join("compiled_preamble.h.gch")
}

/// Begins to write it beside other work; nothing where MLX does not compile by this compiler, or where there is none.
pub(crate) fn precompile(mlx: &Mlx) -> Option<Child> {
    if environment::is_apple() || environment::cargo("HOST") != environment::cargo("TARGET") {
        return None;
    }
    let mut command = Command::new(COMPILER);
    command.args(FLAGS).args(["-x", "c++-header", "-I"]).arg(&mlx.include).arg(mlx.include.join(HEADER));
    command.arg("-o").arg(file()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
}

/// Waits until it is there. Without it kernels compile as slowly as ever.
pub(crate) fn finish(compiler: Option<Child>) {
    if let Some(mut child) = compiler {
        let _ = child.wait();
        // A header that others may write to is not taken.
        let _ = fs::set_permissions(file(), Permissions::from_mode(0o644));
    }
}
