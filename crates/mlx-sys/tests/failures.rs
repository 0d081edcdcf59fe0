//! What a build says that cannot go on.

#[allow(dead_code, reason = "the build asks for more of it")]
#[path = "../build/cache.rs"]
mod cache;
#[allow(dead_code, reason = "the build asks for more of it")]
#[path = "../build/environment.rs"]
mod environment;
#[path = "../build/failure.rs"]
mod failure;
#[allow(dead_code, reason = "the build asks for more of it")]
#[path = "../build/leftovers.rs"]
mod leftovers;
#[allow(dead_code, reason = "the build asks for more of it")]
#[path = "../build/locate.rs"]
mod locate;
#[allow(dead_code, reason = "the build asks for more of it")]
#[path = "../build/python.rs"]
mod python;
#[allow(dead_code, reason = "the build asks for more of it")]
#[path = "../build/versions.rs"]
mod versions;
#[allow(dead_code, reason = "the build asks for more of it")]
#[path = "../build/wheel.rs"]
mod wheel;

use std::io;
use std::path::Path;

use failure::Failure;
use versions::Version;

#[test]
fn every_failure_is_said_with_what_mends_it() {
    let wheel = &wheel::MLX[0];
    let all = [
        Failure::io("write", Path::new("/cache"), &io::ErrorKind::NotFound.into()),
        Failure::unsupported_target("wasm32"),
        Failure::unknown_backend("rocm", "x86_64-unknown-linux-gnu"),
        Failure::mlx_dir_relative(Path::new("mlx")),
        Failure::incomplete_wheel(Path::new("/cache"), "lib/libmlx.so"),
        Failure::incomplete_prefix("MLX_DIR", Path::new("/mlx"), "include/mlx/version.h"),
        Failure::wrong_version("MLX_DIR", Path::new("/mlx"), Version([0, 31, 1])),
        Failure::python_without_mlx(),
        Failure::no_python("unpack it", "set MLX_DIR"),
        Failure::no_pip(wheel),
        Failure::no_download(wheel, "no route", Path::new("/cache")),
        Failure::wrong_hash(wheel, "00"),
        Failure::no_cache_dir(),
        Failure::cache_dir_relative(Path::new("cache")),
        Failure::no_compiler("c++", "it fails on an empty file"),
        Failure::no_mlx_c("no route"),
        Failure::mlx_c_dir(Path::new("/mlx-c")),
        Failure::mlx_c_dir_relative(Path::new("mlx-c")),
        Failure::no_search_path(Path::new("/a:b")),
        Failure::no_bindings(Path::new("ops.h"), "int f(long double)"),
        Failure::no_link(Path::new("/libmlx.so"), "it is not a shared library for 64-bit Linux"),
        Failure::not_compiled("exit 1"),
    ];
    let said = all.map(|failure| format!("{failure}\n")).concat();
    assert_eq!(
        said,
        "\
error: cannot write /cache: entity not found
help: make that path readable and writable, or set TACIT_CACHE_DIR and CARGO_TARGET_DIR to folders that are
error: no ready-made MLX is known for the target wasm32
help: build MLX 0.32.2 as a shared library and set MLX_DIR to its prefix (include/ and lib/)
error: MLX_BACKEND=rocm is not available for the target x86_64-unknown-linux-gnu
help: unset MLX_BACKEND, or set it to cpu, cuda12 or cuda13 (Linux) or metal (Apple silicon)
error: MLX_DIR=mlx is a relative path
help: set MLX_DIR to an absolute path: the prefix that holds include/ and lib/
error: the wheel of MLX in /cache has no lib/libmlx.so any more
help: remove /cache and build again, which unpacks it anew
error: MLX_DIR names /mlx, which has no include/mlx/version.h
help: set MLX_DIR to a prefix with include/mlx/version.h and the shared library in lib/, or unset it to use the pinned wheel
error: MLX_DIR names MLX 0.31.1 at /mlx, but MLX 0.32.2 or newer is needed
help: point it at MLX 0.32.2, or unset it to use the pinned wheel; MLX_BYPASS_VERSION_CHECK=1 tries the older version at your own risk
error: MLX_USE_PYTHON=1, but python3 has no mlx package with include/ and lib/
help: run `python3 -m pip install mlx-cpu==0.32.2` (mlx-metal on a Mac), activate the environment that has it, or unset MLX_USE_PYTHON to use the pinned wheel
error: python3 is not on PATH, and it is needed to unpack it
help: install Python 3.8 or newer with pip (`apt-get install python3 python3-pip`, or `xcode-select --install` on a Mac), or set MLX_DIR
error: python3 has no pip, and it is needed to download mlx-cpu 0.32.2 for manylinux_2_35_x86_64
help: run `python3 -m ensurepip` (`apt-get install python3-pip` on Debian, where that is left out), or set MLX_DIR to a prefix with include/ and lib/ of this version
error: pip cannot download mlx-cpu 0.32.2 for manylinux_2_35_x86_64: no route
help: build once with a network (pip's own settings such as PIP_INDEX_URL and PIP_PROXY apply); the result stays in /cache; or set MLX_DIR to a prefix with include/ and lib/ of this version
error: mlx-cpu 0.32.2 for manylinux_2_35_x86_64 has sha256 00, but fc5d31b90fc4f457b2f9614ed45651a567d22a6a11a03d114a90a4e10bdd8878 is pinned
help: check the package index that pip uses (`python3 -m pip config list`), or set MLX_DIR to a prefix with include/ and lib/ of this version
error: there is no place for the cache: neither TACIT_CACHE_DIR, XDG_CACHE_HOME nor HOME is an absolute path
help: set TACIT_CACHE_DIR to a folder that survives `cargo clean`
error: TACIT_CACHE_DIR=cache is a relative path
help: set TACIT_CACHE_DIR to an absolute path: a folder that survives `cargo clean`
error: the C++ compiler `c++` does not work: it fails on an empty file
help: install one that knows C++20 (`apt-get install g++`, or `xcode-select --install` on a Mac), or name it in CXX
error: the published mlx-sys 0.7.0, which holds the sources of mlx-c, cannot be had: no route
help: build once with a network, or set MLX_C_DIR to the folder src/mlx-c of an unpacked mlx-sys 0.7.0
error: MLX_C_DIR=/mlx-c has no mlx/c/version.h
help: set MLX_C_DIR to the folder src/mlx-c of an unpacked mlx-sys 0.7.0, or unset it to let cargo fetch it
error: MLX_C_DIR=mlx-c is a relative path
help: set MLX_C_DIR to an absolute path: the folder src/mlx-c of an unpacked mlx-sys 0.7.0
error: the path /a:b has a colon in it, which separates the folders of a search path
help: move it, or name it by a link without a colon (ln -s)
error: no Rust is known for `int f(long double)` in ops.h
help: unset MLX_C_DIR, or set it to the folder src/mlx-c of an unpacked mlx-sys 0.7.0
error: cannot prepare /libmlx.so for linking: it is not a shared library for 64-bit Linux
help: set MLX_DIR to a prefix whose lib/ has an unstripped shared library, or unset it to use the pinned wheel
error: mlx-c does not compile: exit 1
help: use g++ 11 or newer, or clang 14 or newer, named in CXX; the compiler's own message is above
"
    );
}
