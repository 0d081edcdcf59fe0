//! Tasks that wait until the traces of this thread have ended.

use std::cell::RefCell;

use crate::Result;

type Task = Box<dyn FnOnce() -> Result<()>>;

thread_local! {
    /// The tasks of each trace that goes on, the outermost first.
    static WAITING: RefCell<Vec<Vec<Task>>> = const { RefCell::new(Vec::new()) };
}

/// Runs a task once no placeholder is left in the graph that is built: at once where no trace goes on, otherwise where the
/// outermost ends well.
pub(crate) fn once_plain(task: impl FnOnce() -> Result<()> + 'static) -> Result<()> {
    let waits = WAITING.with_borrow(|waiting| !waiting.is_empty());
    if !waits {
        return task();
    }
    WAITING.with_borrow_mut(|waiting| waiting.last_mut().map(|tasks| tasks.push(Box::new(task))));
    Ok(())
}

/// A trace that goes on, until it is dropped.
pub(super) struct Tracing(());

impl Tracing {
    pub(super) fn enter() -> Self {
        WAITING.with_borrow_mut(|waiting| waiting.push(Vec::new()));
        Self(())
    }

    /// Ends the trace well.
    pub(super) fn end(self) -> Result<()> {
        let tasks = WAITING.with_borrow_mut(|waiting| {
            let tasks = waiting.last_mut().map(std::mem::take).unwrap_or_default();
            match waiting.iter_mut().rev().nth(1) {
                Some(outer) => {
                    outer.extend(tasks);
                    Vec::new()
                }
                None => tasks,
            }
        });
        drop(self);
        tasks.into_iter().try_for_each(|task| task())
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        // What a failed trace leaves is dropped outside of the borrow: it may hold what users wrote.
        let left = WAITING.with_borrow_mut(Vec::pop);
        drop(left);
    }
}
