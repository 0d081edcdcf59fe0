//! Where, when and of what a figure was measured.

use std::fs;
use std::path::Path;
use std::process::Command;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A run of a benchmark.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Run {
    /// The machine.
    pub machine: Machine,
    /// The commit, with `-dirty` if what was built differs from it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub commit: String,
    /// The day and time in UTC, `2026-11-22T19:41:03Z`; of others' figures it may be the day alone.
    pub date: String,
    /// What the machine reached at most in the same run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
}

/// A machine as it describes itself.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Machine {
    /// The model of the processor.
    pub cpu: String,
    /// The instruction set that the kernels take.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub isa: String,
    /// Kilobytes of the caches that one core sees, the smallest first, without that of instructions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<u64>,
    /// The threads that kernels take.
    pub threads: usize,
    /// The processes that waited or ran on average in the minute before the start, where the system tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<f64>,
}

/// What a machine reaches at most, on all threads together.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Bytes read in a second from 8 MB again and again, in GB.
    pub read_hot: f64,
    /// The same from more than the caches hold; none in a quick run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_cold: Option<f64>,
    /// Billions of floating-point operations in a second, of fused multiply-adds in registers.
    pub fma: f64,
    /// Billions of operations in a second, of 8-bit dot products in registers.
    pub dot: f64,
}

impl Machine {
    /// This machine, with what its kernels say of themselves.
    #[must_use]
    pub fn detect(isa: String, threads: usize) -> Self {
        let load = fs::read_to_string("/proc/loadavg").ok();
        let load = load.and_then(|text| text.split_whitespace().next()?.parse().ok());
        Self { cpu: cpu(), isa, caches: caches(), threads, load }
    }
}

fn cpu() -> String {
    let linux = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = linux.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'));
        line.map(|value| value.trim().to_owned())
    };
    if let Some(name) = field("model name") {
        // A virtual machine may hide the name; family and model still tell the generation.
        let number = |name| field(name).unwrap_or_default();
        return format!("{name}, family {} model {}", number("cpu family"), number("model\t"));
    }
    said_by(Command::new("sysctl").args(["-n", "machdep.cpu.brand_string"])).unwrap_or_else(|| "unknown".into())
}

fn caches() -> Vec<u64> {
    let mut found = Vec::new();
    for index in 0..8 {
        let read = |name: &str| fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}"));
        let (Ok(kind), Ok(size)) = (read("type"), read("size")) else { continue };
        if kind.trim() != "Instruction" {
            found.extend(size.trim().trim_end_matches('K').parse::<u64>());
        }
    }
    found.sort_unstable();
    found
}

/// The commit of the sources in this folder, or `unknown`.
pub(crate) fn commit(sources: &Path) -> String {
    let mut git = Command::new("git");
    git.current_dir(sources).args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]);
    said_by(&mut git).unwrap_or_else(|| "unknown".into())
}

/// What a command prints, if it succeeds.
fn said_by(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The time now, in UTC.
pub(crate) fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
