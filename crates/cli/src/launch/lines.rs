//! The output of ranks, with the number of the rank before each line.
//!
//! All that goes to one of this program's streams goes through one thread, so that a line stays whole whatever other ranks
//! write meanwhile. A line without an end, such as a prompt, is shown once its rank has written nothing for a moment.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tacit_bridge::process::{self, Signal};

use crate::output::is_closed;

/// How much of a line is kept until its end comes. A longer one is written as it comes, and others wait for its end.
const LONGEST: usize = 1 << 16;

/// How much of a rank's lines waits for the end of another's.
const MUCH: usize = 1 << 24;

/// How long a rank may pause within a line: then what there is of it is shown, and others may write behind it. Long for a
/// program that writes a line word by word on a machine that has much else to do.
const PAUSE: Duration = Duration::from_millis(500);

/// How often unfinished lines are looked after, and how long nothing may come before nothing more is waited for.
const LOOK: Duration = Duration::from_millis(50);

/// What is read of a rank at most once all have ended: as much as a pipe holds. Whoever left its group may write for ever.
const LATE: usize = 1 << 16;

/// Writes to one stream what ranks say.
pub(super) struct Printer {
    pieces: SyncSender<Piece>,
    thread: JoinHandle<()>,
    work: Arc<Work>,
}

/// What is left to be printed.
#[derive(Default)]
struct Work {
    /// Pieces that were read and are not on the page.
    pieces: AtomicUsize,
    /// Whether lines wait on the page, for their end or another's.
    lines: AtomicBool,
    /// Whether all ranks have ended, and some time ago.
    late: AtomicBool,
    /// Whether nothing more is put on the page: nobody reads it, or the system refuses it.
    unread: AtomicBool,
    /// Why the system refuses it.
    refused: Mutex<Option<io::Error>>,
}

impl Work {
    fn is_done(&self) -> bool {
        let waiting = self.pieces.load(Ordering::Relaxed) > 0 || self.lines.load(Ordering::Relaxed);
        !waiting || self.unread.load(Ordering::Relaxed)
    }
}

/// A rank, and some of what it wrote; nothing at its end.
type Piece = (usize, Option<Vec<u8>>);

impl Printer {
    /// One that writes to a stream, and where it `wipes` over the progress bar that may stand where a line goes.
    pub(super) fn new(to: impl Write + Send + 'static, wipes: bool) -> Self {
        // Ranks wait once whoever reads does not keep up.
        let (pieces, coming) = sync_channel(64);
        let work = Arc::new(Work::default());
        let shared = work.clone();
        Self { pieces, thread: thread::spawn(move || print(&coming, Page::new(to, wipes), &shared)), work }
    }

    /// Whether nothing more of what ranks say is written.
    pub(super) fn is_unread(&self) -> bool {
        self.work.unread.load(Ordering::Relaxed)
    }

