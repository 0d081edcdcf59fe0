//! The pool that all kernels share.
//!
//! `TACIT_THREADS` sets how many threads a kernel may use; unset, empty, 0 or unreadable, it is the number of cores.
//! The thread that calls a kernel works too, so a kernel on a pool of two starts at once and has one helper.

mod pool;
mod sync;

use std::{
    cell::RefCell,
    iter,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use pool::Pool;

/// The number of threads that a kernel called from here may use.
#[must_use]
pub fn count() -> usize {
    current().threads()
}

/// Runs `f` with kernels limited to `threads` threads, on a pool of their own that ends with it.
///
/// Kernels that other threads start meanwhile are not affected. For tests and measurements; programs set
/// `TACIT_THREADS`.
#[doc(hidden)]
pub fn with_count<R>(threads: usize, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<Arc<Pool>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            OVERRIDE.set(self.0.take());
        }
    }
    let _restore = Restore(OVERRIDE.replace(Some(Arc::new(Pool::new(threads)))));
    f()
}

/// Calls `task(0)` to `task(tasks - 1)`, each once, in any order and on any of at most `threads` threads of the pool.
pub(crate) fn for_each_on(threads: usize, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
    drain(threads, 0..tasks, task);
}

/// Hands each of these parts to one call of `task`, on at most `threads` threads.
pub(crate) fn for_each_part<T: Send>(threads: usize, parts: impl Iterator<Item = T>, task: &(dyn Fn(T) + Sync)) {
    let parts: Vec<T> = parts.collect();
    drain(threads, parts.into_iter(), task);
}

/// Empties the queue.
fn drain<T>(threads: usize, queue: impl ExactSizeIterator<Item = T> + Send, task: &(dyn Fn(T) + Sync)) {
    if threads <= 1 || queue.len() <= 1 {
        return queue.for_each(task);
    }
    let pool = current();
    let workers = pool.threads().min(threads).min(queue.len());
    if workers <= 1 {
        return queue.for_each(task);
    }
    let queue = Mutex::new(queue);
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    pool.run(workers - 1, &|| iter::from_fn(&next).for_each(task));
}

/// The columns of one task: four tasks for each thread, in multiples of `step`, at most `max`.
pub(crate) fn share(columns: usize, threads: usize, step: usize, max: usize) -> usize {
    columns.div_ceil(4 * threads).next_multiple_of(step).clamp(step, max)
}

thread_local! {
    static OVERRIDE: RefCell<Option<Arc<Pool>>> = const { RefCell::new(None) };
}

fn current() -> Arc<Pool> {
    static POOL: OnceLock<Arc<Pool>> = OnceLock::new();
    OVERRIDE
        .with_borrow(Option::clone)
        .unwrap_or_else(|| Arc::clone(POOL.get_or_init(|| Arc::new(Pool::new(setting())))))
}

fn setting() -> usize {
    std::env::var("TACIT_THREADS")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .filter(|&threads| threads > 0)
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}
