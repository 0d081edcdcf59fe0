//! The standard input, which goes to one process at a time: to rank 0 of the latest start.

use std::io::{self, IsTerminal, Read, StdinLock, Write};
use std::process::ChildStdin;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use tacit_bridge::process;

/// How often a launcher in the background of its terminal looks whether it may read.
const ROUND: Duration = Duration::from_secs(1);

/// Gives what comes from now on to a process that has just started. Whoever had it before has ended; what was not passed
/// on to it any more is given to this one.
pub(super) fn give_to(process: ChildStdin) {
    // One reader for all starts: a second one would wait for input beside the first, and lose what the first still reads.
    static READER: OnceLock<Sender<ChildStdin>> = OnceLock::new();
    let reader = READER.get_or_init(|| {
        let (processes, next) = channel();
        process::read_without_stops();
        // It may wait for input for as long as this process lives.
        thread::spawn(move || pass_on(Input(io::stdin().lock()), &next));
        processes
    });
    // At the end of the input there is no reader, and the process sees that end.
    drop(reader.send(process));
}

/// The standard input. In the background of a terminal there is none yet: whoever brings the launcher to the front goes on there.
struct Input(StdinLock<'static>);

impl Read for Input {
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(piece) {
                Err(error) if error.raw_os_error() == Some(IN_BACKGROUND) && self.0.is_terminal() => {
                    thread::sleep(ROUND);
                }
                read => return read,
            }
        }
    }
}

/// The system's `EIO`, for whoever reads a terminal from its background.
const IN_BACKGROUND: i32 = 5;

/// Passes the input on to each process in turn, until it ends.
fn pass_on(mut from: impl Read, processes: &Receiver<impl Write>) {
    let (mut piece, mut unsent) = ([0; 1 << 13], 0..0);
    while let Ok(mut process) = processes.recv() {
        loop {
            if unsent.is_empty() {
                unsent = match from.read(&mut piece) {
                    Ok(0) => return,
                    Ok(read) => 0..read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(_) => return,
                };
            }
            // The next one may have started meanwhile, where something still holds the other end of this one's pipe. While that is
            // full, nobody gets anything.
            while let Ok(next) = processes.try_recv() {
                process = next;
            }
            match process.write(&piece[unsent.clone()]) {
                Ok(written) => unsent.start += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
    }
}
