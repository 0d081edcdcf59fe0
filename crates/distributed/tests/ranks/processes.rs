//! The processes of one group: their start, what they say, and their end, which comes whatever they do.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use std::{env, process};

use tacit_bridge::ports::Held;
use tacit_bridge::process::{Signal, signal};

use crate::child;
use crate::commands::{Commands, Engine, commands};

/// In place of a variable's value: a port that is held for this group.
pub(crate) const HELD: &str = "held";

/// Where each rank of MPI writes its errors: `mpirun` passes on what ranks write, and drops the rest of it when one fails.
const OF_RANK: &str = r#"exec "$@" 2>"$TACIT_RANKS_FOLDER/stderr.$OMPI_COMM_WORLD_RANK""#;

/// What is heard of a rank.
#[derive(Debug)]
pub(crate) enum Heard {
    /// It runs, as the process of this number.
    Runs(u32),
    /// A case came to its end.
    Case(String, Result<(), String>),
    /// Its process has ended, or is about to.
    Gone,
}

/// The processes of one group, which end with it.
pub(crate) struct Processes {
    engine: Engine,
    /// Of each rank, or `mpirun` alone.
    started: Vec<Child>,
    /// The number of each rank's process, once it is heard of.
    pids: Vec<Option<u32>>,
    listener: TcpListener,
    heard: Receiver<(Option<usize>, Heard)>,
    teller: Sender<(Option<usize>, Heard)>,
    /// Ranks that have connected and are not gone.
    connected: usize,
    folder: PathBuf,
    _held: Held,
    pub(crate) since: Instant,
}

