//! Stand-in for `mlx-sys` 0.7.0: the same bindings of `mlx-c`, over a ready-made MLX.
//!
//! The published crate builds MLX from source, on Apple platforms only. This one takes the shared library that the
//! Python package index ships, so that MLX works wherever there is a wheel, Linux included, with no more than a C++20
//! compiler and `python3` with pip. A `[patch.crates-io]` entry puts it in the published crate's place.
//!
//! # Variables of the build
//!
//! | Variable | Meaning |
//! |---|---|
//! | `MLX_DIR` | A prefix with `include/` and `lib/` of MLX 0.32.2 or a newer one, taken before anything else. |
//! | `MLX_USE_PYTHON=1` | Take the `mlx` package of the active `python3`. |
//! | `MLX_BACKEND` | Which pinned wheel to take: `cpu` (Linux), `metal` (Apple silicon), `cuda12`, `cuda13` (CUDA's own libraries must be found by the loader). |
//! | `MLX_BYPASS_VERSION_CHECK=1` | Accept an older MLX than 0.32.2 when building, and another one than that of the build at run time. |
//! | `MLX_C_DIR` | The sources of `mlx-c`, as an absolute path, instead of those in the published `mlx-sys`. |
//! | `TACIT_CACHE_DIR` | An absolute path: where wheels are unpacked, and where programs on Linux keep the loops that MLX compiles, instead of `$XDG_CACHE_HOME/tacit` or `~/.cache/tacit` (`~/Library/Caches/tacit` on a Mac). |
//! | `DOCS_RS=1` | Only what documentation needs, as on docs.rs: no MLX and no C++ compiler, and no program. |
//! | `CXX` | The C++ compiler that the build calls. |
//! | `PIP_INDEX_URL` | The package index that pip fetches the wheel from; pip's other variables count as well. |
//!
//! Dependents read `DEP_MLX_INCLUDE`, `DEP_MLX_DEFINES` and `DEP_MLX_VERSION` as from the published crate, and
//! `DEP_MLX_LIB_DIR`, the folder of the shared library.
//!
//! # At run time
//!
//! A program holds the absolute path of the MLX it was linked with and needs no `LD_LIBRARY_PATH`. To move it to
//! another machine, build it there, or with `MLX_DIR` set to a path that exists on both. Before `main` the version of
//! the loaded library is compared with the headers.
//!
//! Some ops check more than MLX does: what would end the process there, or read or write outside of an array, is an error of the
//! op, or a result without elements or of zeros. `csrc/checked.h` has them all.
//!
//! Linux only: MLX's `compile` has the C++ compiler make kernels in the temporary folder, and loads what it finds
//! there. Programs with this crate give it a folder of their own instead (mode 0700, under `jit` in the cache), without
//! touching `TMPDIR`. `TACIT_MLX_TMPDIR` names another absolute path, of a folder that nobody else may write to, or is `keep`
//! for MLX's own behavior. The replacement works in executables; in a Rust `cdylib` that another program loads, set `TMPDIR` to
//! a private folder.

#![allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals)]
#![allow(unreachable_pub, clippy::all, clippy::pedantic, clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

mod numbers;
pub use numbers::*;

/// A file of C, which is only ever behind a pointer.
#[repr(C)]
#[derive(Debug)]
pub struct FILE {
    _private: [u8; 0],
}
