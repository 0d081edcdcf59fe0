//! A process beside the launcher that outlives it: it ends the ranks, and all that they started, where the launcher is killed.
//!
//! A killed process cannot end anything. The system ends the ranks themselves on Linux, but not what they have started.

use std::collections::BTreeSet;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use tacit_bridge::process::{self, Signal};

/// How long a process has that was sent a signal before it is sent a stronger one.
pub(super) const LAST: Duration = Duration::from_secs(3);

/// The warden of a launcher, to which it tells what it starts.
pub(super) struct Warden {
    process: Child,
    told: Option<ChildStdin>,
}

impl Warden {
    /// Starts it; `folder` goes with the launcher.
    pub(super) fn start(folder: Option<&Path>) -> io::Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command
            .args(["launch", "--as-warden"])
            .args(folder.map(|folder| [Path::new("--"), folder]).into_iter().flatten());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // Signals for the launcher's group do not reach it.
        let mut process = command.process_group(0).spawn()?;
        let told = process.stdin.take();
        Ok(Self { process, told })
    }

    /// The process of this number was started, and leads a group.
    pub(super) fn begins(&mut self, leader: u32) {
        self.tell('+', leader);
    }

    /// It has ended, and its group with it.
    pub(super) fn ended(&mut self, leader: u32) {
        self.tell('-', leader);
    }

    fn tell(&mut self, what: char, leader: u32) {
        // Without a warden the launcher does what it can.
        if let Some(told) = &mut self.told {
            drop(writeln!(told, "{what}{leader}"));
        }
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        drop(self.told.take());
        drop(self.process.wait());
    }
}

/// Runs as the warden of the process that writes to the standard input, until that has ended.
pub(super) fn run(folder: Option<PathBuf>) -> ExitCode {
    process::catch_signals();
    let mut leaders = BTreeSet::new();
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        match (line.get(..1), line.get(1..).and_then(|number| number.parse::<u32>().ok())) {
            (Some("+"), Some(leader)) => drop(leaders.insert(leader)),
            (Some("-"), Some(leader)) => drop(leaders.remove(&leader)),
            _ => {}
        }
    }
    let is_left = |leader: &u32| process::group_is_left(*leader);
    for &leader in &leaders {
        drop(process::signal_group(leader, Signal::Terminate));
    }
    let until = Instant::now() + LAST;
    while leaders.iter().any(is_left) && Instant::now() < until {
        thread::sleep(Duration::from_millis(20));
    }
    for &leader in leaders.iter().filter(|leader| is_left(leader)) {
        drop(process::signal_group(leader, Signal::Kill));
    }
    if let Some(folder) = folder {
        drop(fs::remove_dir_all(folder));
    }
    ExitCode::SUCCESS
}
