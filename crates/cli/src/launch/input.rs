//! The standard input, which goes to one process at a time: to rank 0 of the latest start.

use std::io::{self, Read, Write};
use std::process::ChildStdin;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// Gives what comes from now on to a process that has just started. Whoever had it before has ended; what was not passed
/// on to it any more is given to this one.
pub(super) fn give_to(process: ChildStdin) {
    // One reader for all starts: a second one would wait for input beside the first, and lose what the first still reads.
    static READER: OnceLock<Sender<ChildStdin>> = OnceLock::new();
    let reader = READER.get_or_init(|| {
        let (processes, next) = channel();
        // It may wait for input for as long as this process lives.
        thread::spawn(move || pass_on(io::stdin().lock(), &next));
        processes
    });
    // At the end of the input there is no reader, and the process sees that end.
    drop(reader.send(process));
}

/// Passes the input on to each process in turn, until it ends.
fn pass_on(mut from: impl Read, processes: &Receiver<impl Write>) {
    let (mut piece, mut left) = ([0; 1 << 13], 0..0);
    while let Ok(mut process) = processes.recv() {
        loop {
            if left.is_empty() {
                left = match from.read(&mut piece) {
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
            match process.write(&piece[left.clone()]) {
                Ok(written) => left.start += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
    }
}
