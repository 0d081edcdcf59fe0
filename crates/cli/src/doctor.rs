//! `tacit doctor`: what Tacit needs, and whether it is there.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fmt, fs, io};

use mlx_rs::{Array, Device, DeviceType, ops};
use serde::Serialize;
use tacit_arrays::Nf4Array;
use tacit_bridge::{compiler_available, mlx};
use tacit_core::compile::CompileOptions;
use tacit_core::kernel::GpuBackend;
use tacit_core::pass::{PASSES_VARIABLE, Passes};
use tacit_core::{Policy, Result, compile, compile_with, implicit};
use tacit_kernels::{Isa, threads};

use crate::folders;
use crate::table::Table;
use crate::variables::{PASSES, VARIABLES};

/// What was looked at.
#[derive(Serialize)]
pub(crate) struct Findings(Vec<Finding>);

#[derive(Serialize)]
struct Finding {
    what: &'static str,
    state: State,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// As it should be.
    Ok,
    /// It works, and could be better.
    Slow,
    /// It does not work.
    Broken,
}

impl Finding {
    fn ok(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, state: State::Ok, found: found.into(), help: None }
    }

    fn with(what: &'static str, state: State, found: impl Into<String>, help: &'static str) -> Self {
        Self { what, state, found: found.into(), help: Some(help) }
    }
}

pub(crate) fn examine() -> Findings {
    let mut findings = vec![
        Finding::ok("mlx", format!("{} at {}", mlx::VERSION, library())),
        device(),
        instructions(),
        threads_used(),
        compiler(),
        python(),
        scratch(),
    ];
    findings.extend(kept_folders());
    findings.extend(variables());
    findings.push(works("dense product", dense_product()));
    findings.push(works("packed product", packed_product()));
    findings.push(works("compiled function", compiled()));
    findings.push(works("compiled loop", compiled_loop()));
    Findings(findings)
}

/// Where the library of MLX that this process loaded lies.
fn library() -> String {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    library_in(&maps).map_or_else(|| "a place that this system does not tell".to_owned(), str::to_owned)
}

/// The path of MLX's library in what Linux tells of a process's memory.
fn library_in(maps: &str) -> Option<&str> {
    // A path comes last, and may have spaces in it.
    let mut paths = maps.lines().filter_map(|line| line.splitn(6, ' ').nth(5).map(str::trim_start));
    paths.find(|path| path.rsplit('/').next().is_some_and(|name| name.starts_with("libmlx.")))
}

fn device() -> Finding {
    let default = Device::try_default().and_then(|device| device.get_type());
    match default {
        Ok(DeviceType::Cpu) => Finding::ok("device", "cpu"),
        Ok(DeviceType::Gpu) => match GpuBackend::available() {
            Some(backend) => Finding::ok("device", format!("gpu, {backend:?}").to_lowercase()),
            None => {
                Finding::with("device", State::Broken, "gpu, and none is here", "set the default device to the cpu")
            }
        },
        Err(error) => {
            Finding::with("device", State::Broken, error.to_string(), "let mlx find a device; on linux it is the cpu")
        }
    }
}

fn instructions() -> Finding {
    let isa = Isa::detect();
    if isa == Isa::Scalar {
        let help = "run on a machine with AVX2 and FMA, or with NEON";
        return Finding::with("instructions", State::Slow, "no vectors that the kernels know", help);
    }
    Finding::ok("instructions", format!("{isa:?}").to_lowercase())
}

fn threads_used() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let used = threads::count();
    let usage = format!("{used} on {cores} cores");
    if used > cores {
        return Finding::with("threads", State::Slow, usage, "set TACIT_THREADS to at most the number of cores");
    }
    Finding::ok("threads", usage)
}

fn compiler() -> Finding {
    if compiler_available() {
        return Finding::ok("compiler", "g++ is in the search path");
    }
    Finding::with("compiler", State::Slow, "g++ is not in the search path", compiler_help(cfg!(target_os = "macos")))
}

fn compiler_help(is_mac: bool) -> &'static str {
    if is_mac {
        "run `xcode-select --install`, which brings g++: builds want it or CXX, and compiled functions fuse more with it"
    } else {
        "install g++ (debian: apt-get install g++): builds want it or CXX, and compiled functions fuse more with it"
    }
}

/// What a build fetches MLX with.
fn python() -> Finding {
    let help = python_help(cfg!(target_os = "macos"));
    match Command::new("python3").args(["-m", "pip", "--version"]).stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            Finding::ok("python", text.split(" from ").next().unwrap_or_default().to_owned())
        }
        Ok(_) => Finding::with("python", State::Slow, "python3 has no pip", help),
        Err(error) => Finding::with("python", State::Slow, format!("python3 does not start: {error}"), help),
    }
}

fn python_help(is_mac: bool) -> &'static str {
    if is_mac {
        "run `python3 -m ensurepip`, or `xcode-select --install`, which brings python3, or set MLX_DIR: a build fetches MLX with it"
    } else {
        "run `python3 -m ensurepip` (debian: apt-get install python3-pip), or set MLX_DIR: a build fetches MLX with it"
    }
}

