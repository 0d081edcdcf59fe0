//! The program of the tests, started again: what is decided once for a process is tested in processes of their own.

use std::env;
use std::ffi::OsString;
use std::process::Command;

/// The program, and what comes before it where another one runs it: `TACIT_TEST_EMULATOR` is the path of an emulator
/// of this processor, as the machine does not know which one starts.
pub(crate) fn words() -> Vec<OsString> {
    let this = env::current_exe().expect("a program has a path");
    env::var_os("TACIT_TEST_EMULATOR").into_iter().chain([this.into_os_string()]).collect()
}

pub(crate) fn command() -> Command {
    let words = words();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}
