//! Helpers that wait for work beside whoever calls them.
//!
//! A job is open as long as its caller works at it; helpers that are free join it, and a caller waits for those that did and
//! for no others. So a job never waits for a helper that is busy, asleep or on its way, a task may open a job of its own, and
//! several threads may have jobs at once. A helper that has done its part looks out for the next job for a moment before it
//! sleeps, if the last one came as soon: kernels of a step follow each other in less time than it takes to wake a thread.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::PoisonError,
};

use super::sync::{
    Arc, AtomicUsize, Condvar, JoinHandle, Mutex, MutexGuard, Ordering, Thread, Used, Watch, look_out, thread,
};

/// Threads that help each other.
pub(super) struct Pool {
    board: Arc<Board>,
    helpers: Vec<JoinHandle<()>>,
}

/// Where jobs are offered.
struct Board {
    /// The seats of all open jobs, for helpers that look out.
    seats: AtomicUsize,
    state: Mutex<State>,
    changed: Condvar,
    /// Whether every thread of the pool can have a core, so that none waits for one that looks out.
    roomy: bool,
}

struct State {
    jobs: Vec<Job>,
    asleep: usize,
    over: bool,
}

/// Work that is open, by the address of what its caller keeps of it.
struct Job {
    seats: usize,
    held: *const Held<'static>,
}

// SAFETY: what is held is shared by reference only, its caller keeps it until the job is off the board and nobody is at it,
// and all of it is `Sync`.
unsafe impl Send for Job {}

/// What the caller of a job keeps while helpers may use it.
struct Held<'a> {
    work: &'a (dyn Fn() + Sync),
    /// The helpers that are at it.
    helping: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    caller: Thread,
    used: Used,
}

impl Pool {
    /// A pool of so many threads with the one that calls, or of as many as the system grants.
    pub(super) fn new(threads: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let board = Arc::new(Board {
            seats: AtomicUsize::new(0),
            state: Mutex::new(State { jobs: Vec::new(), asleep: 0, over: false }),
            changed: Condvar::new(),
            roomy: threads <= cores,
        });
        let helper = |i| {
            let board = Arc::clone(&board);
            thread::Builder::new().name(format!("tacit-kernel-{i}")).spawn(move || board.help()).ok()
        };
        let helpers = (1..threads).map_while(helper).collect();
        Self { board, helpers }
    }

    /// With the one that calls.
    pub(super) fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `work` here and at the same time on at most so many helpers, and returns when all calls have.
    pub(super) fn run(&self, helpers: usize, work: &(dyn Fn() + Sync)) {
        let (helping, panic) = (AtomicUsize::new(0), Mutex::new(None));
        let held = Held { work, helping, panic, caller: thread::current(), used: Used::default() };
        let open = Open { board: &self.board, held: &held };
        open.offer(helpers);
        work();
        drop(open);
        held.used.ends();
        if let Some(panic) = held.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.board.state().over = true;
        self.board.changed.notify_all();
        for helper in self.helpers.drain(..) {
            // Panics of tasks are their callers'.
            let _ = helper.join();
        }
    }
}

/// A job that is on the board until this is dropped, by a panic of the caller's own part too.
struct Open<'a> {
    board: &'a Board,
    held: &'a Held<'a>,
}

impl Open<'_> {
    fn address(&self) -> *const Held<'static> {
        std::ptr::from_ref(self.held).cast()
    }

    fn offer(&self, seats: usize) {
        let mut state = self.board.state();
        state.jobs.push(Job { seats, held: self.address() });
        self.board.seats.fetch_add(seats, Ordering::Relaxed);
        let asleep = state.asleep;
        drop(state);
        if asleep > seats {
            (0..seats).for_each(|_| self.board.changed.notify_one());
        } else if asleep > 0 {
            self.board.changed.notify_all();
        }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let address = self.address();
        {
            let mut state = self.board.state();
            if let Some(at) = state.jobs.iter().position(|job| std::ptr::eq(job.held, address)) {
                self.board.seats.fetch_sub(state.jobs.swap_remove(at).seats, Ordering::Relaxed);
            }
        }
        let done = || self.held.helping.load(Ordering::Acquire) == 0;
        look_out(done);
        while !done() {
            thread::park();
        }
    }
}

