//! The lines of a rank, with its number before each.

use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// The longest piece of a line that is kept until its end comes.
const LONGEST: u64 = 1 << 16;

/// Whether nobody reads what is written any more.
pub(super) static UNREAD: AtomicBool = AtomicBool::new(false);

/// Where lines go.
#[derive(Clone, Copy)]
pub(super) enum To {
    Out,
    Err,
}

impl To {
    /// Writes all of it at once, so that lines of other ranks stay outside.
    fn write(self, line: &[u8]) -> io::Result<()> {
        match self {
            Self::Out => {
                let mut out = io::stdout().lock();
                out.write_all(line)?;
                out.flush()
            }
            Self::Err => io::stderr().lock().write_all(line),
        }
    }
}

/// Copies lines until there are no more.
pub(super) fn copy(from: impl Read, rank: usize, to: To) {
    let mut from = BufReader::new(from);
    // A progress bar of rank 0 may stand where the line goes.
    let wipes = matches!(to, To::Err) && io::stderr().is_terminal();
    let prefix = format!("{}[{rank}] ", if wipes { "\r\x1b[K" } else { "" });
    let mut line = Vec::new();
    loop {
        line.clear();
        line.extend_from_slice(prefix.as_bytes());
        match from.by_ref().take(LONGEST).read_until(b'\n', &mut line) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        if to.write(&line).is_err() {
            UNREAD.store(true, Ordering::Relaxed);
            // Read on, so that the rank does not wait for a reader before it is ended.
            drop(io::copy(&mut from, &mut io::sink()));
            return;
        }
    }
}
