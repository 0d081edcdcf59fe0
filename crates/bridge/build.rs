//! Generates the primitive table and compiles the C++ beside MLX's headers.

#[path = "build/primitives.rs"]
mod primitives;

use std::env;
use std::path::{Path, PathBuf};

const SOURCES: &[&str] = &[
    "bridge",
    "custom",
    "derivatives",
    "difference",
    "graph",
    "kernel",
    "params",
    "primitive",
    "program",
    "quantized",
    "record",
    "replay",
    "shapeless",
    "spoiled",
    "vmap",
    "walk",
];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    primitives::generate(Path::new("primitives.tbl"), &out);
    let include = env::var_os("DEP_MLX_INCLUDE").expect("mlx-sys publishes its include folders");
    let mut build = cc::Build::new();
    build.cpp(true).std("c++20").includes(env::split_paths(&include)).include("cpp").include(&out);
    for define in env::var("DEP_MLX_DEFINES").unwrap_or_default().split(',').filter(|d| !d.is_empty()) {
        build.define(define, None);
    }
    // MLX's headers are not free of unused parameters; ours are checked.
    build.flag_if_supported("-Wno-unused-parameter");
    for source in SOURCES {
        build.file(format!("cpp/{source}.cpp"));
    }
    build.compile("tacit_bridge");
    for watched in ["cpp", "build", "primitives.tbl"] {
        println!("cargo::rerun-if-changed={watched}");
    }
}
