//! The pool that all kernels share.
//!
//! `TACIT_THREADS` sets how many threads a kernel may use, at most 1024; unset, empty, 0 or unreadable, it is the number of cores.
//! The thread that calls a kernel works too, so a kernel on a pool of two starts at once and has one helper.

mod pool;
mod sync;

use std::{
    cell::RefCell,
    iter,
    ops::Range,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use pool::Pool;

/// The number of threads that a kernel called from here may use.
#[must_use]
pub fn count() -> usize {
    current().threads()
}

/// The number of threads that `TACIT_THREADS` names; nothing where that is the number of cores.
#[must_use]
pub fn named() -> Option<usize> {
    std::env::var("TACIT_THREADS").ok().and_then(|text| number(&text))
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
pub fn for_each_on(threads: usize, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
    drain(threads, 0..tasks, task);
}

/// Hands each of these parts to one call of `task`, on at most `threads` threads.
pub(crate) fn for_each_part<T: Send>(threads: usize, parts: impl Iterator<Item = T>, task: &(dyn Fn(T) + Sync)) {
    let parts: Vec<T> = parts.collect();
    drain(threads, parts.into_iter(), task);
}

/// Hands each of these parts to one call of `task`, on all threads; of errors it is the one with the least place.
pub(crate) fn try_each_part<T: Send, P: Ord + Send, E: Send>(
    parts: impl Iterator<Item = T>,
    task: &(dyn Fn(T) -> Result<(), (P, E)> + Sync),
) -> Result<(), E> {
    let first: Mutex<Option<(P, E)>> = Mutex::new(None);
    for_each_part(usize::MAX, parts, &|part| {
        if let Err((place, error)) = task(part) {
            let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
            if first.as_ref().is_none_or(|(before, _)| *before > place) {
                *first = Some((place, error));
            }
        }
    });
    first.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), |(_, error)| Err(error))
}

/// Calls `task` with runs of 0 to `len - 1`, each number in one of them, on at most `threads` threads.
///
/// Each thread has a share of its own and goes through it in order, so that memory is read on where the run before ended. It
/// takes half of what is left of it at a time, and half of another share when its own is done: the runs are few, and the
/// last ones short.
pub(crate) fn for_each_run(threads: usize, len: usize, task: &(dyn Fn(Range<usize>) + Sync)) {
    let pool = (threads > 1 && len > 1).then(current);
    let workers = pool.as_ref().map_or(1, |pool| pool.threads().min(threads).min(len));
    let Some(pool) = pool.filter(|_| workers > 1) else { return task(0..len) };
    let shares = Mutex::new((0..workers).map(|i| i * len / workers..(i + 1) * len / workers).collect::<Vec<_>>());
    let arrived = AtomicUsize::new(0);
    pool.run(workers - 1, &|| {
        let worker = arrived.fetch_add(1, Ordering::Relaxed);
        let next = || next_run(&mut shares.lock().unwrap_or_else(PoisonError::into_inner), worker);
        iter::from_fn(next).for_each(task);
    });
}

/// Takes the next run of a share, or of what is left of another one.
fn next_run(shares: &mut [Range<usize>], own: usize) -> Option<Range<usize>> {
    if shares[own].is_empty() {
        let longest = (0..shares.len()).max_by_key(|&i| shares[i].len())?;
        let longest = &mut shares[longest];
        let middle = longest.start + longest.len() / 2;
        let half = middle..longest.end;
        longest.end = middle;
        shares[own] = half;
    }
    let share = &mut shares[own];
    let run = share.start..share.start + share.len().div_ceil(2);
    share.start = run.end;
    Some(run).filter(|run| !run.is_empty())
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

/// How many things of so many elements are a task's, which has 2^14 elements, about, unless one has more.
pub(crate) fn per_task(elements: usize) -> usize {
    ((1 << 14) / elements).max(1)
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
    named().unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Where the system grants more, it has none left for MLX and the compiler that MLX starts.
const MOST: usize = 1024;

fn number(text: &str) -> Option<usize> {
    text.trim().parse().ok().filter(|&threads: &usize| threads > 0).map(|threads| threads.min(MOST))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_text_names_a_number_of_threads_that_a_system_grants() {
        let numbers = ["3", " 7\n", "1000000"].map(number);
        assert_eq!(numbers, [Some(3), Some(7), Some(MOST)]);
        assert_eq!(["", "0", "-1", "all", "99999999999999999999"].map(number), [None; 5]);
    }

    #[test]
    fn runs_cover_each_number_once_and_follow_each_other() {
        for threads in 1..5 {
            for len in [1, 2, 3, 7, 64, 1000] {
                let runs = Mutex::new(Vec::new());
                with_count(threads, || for_each_run(threads, len, &|run| runs.lock().unwrap().push(run)));
                let mut runs = runs.into_inner().unwrap();
                runs.sort_by_key(|run| run.start);
                let ends = runs.iter().map(|run| run.end);
                let starts: Vec<usize> = runs.iter().map(|run| run.start).chain([len]).collect();
                assert_eq!(iter::once(0).chain(ends).collect::<Vec<_>>(), starts);
            }
        }
        let mut shares = vec![0..8, 8..10];
        let taken: Vec<_> = iter::from_fn(|| next_run(&mut shares, 1)).collect();
        // The end of the first share once its own is done; nothing is left.
        assert_eq!(taken[..5], [8..9, 9..10, 4..6, 6..7, 7..8]);
        assert_eq!(next_run(&mut shares, 0), None);
    }
}
