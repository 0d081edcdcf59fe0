//! Ranks on several machines, and programs that cannot start.

use std::ffi::OsStr;
use std::process::Command;
use std::{env, fs};

use expect_test::expect;
use tempfile::NamedTempFile;

use super::{launch, lines, run};

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
    let alone = [["--host", "10.0.0.1"], ["--job", "own"], ["--port", "7400"]];
    for wrong in alone.into_iter().chain([["--threads", "0"], ["--grace", "nan"], ["--grace", "1e30"]]) {
        let output = run(&[&["-n", "2"][..], &wrong].concat(), "true");
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", lines(&output.stderr));
    }
    let output = launch(&["-n", "2", "--backend", "mpi"], "true").env("PATH", "/nowhere").output().expect("starts");
    expect![[r#"
        error: mpirun is not in the search path
        help: install Open MPI, or leave `--backend` out for the ring"#]]
    .assert_eq(&lines(&output.stderr));
}

/// A file of machines, until it is dropped.
struct Machines(NamedTempFile);

impl Machines {
    fn new(text: &str) -> Self {
        let file = NamedTempFile::new().expect("makes a file");
        fs::write(&file, text).expect("writes");
        Self(file)
    }

    fn path(&self) -> &str {
        self.0.path().to_str().expect("text")
    }

    /// Text without its path, nor the name of a job that nobody guesses.
    fn plain(&self, text: &[u8]) -> String {
        let text = std::str::from_utf8(text).expect("text").replace(self.path(), "FILE");
        let words = text.split(' ').map(|word| {
            let random = word.len() == 16 && word.chars().all(|c| c.is_ascii_hexdigit());
            if random { "JOB" } else { word }
        });
        words.collect::<Vec<_>>().join(" ")
    }
}

#[test]
fn each_machine_of_a_file_has_its_command() {
    let file = Machines::new("# two machines\n127.0.0.1 2\n127.0.0.2   # one rank\n127.0.0.1 1\n");
    let printed = |options: &[&str]| {
        let options = [&["--hosts", file.path(), "--port", "21700"], options].concat();
        file.plain(&run(&options, "echo $MLX_RANK").stdout)
    };
    expect![[r#"
        # on 127.0.0.1, 3 ranks
        tacit launch --hosts FILE --host 127.0.0.1 --port 21700 --job JOB --grace 10 -- sh -c 'echo $MLX_RANK'
        # on 127.0.0.2, 1 rank
        tacit launch --hosts FILE --host 127.0.0.2 --port 21700 --job JOB --grace 10 -- sh -c 'echo $MLX_RANK'
    "#]]
    .assert_eq(&printed(&[]));
    expect![[r#"
        # on 127.0.0.1, for all machines
        tacit launch --backend mpi --hosts FILE --host 127.0.0.1 --port 21700 --job night.1 --grace 10 -- sh -c 'echo $MLX_RANK'
    "#]]
    .assert_eq(&printed(&["--backend", "mpi", "--job", "night.1"]));
    let started = |machine: &str| {
        let script = r#"echo "$MLX_RANK $TACIT_WATCH $TACIT_JOB"; cat "$MLX_HOSTFILE"; echo"#;
        let options = ["--hosts", file.path(), "--host", machine, "--port", "21700", "--job", "mine"];
        lines(&run(&options, script).stdout)
    };
    expect![[r#"
        [2] 2 127.0.0.1:21700 mine
        [2] [["127.0.0.1:21701"],["127.0.0.1:21702"],["127.0.0.2:21701"],["127.0.0.1:21703"]]"#]]
    .assert_eq(&started("127.0.0.2"));
    let ranks = started("127.0.0.1");
    let ranks: Vec<&str> = ranks.lines().filter(|line| line.ends_with("mine")).map(|line| &line[..3]).collect();
    assert_eq!(ranks, ["[0]", "[1]", "[3]"], "all ranks of both lines");
}

#[test]
fn machines_that_cannot_be_are_refused() {
    let refused_by = |text: &str, options: &[&str]| {
        let file = Machines::new(text);
        let output = run(&[&["--hosts", file.path()][..], options].concat(), "true");
        assert_eq!(output.status.code(), Some(1));
        file.plain(&output.stderr)
    };
    let refused = |text| refused_by(text, &[]);
    expect![[r#"
        error: FILE: line 2 is server 4
        help: write the IPv4 address of a machine and how many ranks it has, as in `10.0.0.1 4`
    "#]]
    .assert_eq(&refused("127.0.0.1 2\nserver 4\n"));
    expect![[r#"
        error: FILE: line 1 is fe80::1 2
        help: give the machine's IPv4 address: the ring takes no other
    "#]]
    .assert_eq(&refused("fe80::1 2\n"));
    expect![[r#"
        error: 60000 ranks have no ports from 7300 on
        help: give a lower `--port`
    "#]]
    .assert_eq(&refused("127.0.0.1 30000\n127.0.0.1 30000\n"));
    expect![[r#"
        error: FILE: it names no machine
        help: write a line for each, as in `10.0.0.1 4`
    "#]]
    .assert_eq(&refused("# 127.0.0.1 2\n"));
    expect![[r#"
        error: FILE has no machine 127.0.0.2
        help: name one as its line does
    "#]]
    .assert_eq(&refused_by("127.0.0.1 2\n", &["--host", "127.0.0.2"]));
}

#[test]
fn mpirun_is_given_the_machines_and_what_their_ranks_need_to_know() {
    let file = Machines::new("127.0.0.1 2\n127.0.0.2 1\n127.0.0.1 1\n");
    let folder = tempfile::tempdir().expect("a folder");
    let mpirun = folder.path().join("mpirun");
    // It says what it is given.
    let script = "#!/bin/sh\nprintf '%s ' \"$@\"; echo\nwhile test $1 != --hostfile; do shift; done\ncat $2\necho $TACIT_WATCH $TACIT_JOB\n";
    // A process of its own writes it: what another test starts meanwhile would hold a file of this one open for writing, and such a
    // file does not run.
    let written = r#"printf '%s' "$1" >"$0" && chmod 755 "$0""#;
    let written = Command::new("sh").args(["-c", written]).args([mpirun.as_os_str(), OsStr::new(script)]).status();
    assert!(written.expect("a shell").success());
    let mut path = folder.path().as_os_str().to_owned();
    path.push(":/usr/bin:/bin");
    let start = |machine: &str| {
        let options =
            ["--backend", "mpi", "--hosts", file.path(), "--host", machine, "--port", "21700", "--job", "mine"];
        let mut command = launch(&options, "true");
        for (name, _) in env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("TACIT_") || name.starts_with("MLX_")) {
                command.env_remove(name);
            }
        }
        command.env("PATH", &path).env("TACIT_PASSES", "off").env("MLX_MPI_LIBNAME", "libmpi.so");
        command.output().expect("starts")
    };
    let output = start("127.0.0.1");
    let text = String::from_utf8(output.stdout).expect("text").replace(env!("CARGO_BIN_EXE_tacit"), "tacit");
    let words = text.split(' ').map(|word| if word.ends_with("/machines") { "MACHINES" } else { word });
    expect![[r#"
        -n 4 --map-by :OVERSUBSCRIBE --bind-to none --hostfile MACHINES -x MLX_MPI_LIBNAME -x TACIT_JOB -x TACIT_PASSES -x TACIT_WATCH tacit launch --as-rank --grace 10 -- sh -c true 
        127.0.0.1 slots=3
        127.0.0.2 slots=1
        127.0.0.1:21700 mine
    "#]]
    .assert_eq(&words.collect::<Vec<_>>().join(" "));
    let output = start("127.0.0.2");
    expect![[r#"
        error: 127.0.0.2 is not the first machine of FILE
        help: start the first one alone: `mpirun` starts the ranks of all machines from there
    "#]]
    .assert_eq(&file.plain(&output.stderr));
}
