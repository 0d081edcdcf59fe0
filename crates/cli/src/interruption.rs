//! Ctrl-C: it ends an answer, or the program, which removes its unfinished files and says which files stay.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::Duration;

use tacit_bridge::process::{Signal, catch_signals, caught, exit_at_once};
use tacit_files::abandon;

/// How often it is looked for a signal.
const ROUND: Duration = Duration::from_millis(10);

/// The folder that stays.
static KEPT: Mutex<Option<PathBuf>> = Mutex::new(None);

/// From now on an interrupt, a hangup or a request to end removes the files that are on their way, tells of the folder of what
/// was made, if there is one, and ends the program with the code that shells give for the signal.
///
/// A signal that whoever started the program has it ignore stays ignored.
pub(crate) fn clear_up(kept: Option<&Path>) {
    static ONCE: Once = Once::new();
    *KEPT.lock().unwrap_or_else(PoisonError::into_inner) = kept.map(Path::to_owned);
    ONCE.call_once(|| {
        catch_signals();
        thread::spawn(|| {
            loop {
                thread::sleep(ROUND);
                let Some(signal) = caught() else { continue };
                if signal == Signal::Interrupt && turn(RUNS, INTERRUPTED) {
                    continue;
                }
                abandon();
                let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner).take();
                let said = match kept.filter(|folder| folder.exists()) {
                    Some(kept) => format!("what was made is in {}, and the same command goes on there", kept.display()),
                    None => "what was not finished is removed".to_owned(),
                };
                drop(writeln!(io::stderr(), "interrupted: {said}"));
                exit_at_once(128 + signal.number());
            }
        });
    });
}

/// The state of the answer: none, running or interrupted.
static ANSWER: AtomicU8 = AtomicU8::new(NONE);
const NONE: u8 = 0;
const RUNS: u8 = 1;
const INTERRUPTED: u8 = 2;

/// Whether the answer was `from`, and now is `to`.
fn turn(from: u8, to: u8) -> bool {
    ANSWER.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
}

/// An answer that is being made: the first Ctrl-C ends it alone, and the second the program, as [`clear_up`] has it.
pub(crate) struct Answering(&'static AtomicU8);

impl Answering {
    /// Begins an answer, of which there is one at a time.
    pub(crate) fn begin() -> Self {
        clear_up(None);
        ANSWER.store(RUNS, Ordering::SeqCst);
        Self(&ANSWER)
    }

    /// Whether it is to end.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.0.load(Ordering::SeqCst) == INTERRUPTED
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.store(NONE, Ordering::SeqCst);
    }
}
