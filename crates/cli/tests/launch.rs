//! Programs that run as the ranks of a group: their lines, their codes, and their ends.

#![cfg(target_os = "linux")]

#[path = "launch/machines.rs"]
mod machines;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use expect_test::expect;
use tacit_bridge::process::with_default_signals;

/// Over only where something hangs, on however slow a machine.
const LIMIT: Duration = Duration::from_mins(1);

/// A rank's program for the shell.
fn launch(options: &[&str], script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
    command.arg("launch").args(options).args(["--", "sh", "-c", script]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).env_remove("TACIT_THREADS");
    // These tests may themselves have been started to ignore some, as the jobs of a script are.
    with_default_signals(&mut command);
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
    let until = Instant::now() + LIMIT;
    while !left(mark).is_empty() && Instant::now() < until {
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(left(mark), Vec::<String>::new());
}

/// Waits until ranks have said so many lines.
fn until_said(launcher: &mut Child, mut lines: usize) {
    let mut byte = [0];
    while lines > 0 {
        launcher.stdout.as_mut().expect("piped").read_exact(&mut byte).expect("a rank speaks");
        lines -= usize::from(byte == *b"\n");
    }
}

/// Waits until a launcher has seen the end of all its ranks: nothing is left of them, and its warden alone is its child.
fn until_seen(launcher: &Child) {
    let parent = launcher.id().to_string();
    let is_rank = |process: fs::DirEntry| {
        let read = |name: &str| fs::read(process.path().join(name)).unwrap_or_default();
        let (stat, arguments) = (read("stat"), read("cmdline"));
        let stat = String::from_utf8_lossy(&stat);
        let of = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1));
        of == Some(parent.as_str()) && !String::from_utf8_lossy(&arguments).contains("--as-warden")
    };
    let until = Instant::now() + LIMIT;
    while fs::read_dir("/proc").expect("linux").flatten().any(is_rank) {
        assert!(Instant::now() < until, "ranks are left");
        thread::sleep(Duration::from_millis(10));
    }
}

