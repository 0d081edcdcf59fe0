//! Writes the Rust bindings of `mlx-c` by bindgen, with the libclang of the machine or else a pinned one.

use std::path::Path;
use std::{env, panic};

use crate::failure::Failure;
use crate::{compiler, environment, locate, mlx_c};

/// Writes `bindings.rs` into the output folder.
pub(crate) fn write(source: &Path) -> Result<(), Failure> {
    let own_libclang = ensure_libclang()?;
    let mut builder = bindgen::Builder::default()
        // Stated, because bindgen otherwise asks whichever rustc is on PATH.
        .rust_target(bindgen::RustTarget::stable(91, 0).unwrap_or_default())
        .rust_edition(bindgen::RustEdition::Edition2024)
        .clang_arg(format!("-I{}", source.display()))
        // bindgen's `c_ulong` is not what the compiler knows these two by.
        .blocklist_function("malloc")
        .blocklist_function("realloc");
    if !environment::is_apple() {
        builder = builder.clang_arg(format!("-D{}", mlx_c::NO_HALF));
    }
    if own_libclang && let Some(headers) = compiler::builtin_headers() {
        builder = builder.clang_arg(format!("-idirafter{}", headers.display()));
    }
    for header in mlx_c::files(source, "h")? {
        builder = builder.header(header.to_string_lossy());
    }
    let bindings = builder.generate().map_err(|error| Failure::no_bindings(&error.to_string()))?;
    let file = environment::out_dir().join("bindings.rs");
    bindings.write_to_file(&file).map_err(|error| Failure::io("write", &file, &error))
}

/// Loads libclang. Returns whether it is the one of the wheel, which comes without the compiler's own headers.
fn ensure_libclang() -> Result<bool, Failure> {
    let chosen = environment::user("LIBCLANG_PATH");
    if loads() {
        return Ok(false);
    }
    if let Some(chosen) = chosen {
        let cause = format!("LIBCLANG_PATH={} has no libclang that loads", chosen.display());
        return Err(Failure::no_bindings(&cause));
    }
    let folder = locate::libclang_wheel()?.unpacked()?;
    let native = folder.join("libclang-18.1.1.data/platlib/clang/native");
    // SAFETY: the build script has one thread, so nothing reads the environment at the same time.
    unsafe { env::set_var("LIBCLANG_PATH", native) };
    if loads() { Ok(true) } else { Err(Failure::no_bindings("the libclang of the wheel does not load")) }
}

/// Whether bindgen finds a libclang; it panics if not.
fn loads() -> bool {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| ()));
    let loaded = panic::catch_unwind(bindgen::clang_version).is_ok();
    panic::set_hook(hook);
    loaded
}
