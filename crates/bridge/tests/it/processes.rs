use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use mlx_rs::{Array, ops, transforms};
use tacit_bridge::process::{self, Signal};

use crate::itself;

/// A shell's command that says what the processes below it inherit.
fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdin(Stdio::null());
    command
}

#[test]
#[cfg(target_os = "linux")]
fn programs_start_with_signals_that_this_process_may_have_been_told_to_ignore() {
    // The shell ignores them for what it starts, which is this test again.
    if std::env::var_os("TACIT_TEST_IGNORES").is_none() {
        let name = "processes::programs_start_with_signals_that_this_process_may_have_been_told_to_ignore";
        let mut command = shell(r#"trap '' INT QUIT TERM TTIN XFSZ HUP; exec "$@""#);
        command.arg("sh").args(itself::words()).args(["--exact", name]);
        let output = command.env("TACIT_TEST_IGNORES", "1").output().expect("a shell");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let ignored = |command: &mut Command| {
        let output = command.output().expect("a shell").stdout;
        let mask = String::from_utf8(output).expect("text");
        u64::from_str_radix(mask.trim(), 16).expect("a mask of bits")
    };
    let ask = "sed -n 's/^SigIgn:\\s*//p' /proc/self/status";
    let bits = |signals: &[i32]| signals.iter().map(|signal| 1_u64 << (signal - 1)).sum::<u64>();
    let ours = bits(&[2, 3, 15, 21, 25]);
    assert_eq!(ignored(&mut shell(ask)) & ours, ours, "inherited");
    let mut command = shell(ask);
    process::with_default_signals(&mut command);
    let left = ignored(&mut command);
    assert_eq!((left & ours, left & bits(&[1])), (0, bits(&[1])), "hangup stays ignored");
}

#[test]
fn a_group_is_left_until_its_last_process_has_ended() {
    use std::os::unix::process::CommandExt;
    let mut leader = shell("sleep 600 & exit 0").process_group(0).spawn().expect("a shell");
    let number = leader.id();
    leader.wait().expect("ends");
    assert!(process::group_is_left(number), "the other process runs on");
    process::signal_group(number, Signal::Kill).expect("somebody is left");
    let until = Instant::now() + Duration::from_mins(1);
    while process::group_is_left(number) {
        assert!(Instant::now() < until, "a killed process is left");
        sleep(Duration::from_millis(5));
    }
    assert!(!process::group_is_left(0) && !process::group_is_left(1), "those are no groups of ours");
}

#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn what_is_given_while_the_process_ends_is_called_too_and_nothing_twice() {
    use std::io::Write;

    // Not by `print!`, which tests catch.
    fn say(text: &str) {
        drop(std::io::stderr().write_all(text.as_bytes()));
    }
    fn late(_: i32) {
        say("<late>");
    }
    // Stands for `say_goodbye`, during which a thread of MLX's finds that a collective has failed and gives
    // `exit_without_destructors`.
    fn goodbye(_: i32) {
        say("<goodbye>");
        process::at_exit(late);
    }
    if std::env::var_os("TACIT_TEST_ENDS").is_some() {
        process::at_exit(goodbye);
        std::process::exit(0);
    }
    let name = "processes::what_is_given_while_the_process_ends_is_called_too_and_nothing_twice";
    let output =
        itself::command().args(["--exact", name, "--nocapture"]).env("TACIT_TEST_ENDS", "1").output().expect("starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((said.matches("<goodbye>").count(), said.matches("<late>").count()), (1, 1), "{said}");
}

/// MLX's allocator would be gone while its thread still computes.
#[test]
fn a_process_that_ends_waits_for_what_it_began() {
    if std::env::var_os("TACIT_TEST_BEGINS").is_some() {
        let mut x = ops::ones::<f32>(&[64, 64]).expect("ones");
        for _ in 0..3000 {
            x = x.matmul(&x).and_then(|x| x.multiply(Array::from_f32(1.0 / 64.0))).expect("a product");
        }
        transforms::async_eval([&x]).expect("begins");
        std::process::exit(0);
    }
    let name = "processes::a_process_that_ends_waits_for_what_it_began";
    for _ in 0..3 {
        let output = itself::command().args(["--exact", name, "--nocapture"]).env("TACIT_TEST_BEGINS", "1").output();
        let output = output.expect("starts");
        assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8_lossy(&output.stdout).contains("running 1 test"), "{output:?}");
    }
}
