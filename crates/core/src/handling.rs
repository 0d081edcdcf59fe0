//! The handlers that are running on this thread.

use std::cell::RefCell;

use crate::{Error, Result, Site};

/// Handlers inside handlers that are still no mistake.
const DEEPEST: usize = 32;

thread_local! {
    /// The handlers that run on this thread, the outermost first.
    static RUNNING: RefCell<Vec<Site>> = const { RefCell::new(Vec::new()) };
}

/// Runs a handler; one that is too deep inside others is an error, before the stack is.
pub(crate) fn entered<R>(site: Site, f: impl FnOnce() -> Result<R>) -> Result<R> {
    struct Left;
    impl Drop for Left {
        fn drop(&mut self) {
            RUNNING.with_borrow_mut(Vec::pop);
        }
    }
    let depth = RUNNING.with_borrow_mut(|running| {
        running.push(site);
        running.len()
    });
    let _left = Left;
    if depth > DEEPEST {
        let handlers = RUNNING.with_borrow(|running| repeating(running).to_vec());
        return Err(Error::Cycle { handlers, call: String::new() });
    }
    f()
}

/// Whether a handler runs on this thread, which may look at results that are deferred.
pub(crate) fn is_handling() -> bool {
    RUNNING.with_borrow(|running| !running.is_empty())
}

/// The shortest end of a list that is also what comes before it; the whole list where nothing repeats.
fn repeating(running: &[Site]) -> &[Site] {
    let count = running.len();
    let period =
        (1..=count / 2).find(|period| running[count - period..] == running[count - 2 * period..count - period]);
    &running[count - period.unwrap_or(count)..]
}