impl Board {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of a helper.
    fn help(&self) {
        let mut soon = false;
        loop {
            let free = Watch::begin();
            if soon {
                look_out(|| self.seats.load(Ordering::Relaxed) > 0);
            }
            let mut state = self.state();
            if !state.over && state.jobs.iter().all(|job| job.seats == 0) {
                state.asleep += 1;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.asleep -= 1;
            }
            if state.over {
                return;
            }
            soon = self.roomy && !free.is_over();
            let Some(job) = state.jobs.iter_mut().find(|job| job.seats > 0) else { continue };
            job.seats -= 1;
            self.seats.fetch_sub(1, Ordering::Relaxed);
            // SAFETY: the job is on the board, so its caller keeps what it holds until the job is off and the count, which is
            // raised while the board is locked, is back at 0.
            let held = unsafe { &*job.held };
            held.helping.fetch_add(1, Ordering::Relaxed);
            drop(state);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(held.work)) {
                held.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
            // What is held may be gone as soon as the count says that nobody is at it.
            let caller = held.caller.clone();
            held.used.here();
            if held.helping.fetch_sub(1, Ordering::Release) == 1 {
                caller.unpark();
            }
        }
    }
}

#[cfg(all(test, loom))]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        sync::atomic::{AtomicUsize, Ordering},
        thread,
        time::Duration,
    };

    use super::Pool;
    use crate::threads::sync::WATCH;

    /// Runs a job of so many tasks, each of which runs a job of its own where there is depth left.
    fn count(pool: &Pool, tasks: usize, depth: usize, done: &AtomicUsize) {
        let next = AtomicUsize::new(0);
        pool.run(2, &|| {
            while next.fetch_add(1, Ordering::Relaxed) < tasks {
                done.fetch_add(1, Ordering::Relaxed);
                if depth > 0 {
                    count(pool, tasks, depth - 1, done);
                }
            }
        });
    }

    #[test]
    fn jobs_within_jobs_on_several_threads_end() {
        let pool = Pool::new(3);
        thread::scope(|scope| {
            for caller in 0..4 {
                let pool = &pool;
                scope.spawn(move || {
                    for round in 0..if cfg!(miri) { 2 } else { 300 } {
                        let done = AtomicUsize::new(0);
                        count(pool, 4, 2, &done);
                        assert_eq!(done.load(Ordering::Relaxed), 4 + 16 + 64);
                        // Helpers are met asleep, on their way to sleep, and looking out.
                        if (round + caller) % 10 == 0 {
                            thread::sleep(2 * WATCH);
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn every_seat_can_be_taken() {
        let pool = Pool::new(3);
        assert_eq!(pool.threads(), 3);
        let here = AtomicUsize::new(0);
        // Nobody returns before all three are here.
        pool.run(2, &|| {
            here.fetch_add(1, Ordering::Relaxed);
            while here.load(Ordering::Relaxed) < 3 {
                thread::yield_now();
            }
        });
        assert_eq!(here.into_inner(), 3);
    }

    #[test]
    fn a_panic_on_any_thread_is_the_callers_and_the_pool_goes_on() {
        let pool = Pool::new(2);
        for on_helper in [true, false] {
            let caller = thread::current().id();
            let met = AtomicUsize::new(0);
            let run = || {
                pool.run(1, &|| {
                    met.fetch_add(1, Ordering::Relaxed);
                    while met.load(Ordering::Relaxed) < 2 {
                        thread::yield_now();
                    }
                    assert!((thread::current().id() == caller) == on_helper, "as it was told");
                    thread::sleep(Duration::from_millis(1));
                });
            };
            let payload = catch_unwind(AssertUnwindSafe(run)).expect_err("it panics");
            assert_eq!(payload.downcast_ref::<&str>(), Some(&"as it was told"));
            let done = AtomicUsize::new(0);
            count(&pool, 8, 0, &done);
            assert_eq!(done.into_inner(), 8);
        }
    }

    #[test]
    fn a_pool_of_one_runs_all_here() {
        let pool = Pool::new(1);
        let done = AtomicUsize::new(0);
        count(&pool, 5, 0, &done);
        assert_eq!((pool.threads(), done.into_inner()), (1, 5));
    }
}
