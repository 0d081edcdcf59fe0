//! The environment variables that the build reads, each of them announced to cargo.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

/// Lets cargo build anew once a variable has another value, such as one that a program reads which the build calls.
pub(crate) fn announce(name: &str) {
    println!("cargo::rerun-if-env-changed={name}");
}

/// The value of a variable that a person may set; an empty one counts as unset.
pub(crate) fn user(name: &str) -> Option<OsString> {
    announce(name);
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Whether a variable that a person may set is `1`.
pub(crate) fn switch(name: &str) -> bool {
    user(name).is_some_and(|value| value == "1")
}

/// Whether the build is for documentation, as docs.rs says it: nothing of it is ever linked.
pub(crate) fn documents() -> bool {
    user("DOCS_RS").is_some()
}

/// The value of a variable that cargo always sets for a build script.
pub(crate) fn cargo(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name} for build scripts"))
}

/// The folder for what this build writes.
pub(crate) fn out_dir() -> PathBuf {
    PathBuf::from(cargo("OUT_DIR"))
}

/// The folder of this crate.
pub(crate) fn manifest_dir() -> PathBuf {
    PathBuf::from(cargo("CARGO_MANIFEST_DIR"))
}

/// Whether the library is built for an Apple platform.
pub(crate) fn is_apple() -> bool {
    cargo("CARGO_CFG_TARGET_VENDOR") == "apple"
}
