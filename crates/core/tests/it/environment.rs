//! What a variable of the environment decides once for a process, told by a process that is started with it.

use std::process::Command;

use crate::itself;

/// Standard output and error of a process that runs this ignored test. Variables without a value are not set there.
pub(crate) fn told(test: &str, variables: &[(&str, Option<&str>)]) -> (String, String) {
    let output = command(test, variables).output().expect("it starts");
    (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// What starts this process.
pub(crate) fn command(test: &str, variables: &[(&str, Option<&str>)]) -> Command {
    let mut command = itself::command();
    command.args(["--exact", "--ignored", "--nocapture", test]);
    for (name, value) in variables {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}
