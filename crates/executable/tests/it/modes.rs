//! The mode that the environment names.

use std::process::Command;

use tacit_executable::{MODE_VARIABLE, Mode};

#[test]
#[ignore = "the process that another test starts"]
fn tell_the_mode_of_this_process() {
    println!("mode {:?}", Mode::from_environment());
}

/// Standard output and error of a process that tells its mode.
fn told(value: &str) -> (String, String) {
    let mut command = Command::new(std::env::current_exe().expect("a test has a file"));
    command.args(["--exact", "--ignored", "--nocapture", "modes::tell_the_mode_of_this_process"]);
    let output = command.env(MODE_VARIABLE, value).output().expect("it starts");
    (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn the_three_modes_are_read_in_any_case() {
    for (value, mode) in [("Eager", "Eager"), ("lazy", "Lazy"), ("COMPILED", "Compiled")] {
        let (out, error) = told(value);
        assert!(out.contains(&format!("mode {mode}")) && !error.contains(MODE_VARIABLE), "{value}: {out}{error}");
    }
}

#[test]
fn a_value_that_is_no_mode_is_said_and_compiled_is_in_force() {
    let (out, error) = told("fast");
    assert!(out.contains("mode Compiled"), "{out}");
    let line = error.lines().find(|line| line.contains(MODE_VARIABLE)).unwrap_or_default();
    assert_eq!(line, "warning: TACIT_MODE=fast is not one of eager, lazy and compiled; compiled is in force");
}