fn signal(launcher: &Child, signal: &str) {
    // A shell has it built in; not every system has the program.
    let sent = Command::new("sh").args(["-c", &format!("kill {signal} {}", launcher.id())]).status().expect("a shell");
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
    let script = r#"cat "$MLX_HOSTFILE"; echo " $TACIT_WATCH $TACIT_THREADS $TACIT_JOB $MLX_HOSTFILE""#;
    let output = run(&["-n", "3", "--threads", "5"], script);
    let text = String::from_utf8(output.stdout).expect("text");
    let mut words = text.lines().map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>());
    let first = words.next().expect("a line");
    assert!(words.all(|other| other == first), "{text}");
    let [hosts, watch, threads, job, file] = first[..] else { panic!("{text}") };
    let hosts: Vec<[String; 1]> = serde_json::from_str(hosts).expect("a host file");
    assert!(hosts.len() == 3 && hosts.iter().all(|[host]| host != watch), "{text}");
    assert_eq!(threads, "5");
    assert!(job.len() == 16, "{job}");
    let again = run(&["-n", "2"], r#"echo "$TACIT_JOB""#);
    assert!(!lines(&again.stdout).contains(job), "another start is another job");
    assert!(!PathBuf::from(file).exists(), "it is gone with the ranks");
    let threads = |of_all: &str| {
        let output = launch(&["-n", "2"], r#"echo "$TACIT_THREADS""#).env("TACIT_THREADS", of_all).output();
        lines(&output.expect("starts").stdout)
    };
    assert_eq!(threads("7"), "[0] 7\n[1] 7");
    assert!(threads("0") == threads("") && threads("all") == threads(""), "{}", threads("0"));
    // One rank is no group.
    let output = run(&["-n", "1"], r#"echo "rank:$MLX_RANK hosts:$MLX_HOSTFILE job:$TACIT_JOB""#);
    assert_eq!(lines(&output.stdout), "[0] rank: hosts: job:");
}

/// A script of a batch system may be the one rank of an `mpirun`.
#[test]
fn ranks_of_a_ring_are_none_of_the_group_that_their_launcher_is_in() {
    let outer =
        ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "MLX_IBV_DEVICES", "MLX_JACCL_COORDINATOR", "NCCL_HOST_IP"];
    let script = format!("echo others:${}", outer.join("$"));
    for ranks in ["1", "2"] {
        let output = launch(&["-n", ranks], &script).envs(outer.map(|name| (name, "1"))).output().expect("starts");
        let text = lines(&output.stdout);
        assert!(!text.is_empty() && text.lines().all(|line| line.ends_with("] others:")), "{text}");
    }
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
    let script = format!(r#"test "$MLX_RANK" = 1 && {{ echo "no more" >&2; exit 7; }}; sleep 600; : {mark}"#);
    let begun = Instant::now();
    let output = run(&["-n", "3", "--grace", "0.2"], &script);
    assert!(begun.elapsed() < LIMIT);
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
fn ranks_are_started_again_as_often_as_is_allowed() {
    let file = env::temp_dir().join(mark("restarts"));
    let script = format!(
        r#"echo "$TACIT_JOB" >> {0}; third() {{ test "$(sort -u {0} | wc -l)" = 3; }}
        test "$MLX_RANK" = 0 || until third; do sleep 0.05; done; third || exit 4; echo "whole""#,
        file.display()
    );
    let again = |restarts: &str| {
        drop(fs::remove_file(&file));
        run(&["-n", "2", "--grace", "0", "--restarts", restarts], &script)
    };
    let output = again("1");
    assert_eq!((output.status.code(), lines(&output.stdout).as_str()), (Some(4), ""));
    expect![[r#"
        tacit: all ranks are started again, restart 1 of 1
        tacit: rank 0 failed with code 4; the others have 0 s
        tacit: rank 0 failed with code 4; the others have 0 s"#]]
    .assert_eq(&lines(&output.stderr));
    let output = again("5");
    assert_eq!((output.status.code(), lines(&output.stdout).as_str()), (Some(0), "[0] whole\n[1] whole"));
    fs::remove_file(file).expect("was written");
}

/// What comes after a restart goes to the ranks that were started again, its first line too.
#[test]
fn input_goes_to_whoever_was_started_last() {
    let file = env::temp_dir().join(mark("input"));
    drop(fs::remove_file(&file));
    let script =
        format!(r#"echo ready; read -r line; echo "$line"; test -e {0} && exit 0; touch {0}; exit 3"#, file.display());
    // What is read of a pipe may go back to it, but not what is read of a terminal or of this.
    let (mut input, end) = UnixStream::pair().expect("two ends");
    let mut command = launch(&["-n", "1", "--restarts", "1"], &script);
    let mut launcher = command.stdin(OwnedFd::from(end)).spawn().expect("starts");
    // The command holds that end as well.
    drop(command);
    let mut said = BufReader::new(launcher.stdout.take().expect("piped")).lines();
    let mut next = || said.next().expect("a line").expect("text");
    for (line, shown) in [("one", "[0] one"), ("two", "[0] two")] {
        assert_eq!(next(), "[0] ready");
        writeln!(input, "{line}").expect("is read");
        assert_eq!(next(), shown);
    }
    assert_eq!(launcher.wait().expect("ends").code(), Some(0));
    fs::remove_file(file).expect("was written");
}

#[test]
fn who_is_asked_to_end_starts_nothing_again() {
    let mut launcher =
        launch(&["-n", "2", "--grace", "0.2", "--restarts", "3"], "echo begun; sleep 600").spawn().expect("starts");
    until_said(&mut launcher, 2);
    signal(&launcher, "-INT");
    let output = launcher.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(130));
    assert!(!lines(&output.stderr).contains("started again"), "{}", lines(&output.stderr));
}

#[test]
fn ctrl_c_ends_all_that_ranks_started_too() {
    for (name, code) in [("-INT", 130), ("-TERM", 143)] {
        let mark = mark(&format!("ctrl{name}"));
        // A child that does not read the signal, and one that the shell waits for.
        let script = format!("(trap '' INT TERM; echo ready; sleep 600; : {mark}) & sleep 600; : {mark}");
        let mut launcher = launch(&["-n", "2"], &script).spawn().expect("starts");
        until_said(&mut launcher, 2);
        let begun = Instant::now();
        signal(&launcher, name);
        let output = launcher.wait_with_output().expect("ends");
        assert!(begun.elapsed() < LIMIT);
        assert_eq!(output.status.code(), Some(code), "{name}");
        none_left(&mark);
    }
}

#[test]
fn ranks_that_do_not_end_are_sent_stronger_signals() {
    // Each is given three seconds, or the time that a program needs to save what it has.
    for (ignored, grace, seconds) in [("INT", "0", 3), ("INT TERM", "0", 6), ("INT", "5", 5)] {
        let mark = mark(&format!("{}-{grace}", ignored.replace(' ', "-")));
        let script = format!("trap '' {ignored}; echo ready; while true; do sleep 0.1; done; : {mark}");
        let mut launcher = launch(&["-n", "2", "--grace", grace], &script).spawn().expect("starts");
        until_said(&mut launcher, 2);
        let begun = Instant::now();
        signal(&launcher, "-INT");
        let output = launcher.wait_with_output().expect("ends");
        let took = begun.elapsed();
        assert!(Duration::from_secs(seconds) <= took && took < LIMIT, "{ignored}: {took:?}");
        assert_eq!(output.status.code(), Some(130), "{ignored}");
        none_left(&mark);
    }
}

#[test]
fn ranks_hear_signals_that_their_launcher_was_started_to_ignore() {
    let mut shell = Command::new("sh");
    let script = r#"trap '' INT QUIT TERM; exec "$0" launch -n 2 -- sh -c 'kill -INT $$; echo "[$MLX_RANK] lives on"'"#;
    let output = shell.args(["-c", script, env!("CARGO_BIN_EXE_tacit")]).stdin(Stdio::null()).output().expect("starts");
    assert_eq!((output.status.code(), lines(&output.stdout).as_str()), (Some(130), ""));
}

#[test]
fn a_killed_launcher_leaves_nothing_running() {
    let mark = mark("killed");
    // What a rank starts has to go as well, even if it does not mind being asked.
    let script =
        format!("(trap '' INT TERM; echo ready $MLX_HOSTFILE; while true; do sleep 0.1; done; : {mark}) & wait");
    let mut launcher = launch(&["-n", "2"], &script).spawn().expect("starts");
    let mut out = BufReader::new(launcher.stdout.take().expect("piped"));
    let mut said = [String::new(), String::new()];
    for line in &mut said {
        out.read_line(line).expect("a rank speaks");
    }
    // Two shells a rank, and for a moment one that is about to become `sleep`.
    assert!(left(&mark).len() >= 4, "{:?}", left(&mark));
    signal(&launcher, "-KILL");
    assert_eq!(launcher.wait().expect("ends").code(), None);
    none_left(&mark);
    let hosts = PathBuf::from(said[0].split_whitespace().last().expect("a path"));
    let until = Instant::now() + LIMIT;
    while hosts.exists() {
        assert!(Instant::now() < until, "{} is left", hosts.display());
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn long_lines_stay_whole() {
    // A fifth of a megabyte each, while the other rank writes as well.
    let script = r#"head -c 200000 /dev/zero | tr '\0' "$MLX_RANK"; echo; echo end"#;
    let output = run(&["-n", "2"], script);
    let long = |rank: &str| format!("[{rank}] {}", rank.repeat(200_000));
    let expected = [&long("0"), "[0] end", &long("1"), "[1] end"].join("\n");
    let mut lines: Vec<&str> = std::str::from_utf8(&output.stdout).expect("text").lines().collect();
    lines.sort_by_key(|line| (line.get(..3), line.len() < 100));
    assert!(lines.join("\n") == expected, "{:?}", lines.iter().map(|line| line.len()).collect::<Vec<_>>());
}

#[test]
fn a_prompt_is_shown_before_it_is_answered() {
    let script = r#"test "$MLX_RANK" = 1 || { printf 'name? '; read name; echo "so $name"; }"#;
    let mut launcher = launch(&["-n", "2"], script).stdin(Stdio::piped()).spawn().expect("starts");
    let mut out = launcher.stdout.take().expect("piped");
    let mut prompt = [0; 10];
    out.read_exact(&mut prompt).expect("a prompt");
    assert_eq!(&prompt, b"[0] name? ");
    launcher.stdin.take().expect("piped").write_all(b"Ada\n").expect("is read");
    let mut rest = String::new();
    out.read_to_string(&mut rest).expect("text");
    assert_eq!(rest, "so Ada\n");
    assert!(launcher.wait().expect("ends").success());
}

#[test]
fn what_a_rank_leaves_running_ends_with_it() {
    let mark = mark("left");
    let output = run(&["-n", "2"], &format!("(sleep 600; : {mark}) & echo done"));
    assert_eq!((output.status.code(), lines(&output.stdout).as_str()), (Some(0), "[0] done\n[1] done"));
    none_left(&mark);
}

#[test]
fn a_reader_that_goes_ends_the_ranks() {
    let mark = mark("reader");
    let script = format!("while true; do echo again; sleep 0.01; done; : {mark}");
    let mut launcher = launch(&["-n", "2"], &script).spawn().expect("starts");
    until_said(&mut launcher, 1);
    drop(launcher.stdout.take());
    assert_eq!(launcher.wait().expect("ends").code(), Some(141));
    none_left(&mark);
}

/// While ranks run, and once they have ended.
#[test]
fn a_full_disk_is_told() {
    for script in ["echo once", "echo once; sleep 0.3; echo again"] {
        for _ in 0..10 {
            let full = fs::File::options().write(true).open("/dev/full").expect("linux");
            let output = launch(&["-n", "1"], script).stdout(full).output().expect("starts");
            let said = lines(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{script}: {said}");
            assert!(said.contains("error: the output cannot be written: No space left on device"), "{script}: {said}");
        }
    }
}

/// The terminal is one of `script`'s, where that is installed.
#[test]
fn a_launcher_in_the_background_of_a_terminal_is_not_stopped() {
    let program = env!("CARGO_BIN_EXE_tacit");
    let said = std::env::temp_dir().join(format!("tacit-launch-said-{}", std::process::id()));
    let file = said.display();
    // Whoever reads the terminal is stopped at once, or within a second of a busy machine.
    let shell = format!(
        "set -m; {program} launch -n 1 -- sh -c 'echo said; sleep 600' >{file} & n=0; \
         until grep -qs said {file} || test $n = 600; do sleep 0.1; n=$((n + 1)); done; sleep 1; jobs; kill -KILL %1"
    );
    let mut command = Command::new("script");
    command.args(["-qfec", &shell, "/dev/null"]).env("SHELL", "/bin/sh").stdin(Stdio::null());
    let Ok(output) = command.output() else { return };
    let lines = fs::read_to_string(&said).unwrap_or_default();
    drop(fs::remove_file(&said));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(lines == "[0] said\n" && !text.contains("Stopped"), "{lines}{text}");
}

/// As services may be started. Of the shells, bash passes it on.
#[test]
fn ends_of_ranks_are_seen_where_the_launcher_was_started_to_ignore_them() {
    let script = r#"trap '' CHLD; exec "$0" launch -n 2 -- sh -c 'exit 3'"#;
    let mut command = Command::new("bash");
    command.args(["-c", script, env!("CARGO_BIN_EXE_tacit")]).stdin(Stdio::null()).stderr(Stdio::null());
    let Ok(mut launcher) = command.spawn() else { return };
    let until = Instant::now() + LIMIT;
    while launcher.try_wait().expect("waits").is_none() && Instant::now() < until {
        thread::sleep(Duration::from_millis(20));
    }
    let ended = launcher.try_wait().expect("waits");
    drop(launcher.kill());
    assert_eq!(ended.and_then(|status| status.code()), Some(3));
}

/// All ranks have ended, and most of what they wrote waits for whoever reads.
#[test]
fn a_slow_reader_is_waited_for() {
    let mut launcher = launch(&["-n", "2"], "seq 1 20000").spawn().expect("starts");
    let mut out = launcher.stdout.take().expect("piped");
    thread::sleep(Duration::from_secs(2));
    let mut text = String::new();
    out.read_to_string(&mut text).expect("text");
    assert_eq!(text.lines().count(), 40_000);
    assert_eq!(launcher.wait().expect("ends").code(), Some(0));
}

/// What has left the group of its rank, and writes for ever, is read no more once the ranks have ended.
#[test]
fn who_left_a_rank_and_goes_on_writing_holds_nobody_up() {
    let begun = Instant::now();
    let done = run(&["-n", "1"], "setsid sh -c 'while echo more; do :; done' & sleep 0.3");
    assert_eq!(done.status.code(), Some(0));
    assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
}

/// Nothing but a signal ends the wait for a reader that does not read.
#[test]
fn a_signal_ends_the_wait_for_a_reader() {
    let mut launcher = launch(&["-n", "2"], "seq 1 20000").spawn().expect("starts");
    let mut out = launcher.stdout.take().expect("is piped");
    out.read_exact(&mut [0]).expect("a line");
    // From here on nobody reads, and no rank is left.
    until_seen(&launcher);
    let begun = Instant::now();
    signal(&launcher, "-INT");
    assert_eq!(launcher.wait().expect("ends").code(), Some(130));
    assert!(begun.elapsed() < LIMIT);
}
