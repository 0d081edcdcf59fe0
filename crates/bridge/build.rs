//! Generates the primitive table and compiles the C++ beside MLX's headers.

#[path = "build/primitives.rs"]
mod primitives;

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for watched in ["cpp", "build", "primitives.tbl"] {
        println!("cargo::rerun-if-changed={watched}");
    }
    println!("cargo::rerun-if-env-changed=DOCS_RS");
    let version = env::var("DEP_MLX_VERSION").expect("mlx-sys publishes its version");
    println!("cargo::rustc-env=TACIT_MLX_VERSION={version}");
    primitives::generate(Path::new("primitives.tbl"), &out, &version);
    let defines = env::var("DEP_MLX_DEFINES").unwrap_or_default();
    println!("cargo::rustc-env=TACIT_MLX_DEFINES={defines}");
    // Documentation is made without MLX's headers, and links nothing.
    if env::var_os("DOCS_RS").is_some_and(|value| !value.is_empty()) {
        return;
    }
    let include = env::var_os("DEP_MLX_INCLUDE").expect("mlx-sys publishes its include folders");
    let mut build = cc::Build::new();
    build.cpp(true).std("c++20").include("cpp").include(&out);
    // Of headers that are not ours nothing is warned of.
    for folder in env::split_paths(&include) {
        build.flag("-isystem").flag(folder);
    }
    for define in defines.split(',').filter(|define| !define.is_empty()) {
        build.define(define, None);
    }
    // Lines for valgrind and debuggers, without the types, which are MLX's for the most part.
    let unoptimized = env::var("OPT_LEVEL").is_ok_and(|level| level == "0");
    build.opt_level(if unoptimized { 1 } else { 2 }).debug(false).flag_if_supported("-g1");
    // MLX's headers are not free of unused parameters; ours are checked.
    build.flag_if_supported("-Wno-unused-parameter");
    // On Arm GCC notes wherever a pair of floats is returned that GCC 10 had changed how: everything here is compiled by one.
    build.flag_if_supported("-Wno-psabi");
    build.file(merged(&out)).compile("tacit_bridge");
}

/// Writes one file that includes all of `cpp`, because reading MLX's headers costs more than compiling what follows.
fn merged(out: &Path) -> PathBuf {
    let folder = env::current_dir().expect("cargo starts a build script in its crate").join("cpp");
    let entries = fs::read_dir(&folder).expect("cpp is a folder of this crate");
    let mut sources: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "cpp"))
        .collect();
    sources.sort();
    let lines: Vec<String> = sources.iter().map(|source| format!("#include \"{}\"\n", source.display())).collect();
    let file = out.join("tacit_bridge.cpp");
    fs::write(&file, lines.concat()).expect("the output folder can be written to");
    file
}