    /// Prints all that comes `from` a rank.
    pub(super) fn read(&self, rank: usize, mut from: impl Read + Send + 'static) {
        let (pieces, work) = (self.pieces.clone(), self.work.clone());
        thread::spawn(move || {
            let say = |piece| {
                work.pieces.fetch_add(1, Ordering::Relaxed);
                drop(pieces.send((rank, piece)));
            };
            let (mut piece, mut late) = ([0; 1 << 13], 0);
            while late < LATE {
                match from.read(&mut piece) {
                    Ok(0) => break,
                    Ok(read) => {
                        late += if work.late.load(Ordering::Relaxed) { read } else { 0 };
                        say(Some(piece[..read].to_vec()));
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
            say(None);
        });
    }

    /// Waits until all that ranks wrote is printed: until `until` for whoever may still write, then for what pipes hold, and for
    /// a slow reader as long as that takes. A signal ends it, which is told.
    ///
    /// # Errors
    ///
    /// What ranks wrote could not be written: the disk is full. That nobody reads it is no error.
    pub(super) fn finish(printers: [Self; 2], until: Instant) -> io::Result<Option<Signal>> {
        let printers = printers.map(|Self { thread, work, .. }| (thread, work));
        let mut quiet = Instant::now();
        while !printers.iter().all(|(thread, _)| thread.is_finished()) {
            if let Some(signal) = process::caught() {
                return Ok(Some(signal));
            }
            let now = Instant::now();
            if now < until || !printers.iter().all(|(_, work)| work.is_done()) {
                quiet = now;
            }
            if now >= until {
                for (_, work) in &printers {
                    work.late.store(true, Ordering::Relaxed);
                }
            }
            // A reader that was held up has the time to read what its pipe holds.
            if now - quiet >= LOOK {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        let refused = |work: &Work| work.refused.lock().unwrap_or_else(PoisonError::into_inner).take();
        printers.iter().find_map(|(_, work)| refused(work)).map_or(Ok(None), Err)
    }
}

fn print(coming: &Receiver<Piece>, mut page: Page<impl Write>, work: &Work) {
    loop {
        let piece = if page.is_settled() {
            coming.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            coming.recv_timeout(LOOK)
        };
        let came = piece.is_ok();
        let written = match piece {
            Ok((rank, Some(bytes))) => page.take(rank, &bytes, Instant::now()),
            Ok((rank, None)) => page.end(rank, Instant::now()),
            Err(RecvTimeoutError::Timeout) => page.settle(Instant::now()),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if let Err(error) = written {
            if !is_closed(&error) {
                *work.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
            work.unread.store(true, Ordering::Relaxed);
            // Read on, so that no rank waits for a reader before it is ended.
            coming.iter().for_each(drop);
            return;
        }
        work.lines.store(!page.is_settled(), Ordering::Relaxed);
        if came {
            work.pieces.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// What was written, and what will be.
struct Page<W> {
    to: W,
    wipes: bool,
    /// What ranks have written that is not on the page yet: lines that wait for another's, and the begin of the next.
    waiting: BTreeMap<usize, Waiting>,
    /// The rank whose line stands unfinished at the page's end, and when it last wrote.
    open: Option<(usize, Instant)>,
}

struct Waiting {
    bytes: Vec<u8>,
    /// When the last of them came.
    since: Instant,
}

impl<W: Write> Page<W> {
    fn new(to: W, wipes: bool) -> Self {
        Self { to, wipes, waiting: BTreeMap::new(), open: None }
    }

    /// Whether nothing is left to be done until more comes.
    fn is_settled(&self) -> bool {
        self.waiting.is_empty()
    }

    fn take(&mut self, rank: usize, bytes: &[u8], now: Instant) -> io::Result<()> {
        let waiting = self.waiting.entry(rank).or_insert_with(|| Waiting { bytes: Vec::new(), since: now });
        waiting.bytes.extend_from_slice(bytes);
        waiting.since = now;
        if let Some((_, since)) = self.open.as_mut().filter(|(open, _)| *open == rank) {
            *since = now;
        }
        self.settle(now)
    }

    /// Nothing more comes of a rank: what it has not finished is finished.
    fn end(&mut self, rank: usize, now: Instant) -> io::Result<()> {
        match self.waiting.get_mut(&rank) {
            Some(waiting) if waiting.bytes.last() != Some(&b'\n') => waiting.bytes.push(b'\n'),
            None if self.open.is_some_and(|(open, _)| open == rank) => {
                self.to.write_all(b"\n")?;
                self.open = None;
            }
            _ => {}
        }
        self.settle(now)
    }

    /// Writes what can be written now.
    fn settle(&mut self, now: Instant) -> io::Result<()> {
        // Whose line is open comes first, so that it may end before another begins.
        let open = self.open.map(|(rank, _)| rank);
        let others = self.waiting.keys().copied().filter(|&rank| Some(rank) != open);
        let ranks: Vec<usize> = open.into_iter().chain(others).collect();
        for rank in ranks {
            let Some(waiting) = self.waiting.get_mut(&rank) else { continue };
            let waits = self.open.is_some_and(|(open, since)| open != rank && now.duration_since(since) < PAUSE);
            if waits && waiting.bytes.len() < MUCH {
                continue;
            }
            let shown = now.duration_since(waiting.since) >= PAUSE || waiting.bytes.len() >= LONGEST;
            let lines = waiting.bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
            let ready = if shown { waiting.bytes.len() } else { lines };
            let bytes: Vec<u8> = waiting.bytes.drain(..ready).collect();
            if waiting.bytes.is_empty() {
                self.waiting.remove(&rank);
            }
            if !bytes.is_empty() {
                self.write(rank, &bytes)?;
                self.open = (bytes.last() != Some(&b'\n')).then_some((rank, now));
            }
        }
        self.to.flush()
    }

    /// Writes lines of a rank, of which the first may go on where the page ends.
    fn write(&mut self, rank: usize, bytes: &[u8]) -> io::Result<()> {
        let goes_on = self.open.is_some_and(|(open, _)| open == rank);
        // All at once, so that what others write to the same terminal stays outside.
        let mut text = Vec::with_capacity(bytes.len() + 16);
        if self.open.is_some() && !goes_on {
            text.push(b'\n');
        }
        for (at, line) in bytes.split_inclusive(|&byte| byte == b'\n').enumerate() {
            if at > 0 || !goes_on {
                text.extend_from_slice(if self.wipes { b"\r\x1b[K" } else { b"" });
                text.extend_from_slice(format!("[{rank}] ").as_bytes());
            }
            text.extend_from_slice(line);
        }
        self.to.write_all(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is on the page after ranks wrote these pieces, each so many milliseconds after the one before.
    fn page(pieces: &[(u64, usize, &str)]) -> String {
        let mut page = Page::new(Vec::new(), false);
        let mut now = Instant::now();
        for &(after, rank, text) in pieces {
            now += Duration::from_millis(after);
            page.settle(now).expect("memory");
            page.take(rank, text.as_bytes(), now).expect("memory");
        }
        page.settle(now + PAUSE).expect("memory");
        String::from_utf8(page.to).expect("text")
    }

    #[test]
    fn lines_that_come_in_pieces_stay_whole() {
        assert_eq!(
            page(&[(0, 0, "one "), (100, 1, "a\nb"), (100, 0, "line\n"), (100, 1, "\n")]),
            "[1] a\n[0] one line\n[1] b\n"
        );
    }

    #[test]
    fn a_prompt_is_shown_after_a_moment_and_goes_on_behind_the_answer() {
        assert_eq!(page(&[(0, 0, "name? ")]), "[0] name? ");
        assert_eq!(page(&[(0, 0, "name? "), (600, 0, "thanks\nnext\n")]), "[0] name? thanks\n[0] next\n");
    }

    #[test]
    fn others_end_a_line_that_does_not_go_on() {
        let text = page(&[(0, 0, "name? "), (600, 1, "a line\n"), (600, 0, "thanks\n")]);
        assert_eq!(text, "[0] name? \n[1] a line\n[0] thanks\n");
    }

    #[test]
    fn a_long_line_is_whole_while_others_write() {
        let long = "x".repeat(LONGEST / 2);
        let mut pieces = Vec::new();
        for _ in 0..20 {
            pieces.push((10, 0, long.as_str()));
            pieces.push((10, 1, "other\n"));
        }
        pieces.push((10, 0, "end\n"));
        let text = page(&pieces);
        let whole = format!("[0] {}end\n", long.repeat(20));
        assert!(text.contains(&whole), "{} bytes", text.len());
        assert_eq!(text.replace(&whole, ""), "[1] other\n".repeat(20));
    }

    #[test]
    fn a_rank_that_ends_does_not_cut_the_line_of_another() {
        let mut page = Page::new(Vec::new(), false);
        let now = Instant::now();
        page.take(0, "x".repeat(LONGEST).as_bytes(), now).expect("memory");
        page.take(1, b"a line\nno end", now).expect("memory");
        page.end(1, now).expect("memory");
        page.take(0, b"end\n", now).expect("memory");
        let text = String::from_utf8(page.to).expect("text");
        assert_eq!(text, format!("[0] {}end\n[1] a line\n[1] no end\n", "x".repeat(LONGEST)));
    }

    #[test]
    fn what_a_rank_has_not_finished_is_finished_at_its_end() {
        let mut page = Page::new(Vec::new(), false);
        let now = Instant::now();
        page.take(0, b"no end", now).expect("memory");
        page.end(0, now).expect("memory");
        page.take(1, b"prompt", now).expect("memory");
        page.settle(now + PAUSE).expect("memory");
        page.end(1, now + PAUSE).expect("memory");
        page.end(2, now + PAUSE).expect("memory");
        assert_eq!(String::from_utf8(page.to).expect("text"), "[0] no end\n[1] prompt\n");
    }
}