/// Builds keep MLX in one folder, and programs the loops that MLX compiles in another.
fn kept_folders() -> [Finding; 2] {
    let keeps = |what, folder: Option<PathBuf>, write: fn(&Path) -> io::Result<()>, help| match folder {
        None => Finding::with(what, State::Slow, "no variable names a place for it", help),
        Some(folder) => match write(&folder) {
            Ok(()) => Finding::ok(what, folder.display().to_string()),
            Err(error) => Finding::with(what, State::Slow, format!("{}: {error}", folder.display()), help),
        },
    };
    let cache = match folders::relative_cache() {
        None => keeps(
            "cache folder",
            folders::cache(),
            folders::write_into,
            "set TACIT_CACHE_DIR to a folder that can be written: a build unpacks MLX there",
        ),
        Some(own) => Finding::with(
            "cache folder",
            State::Slow,
            format!("TACIT_CACHE_DIR={} is a relative path", own.display()),
            "set TACIT_CACHE_DIR to an absolute path: a build refuses this one",
        ),
    };
    [
        cache,
        keeps(
            "loop folder",
            folders::loops(),
            folders::write_loops,
            "set TACIT_MLX_TMPDIR to a folder that you alone can write to (chmod go-w): until then every process compiles loops anew",
        ),
    ]
}

/// Where programs write what they need only while they run.
fn scratch() -> Finding {
    let folder = env::temp_dir();
    match folders::write_into(&folder) {
        Ok(()) => Finding::ok("scratch folder", folder.display().to_string()),
        Err(error) => Finding::with(
            "scratch folder",
            State::Broken,
            format!("{}: {error}", folder.display()),
            "set TMPDIR to a folder that can be written",
        ),
    }
}

/// The environment variables that are set and read by this process.
fn variables() -> Vec<Finding> {
    let set = VARIABLES.iter().filter_map(|variable| Some((variable, env::var_os(variable.name)?)));
    set.map(|(variable, value)| {
        let value = value.to_string_lossy().into_owned();
        if variable.name == compile::MLX_VARIABLE {
            let help = "unset it: MLX compiles nothing in this process, and compiled functions run as they are written";
            Finding::with(variable.name, State::Slow, value, help)
        } else if !value.is_empty() && !(variable.reads)(&value) {
            Finding::with(variable.name, State::Broken, value, variable.values)
        } else if variable.name == PASSES_VARIABLE && !are_own_passes(&value) {
            let help = "only a program that registers such a pass has it: Tacit has none of this name";
            Finding::with(variable.name, State::Slow, value, help)
        } else {
            let value = if value.is_empty() { "nothing" } else { value.as_str() };
            Finding::ok(variable.name, format!("{value}: {}", variable.doc))
        }
    })
    .collect()
}

/// Whether all passes in a value of `TACIT_PASSES` are Tacit's own.
fn are_own_passes(text: &str) -> bool {
    Passes::named(text).names().iter().all(|name| PASSES.contains(&name.as_str()))
}

fn works(what: &'static str, result: Result<bool>) -> Finding {
    let help = "report this with the output of `tacit doctor --json`";
    match result {
        Ok(true) => Finding::ok(what, "right"),
        Ok(false) => Finding::with(what, State::Broken, "it gives wrong numbers", help),
        Err(error) => Finding::with(what, State::Broken, error.to_string(), help),
    }
}

/// The product of ones, `[2,64]` with `[64,64]`, is 64 everywhere.
fn is_right(product: &Array) -> Result<bool> {
    let exact = product.eq(Array::from_f32(64.0))?.all(None)?;
    exact.eval()?;
    Ok(product.shape() == [2, 64] && exact.item_exact::<bool>())
}

fn ones() -> Result<(Array, Array)> {
    Ok((ops::ones::<f32>(&[2, 64])?, ops::ones::<f32>(&[64, 64])?))
}

fn dense_product() -> Result<bool> {
    let (x, w) = ones()?;
    is_right(&x.matmul(w.t())?)
}

fn packed_product() -> Result<bool> {
    let (x, w) = ones()?;
    let w = Nf4Array::quantize(&w, 64)?;
    let _deny = Policy::Deny.scope();
    is_right(&implicit((x, w), |(x, w)| x.matmul(w.t()))?.dense()?)
}

fn compiled() -> Result<bool> {
    let (x, w) = ones()?;
    let mut product = compile(|(x, w): (Array, Array)| x.matmul(w.t())?.add(Array::from_f32(0.0)));
    is_right(&product.call((x, w))?.dense()?)
}

/// MLX makes a loop of what passes leave to it.
fn compiled_loop() -> Result<bool> {
    let (x, _) = ones()?;
    let options = CompileOptions { passes: Passes::Off, ..CompileOptions::default() };
    let mut sum = compile_with(options, |x: Array| x.add(Array::from_f32(1.0))?.multiply(Array::from_f32(32.0)));
    is_right(&sum.call(x)?.dense()?)
}

impl Findings {
    /// Whether nothing is broken.
    pub(crate) fn is_well(&self) -> bool {
        self.0.iter().all(|finding| finding.state != State::Broken)
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&["", "", "found"]);
        for Finding { what, state, found, help } in &self.0 {
            table.row([format!("{state:?}").to_lowercase(), (*what).to_owned(), found.clone()]);
            if let Some(help) = help {
                table.row([String::new(), String::new(), format!("help: {help}")]);
            }
        }
        write!(f, "{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_is_told_what_a_mac_has() {
        for help in [compiler_help, python_help] {
            let (mac, linux) = (help(true), help(false));
            assert!(mac.contains("`xcode-select --install`") && !mac.contains("apt-get"), "{mac}");
            assert!(linux.contains("apt-get install") && !linux.contains("xcode"), "{linux}");
        }
    }

    #[test]
    fn the_library_is_found_in_a_folder_with_spaces() {
        let maps = "7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n\
                    7f1000000000-7f1000001000 r-xp 00001000 fe:00 917 /usr/lib/libm.so.6\n\
                    7f2000000000-7f2000001000 r--p 00000000 fe:00 918                        /home/a user/mlx/lib/libmlx.so\n";
        assert_eq!(library_in(maps), Some("/home/a user/mlx/lib/libmlx.so"));
        assert_eq!(library_in(""), None);
    }
}