impl Processes {
    /// Starts a program for these cases on so many ranks.
    pub(crate) fn start(
        engine: Engine,
        ranks: usize,
        cases: &[String],
        variables: &[(&str, &str)],
    ) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("tacit-ranks-{}-{number}", process::id()));
        fs::create_dir_all(&folder)?;
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let parent = listener.local_addr()?.to_string();
        let (teller, heard) = channel();
        let since = Instant::now();
        let pids = vec![None; ranks];
        let this = env::current_exe()?.into_os_string();
        let shell: &[&str] = match engine {
            Engine::Ring => &[],
            Engine::Mpi => &["sh", "-c", OF_RANK, "sh"],
        };
        let (places, settled): (Vec<_>, Vec<_>) = variables.iter().partition(|(_, value)| *value == HELD);
        // By `env`, so that `mpirun` itself does not have them: one is the search path.
        let settled = settled.iter().map(|(name, value)| OsString::from(format!("{name}={value}")));
        let program: Vec<_> = shell.iter().chain(&["env"]).map(OsString::from).chain(settled).chain([this]).collect();
        let Commands { mut each, held } = commands(engine, ranks, &folder, &program)?;
        let place = format!("127.0.0.1:{}", held.numbers()[ranks]);
        let (started, connected) = (Vec::new(), 0);
        let mut this = Self { engine, started, pids, listener, heard, teller, connected, folder, _held: held, since };
        for (rank, command) in each.iter_mut().enumerate() {
            command.arg(child::FLAG).args(cases).stdin(Stdio::null()).stdout(Stdio::null());
            command.env(child::PARENT, &parent).env(child::FOLDER, &this.folder).env("TACIT_THREADS", "1");
            command.envs(places.iter().map(|(name, _)| (name, &place)));
            // Each rank would compile thousands of fused kernels by itself, which takes longer than what is tried here.
            command.env_remove(tacit_conformance::SWEEP_VARIABLE);
            let file = if engine == Engine::Mpi { this.folder.join("stderr.mpirun") } else { this.said_to(rank) };
            command.stderr(File::create(file)?);
            this.started.push(command.spawn()?);
        }
        Ok(this)
    }

    /// The next that is heard of a rank, if anything is before then and they have not all ended.
    pub(crate) fn hear(&mut self, until: Instant) -> Option<(usize, Heard)> {
        loop {
            // Asked first, so that no connection is overlooked.
            let all_ended = self.all_ended();
            while let Ok((stream, _)) = self.listener.accept() {
                let teller = self.teller.clone();
                self.connected += 1;
                thread::spawn(move || listen(&stream, &teller));
            }
            // Connections come at the start, and seldom.
            match self.heard.recv_timeout(Duration::from_millis(5)) {
                Ok((rank, heard)) => {
                    self.connected -= usize::from(matches!(heard, Heard::Gone));
                    let Some(rank) = rank.filter(|rank| *rank < self.pids.len()) else { continue };
                    match heard {
                        Heard::Runs(pid) => self.pids[rank] = Some(pid),
                        // Ranks may wait for it.
                        Heard::Case(..) => drop(File::create(self.folder.join(child::HEARD))),
                        Heard::Gone => {}
                    }
                    return Some((rank, heard));
                }
                Err(_) if Instant::now() > until || (self.connected == 0 && all_ended) => return None,
                Err(_) => {}
            }
        }
    }

    /// Whether none of them is left.
    fn all_ended(&mut self) -> bool {
        self.started.iter_mut().all(|child| matches!(child.try_wait(), Ok(Some(_))))
    }

    /// Whether this rank has said that it runs, so that its end is heard as well.
    pub(crate) fn runs(&self, rank: usize) -> bool {
        self.pids[rank].is_some()
    }

    /// Whether this rank has ended, as far as it can be seen: `mpirun` does not show it.
    pub(crate) fn ended(&mut self, rank: usize) -> Option<ExitStatus> {
        match self.engine {
            Engine::Ring => self.started.get_mut(rank)?.try_wait().ok()?,
            Engine::Mpi => self.started.first_mut()?.try_wait().ok()?,
        }
    }

    /// Waits for the end of all of them. The error names one that fails or does not end.
    pub(crate) fn finish(&mut self, limit: Duration) -> Result<(), String> {
        let until = Instant::now() + limit;
        while !self.all_ended() {
            if Instant::now() > until {
                return Err(format!("after its cases it does not end within {limit:?}"));
            }
            sleep(Duration::from_millis(5));
        }
        for (rank, child) in self.started.iter_mut().enumerate() {
            match child.wait() {
                Ok(status) if status.success() => {}
                other => {
                    let who = if self.engine == Engine::Mpi { "mpirun".to_owned() } else { format!("rank {rank}") };
                    return Err(format!("after its cases {who} ends with {other:?}"));
                }
            }
        }
        Ok(())
    }

    /// What a rank wrote to its standard error, and `mpirun` after it.
    pub(crate) fn stderr(&self, rank: usize) -> String {
        let files = [self.said_to(rank), self.folder.join("stderr.mpirun")];
        let texts = files.iter().map(|file| fs::read(file).unwrap_or_default());
        texts.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect()
    }

    fn said_to(&self, rank: usize) -> PathBuf {
        self.folder.join(format!("stderr.{rank}"))
    }

    /// Kills what is left. A stopped process, too.
    pub(crate) fn kill(&mut self) {
        for pid in self.pids.iter().flatten().filter(|_| self.engine == Engine::Mpi) {
            // `mpirun` would take its time.
            drop(signal(*pid, Signal::Kill));
        }
        for child in &mut self.started {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.kill();
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// Tells what a rank says, until it has gone.
fn listen(stream: &TcpStream, teller: &Sender<(Option<usize>, Heard)>) {
    drop(stream.set_nonblocking(false));
    let mut messages = BufReader::new(stream).split(child::END).map_while(Result::ok).map(String::from_utf8);
    let mut next = || {
        let message = messages.next()?.ok()?;
        let (first, second) = message.split_once(child::FIELD)?;
        Some((first.to_owned(), second.to_owned()))
    };
    // The receiver is gone when nobody asks any more.
    let tell = |rank: Option<usize>, heard: Heard| drop(teller.send((rank, heard)));
    let first = next();
    let rank = first.as_ref().and_then(|(rank, _)| rank.parse().ok());
    if let Some(pid) = first.and_then(|(_, pid)| pid.parse().ok()) {
        tell(rank, Heard::Runs(pid));
    }
    while let Some((name, error)) = next() {
        tell(rank, Heard::Case(name, if error.is_empty() { Ok(()) } else { Err(error) }));
    }
    tell(rank, Heard::Gone);
}
