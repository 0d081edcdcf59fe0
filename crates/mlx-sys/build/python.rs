//! Calls of `python3`, which every supported machine has.

use std::io::ErrorKind;
use std::process::{Command, Output};

use crate::failure::Failure;

/// Runs `python3` with the arguments; an error only if there is no `python3`.
pub(crate) fn run(arguments: &[&str], purpose: &str, instead: &str) -> Result<Output, Failure> {
    Command::new("python3").args(arguments).output().map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::no_python(purpose, instead),
        _ => Failure::new(format!("python3 does not start: {error}"), format!("repair it, or {instead}")),
    })
}

/// The line of a failed command's output that says most.
pub(crate) fn cause(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = lines().rfind(|line| line.starts_with("ERROR:")).or_else(|| lines().next_back());
    line.map_or_else(|| output.status.to_string(), |line| line.trim_start_matches("ERROR:").trim().to_owned())
}
