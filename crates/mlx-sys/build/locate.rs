//! Finds MLX: `MLX_DIR`, else the Python package if `MLX_USE_PYTHON=1`, else the pinned wheel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::Failure;
use crate::versions::{self, Version};
use crate::wheel::{self, Wheel};
use crate::{environment, python};

/// The version of MLX that `mlx-c` 0.7.0 is written for, of the pinned wheels.
pub(crate) const MLX_VERSION: &str = "0.32.2";

/// A usable MLX on this machine.
pub(crate) struct Mlx {
    pub(crate) include: PathBuf,
    /// The shared library that programs load, as an absolute path.
    pub(crate) library: PathBuf,
    /// The version that the headers state.
    pub(crate) version: Version,
}

impl Mlx {
    pub(crate) fn version_header(&self) -> PathBuf {
        self.include.join("mlx/version.h")
    }
}

/// Finds MLX and checks its version.
pub(crate) fn locate() -> Result<Mlx, Failure> {
    if let Some(prefix) = environment::user("MLX_DIR") {
        let prefix = PathBuf::from(prefix);
        if prefix.is_relative() {
            return Err(Failure::mlx_dir_relative(&prefix));
        }
        return named("MLX_DIR", &prefix);
    }
    if environment::switch("MLX_USE_PYTHON") {
        return named("MLX_USE_PYTHON=1", &python_package()?);
    }
    let unpacked = pinned_wheel()?.unpacked()?;
    inspect("the pinned wheel", &unpacked.join("mlx"), &|missing| Failure::incomplete_wheel(&unpacked, missing))
}

/// The MLX that a variable names.
fn named(variable: &str, prefix: &Path) -> Result<Mlx, Failure> {
    inspect(variable, prefix, &|missing| Failure::incomplete_prefix(variable, prefix, missing))
}

/// The MLX in a prefix, which lacks something where `missing` is called.
fn inspect(origin: &str, prefix: &Path, missing: &dyn Fn(&str) -> Failure) -> Result<Mlx, Failure> {
    let include = prefix.join("include");
    let library_name = if environment::is_apple() { "lib/libmlx.dylib" } else { "lib/libmlx.so" };
    let library = prefix.join(library_name);
    let header = fs::read_to_string(include.join("mlx/version.h")).map_err(|_| missing("include/mlx/version.h"))?;
    let library = library.canonicalize().map_err(|_| missing(library_name))?;
    let version = version_in(&header).ok_or_else(|| missing("version in include/mlx/version.h"))?;
    if version < versions::OLDEST && !environment::switch("MLX_BYPASS_VERSION_CHECK") {
        return Err(Failure::wrong_version(origin, prefix, version));
    }
    if let Some(warning) = versions::untested(version) {
        println!("cargo::warning={warning}");
    }
    Ok(Mlx { include, library, version })
}

fn version_in(header: &str) -> Option<Version> {
    let part = |name: &str| {
        let line = header.lines().find_map(|line| line.strip_prefix("#define MLX_VERSION_")?.strip_prefix(name))?;
        line.trim().parse::<u32>().ok()
    };
    Some(Version([part("MAJOR")?, part("MINOR")?, part("PATCH")?]))
}

/// Asks the active interpreter where `mlx` is; the package spans several folders, of which one has the library.
fn python_package() -> Result<PathBuf, Failure> {
    const ASK: &str = "import importlib.util as u; s = u.find_spec('mlx'); \
                       print(*(s.submodule_search_locations if s else ()), sep='\\n')";
    // Which interpreter is the active one, and where it looks.
    for variable in ["PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME"] {
        environment::announce(variable);
    }
    let output = python::run(&["-c", ASK], "find its mlx package (MLX_USE_PYTHON=1)", "unset MLX_USE_PYTHON")?;
    let folders = String::from_utf8_lossy(&output.stdout).into_owned();
    folders
        .lines()
        .map(PathBuf::from)
        .find(|folder| folder.join("include/mlx/version.h").is_file())
        .ok_or_else(Failure::python_without_mlx)
}

fn pinned_wheel() -> Result<&'static Wheel, Failure> {
    let target = environment::cargo("TARGET");
    let arch = environment::cargo("CARGO_CFG_TARGET_ARCH");
    let os = environment::cargo("CARGO_CFG_TARGET_OS");
    let glibc = environment::cargo("CARGO_CFG_TARGET_ENV") == "gnu";
    let (default, platform) = match (os.as_str(), arch.as_str()) {
        ("linux", "x86_64") if glibc => ("cpu", "manylinux_2_35_x86_64"),
        ("linux", "aarch64") if glibc => ("cpu", "manylinux_2_35_aarch64"),
        ("macos", "aarch64") => ("metal", macos_platform()),
        _ => return Err(Failure::unsupported_target(&target)),
    };
    let backend = environment::user("MLX_BACKEND");
    let backend = backend.as_ref().map_or(default.into(), |backend| backend.to_string_lossy());
    let package = match &*backend {
        "cpu" => "mlx-cpu",
        "metal" => "mlx-metal",
        "cuda12" => "mlx-cuda-12",
        "cuda13" => "mlx-cuda-13",
        other => return Err(Failure::unknown_backend(other, &target)),
    };
    let fits = |wheel: &&Wheel| wheel.package == package && wheel.platform == platform;
    wheel::MLX.iter().find(fits).ok_or_else(|| Failure::unknown_backend(&backend, &target))
}

/// The newest of the three builds for macOS that runs on the deployment target, or on this machine if none is set.
fn macos_platform() -> &'static str {
    let deployment = environment::user("MACOSX_DEPLOYMENT_TARGET").map(|value| value.to_string_lossy().into_owned());
    let running = || {
        let output = Command::new("sw_vers").arg("-productVersion").output().ok()?;
        String::from_utf8(output.stdout).ok()
    };
    let version = deployment.or_else(running).unwrap_or_default();
    match version.split('.').next().and_then(|major| major.trim().parse::<u32>().ok()) {
        Some(26..) => "macosx_26_0_arm64",
        Some(15..) => "macosx_15_0_arm64",
        _ => "macosx_14_0_arm64",
    }
}
