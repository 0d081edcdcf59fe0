//! Runs processes until all have ended, and ends them all once one fails.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt, parent_id};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tacit_bridge::process::{self, Signal};
use tacit_core::Error;

use super::input;
use super::lines::Printer;
use super::warden::{LAST, Warden};
use crate::output::Failure;

/// How often processes are looked after.
const ROUND: Duration = Duration::from_millis(10);

/// How long lines may still come once all processes have ended.
const LINES: Duration = Duration::from_secs(1);

pub(super) struct Process {
    /// The number before its lines; it writes them itself where it has none.
    pub(super) rank: Option<usize>,
    pub(super) command: Command,
    /// Whether it leads a group of its own, with all that it starts; one of `mpirun` does not, which ends it together with this
    /// process.
    pub(super) leads: bool,
}

impl Process {
    fn name(&self) -> String {
        self.rank
            .map_or_else(|| self.command.get_program().to_string_lossy().into_owned(), |rank| format!("rank {rank}"))
    }

    fn start(mut self, out: &Printer, err: &Printer) -> Result<Running, Failure> {
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
        // What is asked to end must hear it, even where this program was started to ignore the terminal.
        process::with_default_signals(command);
        // `mpirun` has ranks of its own to end.
        process::end_with_parent(command, if self.rank.is_some() { Signal::Kill } else { Signal::Terminate });
        let mut child = command.spawn().map_err(|error| {
            let program = command.get_program().to_string_lossy().into_owned();
            Error::invalid(format!("cannot start {program}: {error}"), "give a program and its arguments after `--`")
        })?;
        if let Some(rank) = self.rank {
            child.stdout.take().into_iter().for_each(|stream| out.read(rank, stream));
            child.stderr.take().into_iter().for_each(|stream| err.read(rank, stream));
        }
        child.stdin.take().into_iter().for_each(input::give_to);
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
        // Of one that nobody can wait for, nobody knows more than that it is gone.
        let status = self.child.try_wait().unwrap_or(Some(ExitStatus::from_raw(1 << 8)))?;
        if self.leads {
            // What it has left running.
            drop(process::signal_group(self.child.id(), Signal::Kill));
        }
        self.ended = true;
        Some(status)
    }
}

pub(super) struct Ended {
    code: i32,
    /// Whether they were to end: by a signal to this program, or because nobody reads what they write.
    asked: bool,
}

impl Ended {
    /// The code of the first that failed, as a shell has it, or of the signal that ended this.
    pub(super) fn code(&self) -> ExitCode {
        ExitCode::from(self.code as u8)
    }

    /// Whether one failed by itself.
    pub(super) fn has_failed(&self) -> bool {
        self.code != 0 && !self.asked
    }
}

/// The signals that processes which do not end are still to be sent, each stronger than the one before.
struct Ending {
    signals: VecDeque<(Instant, Signal)>,
}

impl Ending {
    /// This signal at `first`, and the stronger ones after it, each so much `later` than the one before.
    fn new(signal: Signal, first: Instant, later: Duration) -> Self {
        let stronger = match signal {
            Signal::Interrupt => &[Signal::Terminate, Signal::Kill][..],
            Signal::Hangup | Signal::Terminate => &[Signal::Kill],
            Signal::Kill => &[],
        };
        let signals = std::iter::once(&signal).chain(stronger);
        let times = std::iter::successors(Some(first), |time| Some(*time + later));
        Self { signals: times.zip(signals.copied()).collect() }
    }

    fn due(&mut self) -> Option<Signal> {
        let (time, signal) = *self.signals.front()?;
        (time <= Instant::now()).then(|| self.signals.pop_front())?;
        Some(signal)
    }
}

/// Runs them all. `folder` is
/// removed by whoever calls this, and by the warden where that does not come to it.
pub(super) fn run(processes: Vec<Process>, grace: Duration, folder: Option<&Path>) -> Result<Ended, Failure> {
    process::catch_signals();
    let parent = parent_id();
    // A day is as good as longer times. Whoever is asked to end may have something to save first.
    let grace = grace.min(Duration::from_hours(24));
    let patience = grace.max(LAST);
    let (out, err) = (Printer::new(io::stdout(), false), Printer::new(io::stderr(), io::stderr().is_terminal()));
    // `mpirun` ends this process and its rank together.
    let leads = processes.iter().any(|process| process.leads);
    let mut warden = leads.then(|| Warden::start(folder).ok()).flatten();
    let mut running: Vec<Running> = Vec::new();
    for process in processes {
        match process.start(&out, &err) {
            Ok(started) => {
                if let Some(warden) = warden.as_mut().filter(|_| started.leads) {
                    warden.begins(started.child.id());
                }
                running.push(started);
            }
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
    let (mut code, mut asked) = (None, false);
    let mut ending: Option<Ending> = None;
    while running.iter().any(|process| !process.ended) {
        // First, so that a signal after the last end that is seen is left for the wait for what is yet to be written.
        // Where `mpirun` was the parent, it is gone.
        let orphaned = parent_id() != parent && !leads;
        if let Some(signal) = process::caught().or((orphaned && ending.is_none()).then_some(Signal::Terminate)) {
            code.get_or_insert(128 + signal.number());
            asked = true;
            // Who asks a second time does not wait.
            let signal = if ending.is_some() { Signal::Kill } else { signal };
            ending = Some(Ending::new(signal, Instant::now(), patience));
        }
        for process in &mut running {
            let Some(status) = process.look() else { continue };
            if let Some(warden) = &mut warden {
                warden.ended(process.child.id());
            }
            if code.is_none() && !status.success() {
                code = Some(code_of(status));
                if !alone {
                    say(&format!("{} {}; the others have {} s", process.name, told(status), grace.as_secs_f64()));
                }
                ending = Some(Ending::new(Signal::Terminate, Instant::now() + grace, LAST));
            }
        }
        // What cannot be written for another reason is told in the end.
        if (out.is_unread() || err.is_unread()) && ending.is_none() {
            code = Some(128 + BROKEN_PIPE);
            asked = true;
            ending = Some(Ending::new(Signal::Terminate, Instant::now(), patience));
        }
        if let Some(signal) = ending.as_mut().and_then(Ending::due) {
            for process in &mut running {
                process.signal(signal);
            }
        }
        thread::sleep(ROUND);
    }
    // What left the groups may hold the other end for as long as it likes.
    let until = Instant::now() + LINES;
    if let Some(signal) = Printer::finish([out, err], until)? {
        code.get_or_insert(128 + signal.number());
        asked = true;
    }
    Ok(Ended { code: code.unwrap_or(0), asked })
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

pub(super) fn say(text: &str) {
    drop(writeln!(io::stderr(), "tacit: {text}"));
}
