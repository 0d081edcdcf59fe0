//! Programs that run as the ranks of a group: their lines, their codes, and their ends.

#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use expect_test::expect;

/// A rank's program for the shell.
fn launch(options: &[&str], script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
    command.arg("launch").args(options).args(["--", "sh", "-c", script]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).env_remove("TACIT_THREADS");
    command
}

fn run(options: &[&str], script: &str) -> Output {
    launch(options, script).output().expect("starts")
}

/// The lines of a stream in an order that does not depend on which rank is faster.
fn lines(stream: &[u8]) -> String {
    let mut lines: Vec<&str> = std::str::from_utf8(stream).expect("text").lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// A name that only processes of this test have, in their arguments.
fn mark(test: &str) -> String {
    format!("mark-{test}-{}", std::process::id())
}

/// The processes whose arguments have this mark, but the launcher itself.
fn left(mark: &str) -> Vec<String> {
    let processes = fs::read_dir("/proc").expect("linux").flatten();
    let arguments = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let arguments = arguments.map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " "));
    arguments.filter(|arguments| arguments.contains(mark) && !arguments.contains(" launch ")).collect()
}

fn none_left(mark: &str) {
    // What is killed is gone a moment later.
    let until = Instant::now() + Duration::from_secs(5);
    while !left(mark).is_empty() && Instant::now() < until {
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(left(mark), Vec::<String>::new());
}

/// Waits until a rank has said something.
fn until_said(launcher: &mut Child) {
    let mut first = [0];
    launcher.stdout.as_mut().expect("piped").read_exact(&mut first).expect("a rank speaks");
}

fn signal(launcher: &Child, signal: &str) {
    let sent = Command::new("kill").args([signal, &launcher.id().to_string()]).status().expect("kill");
    assert!(sent.success());
}

#[test]
fn whole_lines_carry_the_number_of_their_rank() {
    let script =
        r#"echo "one of $MLX_RANK"; printf "no end"; echo "a word" >&2; test "$MLX_RANK" = 1 && sleep 0.2; true"#;
    let output = run(&["-n", "2"], script);
    assert_eq!(output.status.code(), Some(0));
    expect![[r#"
        [0] no end
        [0] one of 0
        [1] no end
        [1] one of 1"#]]
    .assert_eq(&lines(&output.stdout));
    expect![[r#"
        [0] a word
        [1] a word"#]]
    .assert_eq(&lines(&output.stderr));
}

#[test]
fn ranks_have_an_address_each_and_share_the_cores() {
    let script = r#"cat "$MLX_HOSTFILE"; echo " $TACIT_WATCH $TACIT_THREADS $MLX_HOSTFILE""#;
    let output = run(&["-n", "3", "--threads", "5"], script);
    let text = String::from_utf8(output.stdout).expect("text");
    let mut words = text.lines().map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>());
    let first = words.next().expect("a line");
    assert!(words.all(|other| other == first), "{text}");
    let [hosts, watch, threads, file] = first[..] else { panic!("{text}") };
    let hosts: Vec<[String; 1]> = serde_json::from_str(hosts).expect("a host file");
    assert!(hosts.len() == 3 && hosts.iter().all(|[host]| host != watch), "{text}");
    assert_eq!(threads, "5");
    assert!(!PathBuf::from(file).exists(), "it is gone with the ranks");
    // One rank is no group.
    let output = run(&["-n", "1"], r#"echo "rank:$MLX_RANK hosts:$MLX_HOSTFILE""#);
    assert_eq!(lines(&output.stdout), "[0] rank: hosts:");
}

#[test]
fn only_rank_0_reads_the_input() {
    let mut launcher = launch(&["-n", "2"], "cat").stdin(Stdio::piped()).spawn().expect("starts");
    launcher.stdin.take().expect("piped").write_all(b"a line\n").expect("is read");
    let output = launcher.wait_with_output().expect("ends");
    assert_eq!(lines(&output.stdout), "[0] a line");
}

#[test]
fn a_failure_ends_all_with_its_code() {
    let mark = mark("failure");
    let script = format!(r#"test "$MLX_RANK" = 1 && {{ echo "no more" >&2; exit 7; }}; sleep 100; : {mark}"#);
    let begun = Instant::now();
    let output = run(&["-n", "3", "--grace", "0.2"], &script);
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!(output.status.code(), Some(7));
    expect![[r#"
        [1] no more
        tacit: rank 1 failed with code 7; the others have 0.2 s"#]]
    .assert_eq(&lines(&output.stderr));
    none_left(&mark);
}

#[test]
fn others_have_time_to_end_by_themselves_after_a_failure() {
    let script = r#"test "$MLX_RANK" = 0 && kill -9 $$; sleep 0.3; echo "saved""#;
    let output = run(&["-n", "2"], script);
    assert_eq!((output.status.code(), lines(&output.stdout).as_str()), (Some(137), "[1] saved"));
    assert_eq!(lines(&output.stderr), "tacit: rank 0 was ended by signal 9; the others have 10 s");
}

#[test]
fn ctrl_c_ends_all_that_ranks_started_too() {
    for (name, code) in [("-INT", 130), ("-TERM", 143)] {
        let mark = mark(&format!("ctrl{name}"));
        // A child that does not read the signal, and one that the shell waits for.
        let script = format!("(trap '' INT TERM; sleep 100; : {mark}) & echo ready; sleep 100; : {mark}");
        let mut launcher = launch(&["-n", "2"], &script).spawn().expect("starts");
        until_said(&mut launcher);
        thread::sleep(Duration::from_millis(100));
        let begun = Instant::now();
        signal(&launcher, name);
        let output = launcher.wait_with_output().expect("ends");
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert_eq!(output.status.code(), Some(code), "{name}");
        none_left(&mark);
    }
}

#[test]
fn what_a_rank_leaves_running_ends_with_it() {
    let mark = mark("left");
    let output = run(&["-n", "2"], &format!("(sleep 100; : {mark}) & echo done"));
    assert_eq!((output.status.code(), lines(&output.stdout).as_str()), (Some(0), "[0] done\n[1] done"));
    none_left(&mark);
}

#[test]
fn a_reader_that_goes_ends_the_ranks() {
    let mark = mark("reader");
    let script = format!("while true; do echo again; sleep 0.01; done; : {mark}");
    let mut launcher = launch(&["-n", "2"], &script).spawn().expect("starts");
    until_said(&mut launcher);
    drop(launcher.stdout.take());
    assert_eq!(launcher.wait().expect("ends").code(), Some(141));
    none_left(&mark);
}

#[test]
fn what_cannot_start_is_told() {
    let output = Command::new(env!("CARGO_BIN_EXE_tacit"))
        .args(["launch", "-n", "2", "--", "/no/such/program"])
        .output()
        .expect("starts");
    assert_eq!(output.status.code(), Some(1));
    expect![[r#"
        error: cannot start /no/such/program: No such file or directory (os error 2)
        help: give a program and its arguments after `--`"#]]
    .assert_eq(&lines(&output.stderr));
    let output = run(&["-n", "0"], "true");
    expect![[r#"
        error: 0 ranks cannot be started here
        help: start at least one, as in `-n 4`"#]]
    .assert_eq(&lines(&output.stderr));
    let output = launch(&["-n", "2", "--backend", "mpi"], "true").env("PATH", "/nowhere").output().expect("starts");
    expect![[r#"
        error: mpirun is not in the search path
        help: install Open MPI, or leave `--backend` out for the ring"#]]
    .assert_eq(&lines(&output.stderr));
}

#[test]
fn each_machine_of_a_file_has_its_command() {
    let file = env::temp_dir().join(format!("tacit-hosts-{}", std::process::id()));
    let name = file.to_str().expect("text");
    fs::write(&file, "# two machines\n127.0.0.1 2\n127.0.0.2   # one rank\n").expect("writes");
    let output = run(&["--hosts", name, "--port", "21700"], "echo $MLX_RANK");
    expect![[r#"
        # on 127.0.0.1, 2 ranks
        tacit launch --hosts FILE --host 127.0.0.1 --port 21700 --grace 10 -- sh -c 'echo $MLX_RANK'
        # on 127.0.0.2, 1 rank
        tacit launch --hosts FILE --host 127.0.0.2 --port 21700 --grace 10 -- sh -c 'echo $MLX_RANK'
    "#]]
    .assert_eq(&String::from_utf8(output.stdout).expect("text").replace(name, "FILE"));
    let script = r#"echo "$MLX_RANK $TACIT_WATCH"; cat "$MLX_HOSTFILE""#;
    let output = run(&["--hosts", name, "--host", "127.0.0.2", "--port", "21700"], script);
    expect![[r#"
        [2] 2 127.0.0.1:21700
        [2] [["127.0.0.1:21701"],["127.0.0.1:21702"],["127.0.0.2:21701"]]"#]]
    .assert_eq(&lines(&output.stdout));
    fs::write(&file, "127.0.0.1 2\nserver 4\n").expect("writes");
    let output = run(&["--hosts", name], "true");
    expect![[r#"
        error: FILE: line 2 is server 4
        help: write the IP address of a machine and how many ranks it has, as in `10.0.0.1 4`"#]]
    .assert_eq(&lines(&output.stderr).replace(name, "FILE"));
    drop(fs::remove_file(&file));
}
