//! Runs processes until all have ended, and ends them all once one fails.

use std::io::{self, IsTerminal, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tacit_bridge::process::{self, Signal};
use tacit_core::Error;

use super::lines::{self, To, UNREAD};
use crate::output::Failure;

/// How often processes are looked after.
const ROUND: Duration = Duration::from_millis(10);

/// How long a process that was asked to end has before it is killed.
const LAST: Duration = Duration::from_secs(3);

/// How long the last lines may take once all processes have ended.
const LINES: Duration = Duration::from_secs(1);

/// A process to be run.
pub(super) struct Process {
    /// The number before its lines; it writes them itself where it has none.
    rank: Option<usize>,
    command: Command,
    /// Whether it leads a group of its own, with all that it starts.
    leads: bool,
}

impl Process {
    pub(super) fn of_ring(rank: usize, command: Command) -> Self {
        Self { rank: Some(rank), command, leads: true }
    }

    /// One that `mpirun` ends together with this process.
    pub(super) fn of_mpi(rank: usize, command: Command) -> Self {
        Self { rank: Some(rank), command, leads: false }
    }

    pub(super) fn of_itself(command: Command) -> Self {
        Self { rank: None, command, leads: true }
    }

    fn name(&self) -> String {
        self.rank
            .map_or_else(|| self.command.get_program().to_string_lossy().into_owned(), |rank| format!("rank {rank}"))
    }

    fn start(mut self, readers: &mut Vec<JoinHandle<()>>) -> Result<Running, Failure> {
        let name = self.name();
        let command = &mut self.command;
        // The terminal gives its input to the group in front only, which is not that of a rank.
        command.stdin(if self.rank.unwrap_or(0) == 0 { Stdio::piped() } else { Stdio::null() });
        if let Some(rank) = self.rank {
            let bar = rank == 0 && io::stderr().is_terminal();
            command.stdout(Stdio::piped()).stderr(if bar { Stdio::inherit() } else { Stdio::piped() });
        }
        if self.leads {
            command.process_group(0);
        }
        let mut child = command.spawn().map_err(|error| {
            let program = command.get_program().to_string_lossy().into_owned();
            Error::invalid(format!("cannot start {program}: {error}"), "give a program and its arguments after `--`")
        })?;
        if let Some(rank) = self.rank {
            readers.extend(child.stdout.take().map(|out| thread::spawn(move || lines::copy(out, rank, To::Out))));
            readers.extend(child.stderr.take().map(|err| thread::spawn(move || lines::copy(err, rank, To::Err))));
        }
        if let Some(mut stdin) = child.stdin.take() {
            // It may wait for input for as long as this process lives.
            thread::spawn(move || io::copy(&mut io::stdin().lock(), &mut stdin));
        }
        Ok(Running { name, child, leads: self.leads, ended: false })
    }
}

struct Running {
    name: String,
    child: Child,
    leads: bool,
    ended: bool,
}

impl Running {
    fn signal(&mut self, signal: Signal) {
        if self.ended {
            return;
        }
        if self.leads {
            drop(process::signal_group(self.child.id(), signal));
        } else if signal == Signal::Kill {
            drop(self.child.kill());
        } else {
            drop(process::signal(self.child.id(), signal));
        }
    }

    /// How it ended, once.
    fn look(&mut self) -> Option<ExitStatus> {
        if self.ended {
            return None;
        }
        let status = self.child.try_wait().ok()??;
        if self.leads {
            // What it has left running.
            drop(process::signal_group(self.child.id(), Signal::Kill));
        }
        self.ended = true;
        Some(status)
    }
}

/// What is next where processes do not end.
struct Ending {
    /// Whoever runs then is asked to end.
    ask: Instant,
    /// Whoever runs then is killed.
    kill: Instant,
    asked: bool,
}

impl Ending {
    fn after(grace: Duration) -> Self {
        let ask = Instant::now() + grace;
        Self { ask, kill: ask + LAST, asked: false }
    }
}

/// Runs them all. The code is that of the first that failed, as a shell has it, or of the signal that ended this.
pub(super) fn run(processes: Vec<Process>, grace: Duration) -> Result<ExitCode, Failure> {
    process::catch_signals();
    let mut readers = Vec::new();
    let mut running: Vec<Running> = Vec::new();
    for process in processes {
        match process.start(&mut readers) {
            Ok(started) => running.push(started),
            Err(failure) => {
                for process in &mut running {
                    process.signal(Signal::Kill);
                }
                for process in &mut running {
                    drop(process.child.wait());
                }
                return Err(failure);
            }
        }
    }
    let alone = running.len() == 1;
    let mut code = None;
    let mut ending: Option<Ending> = None;
    while running.iter().any(|process| !process.ended) {
        for process in &mut running {
            let Some(status) = process.look().filter(|status| !status.success()) else { continue };
            if code.is_none() {
                code = Some(code_of(status));
                if !alone {
                    say(&format!("{} {}; the others have {} s", process.name, told(status), grace.as_secs_f64()));
                }
                ending = Some(Ending::after(grace));
            }
        }
        if let Some(signal) = process::caught() {
            // Who asks a second time does not wait.
            let signal = if ending.is_some() { Signal::Kill } else { signal };
            for process in &mut running {
                process.signal(signal);
            }
            code.get_or_insert(128 + signal.number());
            ending.get_or_insert_with(|| Ending::after(LAST));
        }
        if UNREAD.load(Ordering::Relaxed) && ending.is_none() {
            code = Some(128 + BROKEN_PIPE);
            ending = Some(Ending::after(Duration::ZERO));
        }
        if let Some(ending) = &mut ending {
            let now = Instant::now();
            if now > ending.kill {
                for process in &mut running {
                    process.signal(Signal::Kill);
                }
            } else if now > ending.ask && !ending.asked {
                ending.asked = true;
                for process in &mut running {
                    process.signal(Signal::Terminate);
                }
            }
        }
        thread::sleep(ROUND);
    }
    // What left the groups may hold the other end for as long as it likes.
    let until = Instant::now() + LINES;
    while readers.iter().any(|reader| !reader.is_finished()) && Instant::now() < until {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(ExitCode::from(code.unwrap_or(0) as u8))
}

/// The signal for whoever writes what nobody reads, which Rust's programs ignore.
const BROKEN_PIPE: i32 = 13;

fn code_of(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn told(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("failed with code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "failed".to_owned(),
    }
}

fn say(text: &str) {
    drop(writeln!(io::stderr(), "tacit: {text}"));
}
