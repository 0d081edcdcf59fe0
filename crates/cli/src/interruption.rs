//! What happens at Ctrl-C: files on their way go, and what stays is said.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::Duration;

use tacit_bridge::process::{catch_signals, caught, exit_at_once};
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
