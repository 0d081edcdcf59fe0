//! Finds the sources of `mlx-c` and compiles them.
//!
//! They are part of the published `mlx-sys`, which this crate replaces. So cargo is asked for the published one through
//! a small manifest of its own, where the patch does not apply.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::compiler::{self, Compiler};
use crate::failure::Failure;
use crate::locate::Mlx;
use crate::{environment, kernels, versions};

/// The include guard of mlx-c's `half.h`. Defined in advance, it leaves out that file, which names half-precision types
/// on Arm alone and by compiler-specific headers; off Apple `half.cpp` defines its functions for every machine.
const NO_HALF: &str = "MLX_HALF_H";

const FETCH_MANIFEST: &str = r#"[package]
name = "fetch-mlx-c"
version = "0.0.0"
edition = "2021"

[dependencies]
mlx-sys = "=0.7.0"

[workspace]
"#;

/// Returns the root of the `mlx-c` sources, the folder that holds `mlx/c`.
pub(crate) fn source() -> Result<PathBuf, Failure> {
    if let Some(path) = environment::user("MLX_C_DIR") {
        let path = PathBuf::from(path);
        // Whoever sets it is in another folder than this build, and the crates that read `DEP_MLX_INCLUDE` are in others still.
        if path.is_relative() {
            return Err(Failure::mlx_c_dir_relative(&path));
        }
        println!("cargo::rerun-if-changed={}", path.join("mlx/c").display());
        return if is_source(&path) { Ok(path) } else { Err(Failure::mlx_c_dir(&path)) };
    }
    let folder = environment::out_dir().join("fetch");
    let write = |path: &Path, text| fs::write(path, text).map_err(|error| Failure::io("write", path, &error));
    fs::create_dir_all(folder.join("src")).map_err(|error| Failure::io("create", &folder, &error))?;
    write(&folder.join("Cargo.toml"), FETCH_MANIFEST)?;
    write(&folder.join("src/lib.rs"), "")?;
    // What cargo has already is taken without asking the network.
    metadata(&folder, true).or_else(|_| metadata(&folder, false))
}

/// The files of `mlx/c` with this extension, in a fixed order.
pub(crate) fn files(source: &Path, extension: &str) -> Result<Vec<PathBuf>, Failure> {
    let folder = source.join("mlx/c");
    let entries = fs::read_dir(&folder).map_err(|error| Failure::io("read", &folder, &error))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    files.sort();
    Ok(files)
}

/// Compiles `mlx-c` and this crate's own additions to it into one static library.
pub(crate) fn compile(source: &Path, mlx: &Mlx, compiler: &Compiler) -> Result<(), Failure> {
    let not_compiled = |error: cc::Error| Failure::not_compiled(&error.to_string());
    let own = environment::manifest_dir().join("csrc");
    let mut build = compiler::settings();
    if let Some(compat) = &compiler.compat {
        build.flag("-isystem").flag(compat);
    }
    build.include(source).flag("-isystem").flag(&mlx.include);
    if versions::defines(mlx.version).any(|define| define == versions::GATHER_QMM_SCALE) {
        build.flag("-include").flag(own.join("gather_qmm.h"));
    }
    if !environment::is_apple() {
        build.define(NO_HALF, None);
    }

    // mlx-c's own `_mlx_error` takes its message for a format; it stays reachable under another name for error.cpp.
    let mut error = build.clone();
    error.define("_mlx_error", "mlx_sys_formatted_error").file(source.join("mlx/c/error.cpp"));
    build.objects(error.try_compile_intermediates().map_err(not_compiled)?);

    build.define("mlx_detail_compile", "mlx_sys_detail_compile");
    build.files(["error.cpp", "version.cpp", "compile.cpp"].map(|file| own.join(file)));
    let mut sources = files(source, "cpp")?;
    sources.retain(|file| file.file_name().is_some_and(|name| name != "error.cpp"));
    if !environment::is_apple() {
        let quoted = |text: &str| format!("\"{text}\"");
        build.define("MLX_SYS_PREAMBLE_HEADER", &*quoted(kernels::HEADER));
        build.define("MLX_SYS_ARCHITECTURE", &*quoted(&environment::cargo("CARGO_CFG_TARGET_ARCH")));
        build.define("MLX_SYS_VERSION", &*quoted(&mlx.version.to_string()));
        build.define("MLX_SYS_PREAMBLE", &*quoted(&kernels::file().to_string_lossy()));
        build.file(own.join("jit_directory.cpp"));
        sources.push(own.join("half.cpp"));
    }
    build.files(merged(&own.join("checked.h"), sources)?);
    build.try_compile("mlxc").map_err(not_compiled)
}

/// Gathers files into two that include them behind a header, because MLX's headers cost more than the code after them.
fn merged(header: &Path, sources: Vec<PathBuf>) -> Result<Vec<PathBuf>, Failure> {
    const GROUPS: usize = 2;
    let mut sized: Vec<(u64, PathBuf)> =
        sources.into_iter().map(|file| (fs::metadata(&file).map_or(0, |data| data.len()), file)).collect();
    sized.sort_by(|left, right| right.cmp(left));
    let line = |file: &Path| format!("#include \"{}\"\n", file.to_string_lossy());
    let mut groups = vec![(0, line(header)); GROUPS];
    for (size, file) in sized {
        if let Some((total, text)) = groups.iter_mut().min_by_key(|(total, _)| *total) {
            *total += size;
            text.push_str(&line(&file));
        }
    }
    let write = |(index, (_, text)): (usize, (u64, String))| {
        let path = environment::out_dir().join(format!("mlx_c_{index}.cpp"));
        fs::write(&path, text).map_err(|error| Failure::io("write", &path, &error))?;
        Ok(path)
    };
    groups.into_iter().enumerate().map(write).collect()
}

fn is_source(path: &Path) -> bool {
    path.join("mlx/c/version.h").is_file()
}

/// Asks cargo where the published crate lies.
fn metadata(folder: &Path, offline: bool) -> Result<PathBuf, Failure> {
    let mut command = Command::new(environment::cargo("CARGO"));
    command.args(["metadata", "--format-version=1", "--quiet"]).current_dir(folder);
    if offline {
        command.arg("--offline");
    }
    for (name, _) in env::vars_os() {
        // What the outer cargo says about its own build does not concern this manifest.
        let text = name.to_string_lossy();
        let outer = ["CARGO_BUILD_", "CARGO_CFG_", "CARGO_FEATURE_", "CARGO_MANIFEST_", "CARGO_PKG_", "CARGO_PROFILE_"];
        let flags = ["CARGO_TARGET_DIR", "CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS", "RUSTC_WORKSPACE_WRAPPER"];
        if outer.iter().any(|prefix| text.starts_with(prefix)) || flags.contains(&&*text) {
            command.env_remove(&name);
        }
    }
    let output = command.output().map_err(|error| Failure::no_mlx_c(&error.to_string()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let line = text.lines().find(|line| line.starts_with("error")).unwrap_or("cargo metadata fails");
        return Err(Failure::no_mlx_c(line.trim_start_matches("error:").trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    manifests(&text)
        .filter_map(|manifest| Some(manifest.parent()?.join("src/mlx-c")))
        .find(|source| is_source(source))
        .ok_or_else(|| Failure::no_mlx_c("a patch in a cargo configuration file hides it"))
}

/// The `manifest_path` fields of cargo's JSON.
fn manifests(json: &str) -> impl Iterator<Item = PathBuf> {
    json.split(r#""manifest_path":""#).skip(1).filter_map(|rest| rest.split('"').next()).map(PathBuf::from)
}
