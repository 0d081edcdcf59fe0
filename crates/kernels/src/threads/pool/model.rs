//! The protocol of the pool, in every order in which its threads may meet: `RUSTFLAGS="--cfg loom" cargo test --lib model`.
//!
//! A model fails where a helper uses what its caller no longer keeps, where what helpers wrote is not seen by the caller, where
//! a task is lost or run twice, where more helpers come than were asked for, where one that is free does not come, and where
//! nobody goes on. Weakened orderings and steps that are left out were seen to make them fail.

use std::sync::atomic::AtomicUsize as Tally;

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::Pool;

/// Tries all orders with at most so many switches that no wait asks for.
fn model(switches: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(f);
}

/// Memory that one task writes and the caller reads.
struct Cell(UnsafeCell<usize>);

// SAFETY: a model reports accesses that are not ordered.
unsafe impl Sync for Cell {}

/// Runs so many tasks, each of which writes memory of its own, and looks at what they wrote.
fn tasks(pool: &Pool, helpers: usize, count: usize) {
    let cells: Vec<Cell> = (0..count).map(|_| Cell(UnsafeCell::new(0))).collect();
    let next = AtomicUsize::new(0);
    // No thread of a model looks at it, so it is no place to switch.
    let calls = Tally::new(0);
    pool.run(helpers, &|| {
        calls.fetch_add(1, Ordering::Relaxed);
        loop {
            let task = next.fetch_add(1, Ordering::Relaxed);
            let Some(Cell(cell)) = cells.get(task) else { return };
            // SAFETY: each task is one thread's, and the model reports it if not.
            cell.with_mut(|value| unsafe { *value += 1 });
        }
    });
    for Cell(cell) in &cells {
        // SAFETY: all tasks are done, and the model reports it if not.
        assert_eq!(cell.with(|value| unsafe { *value }), 1);
    }
    assert!((1..=1 + helpers).contains(&calls.into_inner()));
}

/// A job in which nobody goes on before so many helpers are at it.
fn together(pool: &Pool, helpers: usize) {
    let (here, changed) = (Mutex::new(0), Condvar::new());
    pool.run(helpers, &|| {
        let mut here = here.lock().expect("nobody panics with it");
        *here += 1;
        changed.notify_all();
        while *here <= helpers {
            here = changed.wait(here).expect("nobody panics with it");
        }
    });
    assert_eq!(*here.lock().expect("nobody panics with it"), 1 + helpers);
}

/// Looks at the board when all jobs are done.
fn all_done(pool: &Pool) {
    let state = pool.board.state();
    assert!(state.jobs.is_empty() && state.asleep <= pool.helpers.len());
    assert_eq!(pool.board.seats.load(Ordering::Relaxed), 0);
}

#[test]
fn a_job_is_done_when_its_caller_goes_on() {
    model(3, || {
        let pool = Pool::new(2);
        tasks(&pool, 1, 2);
        all_done(&pool);
    });
}

#[test]
fn jobs_that_follow_each_other_are_met_asleep_and_awake() {
    model(2, || {
        let pool = Pool::new(2);
        tasks(&pool, 1, 1);
        tasks(&pool, 1, 2);
        all_done(&pool);
    });
}

#[test]
fn helpers_come_when_they_are_free() {
    model(2, || {
        let pool = Pool::new(2);
        together(&pool, 1);
        together(&pool, 1);
        all_done(&pool);
    });
    model(2, || {
        let pool = Pool::new(3);
        together(&pool, 2);
        all_done(&pool);
    });
}

#[test]
fn two_helpers_share_a_job() {
    model(2, || {
        let pool = Pool::new(3);
        tasks(&pool, 2, 2);
        all_done(&pool);
    });
}

#[test]
fn one_helper_is_asked_where_there_are_two() {
    model(2, || {
        let pool = Pool::new(3);
        tasks(&pool, 1, 2);
        together(&pool, 1);
        all_done(&pool);
    });
}

#[test]
fn two_callers_share_a_helper() {
    model(2, || {
        let pool = Arc::new(Pool::new(2));
        let other = Arc::clone(&pool);
        let caller = thread::spawn(move || tasks(&other, 1, 1));
        tasks(&pool, 1, 1);
        caller.join().expect("its job ends");
        all_done(&pool);
    });
}

#[test]
fn a_task_may_open_a_job() {
    model(2, || {
        let pool = Pool::new(2);
        let outer = AtomicUsize::new(0);
        pool.run(1, &|| {
            if outer.fetch_add(1, Ordering::Relaxed) == 0 {
                tasks(&pool, 1, 1);
            }
        });
        all_done(&pool);
    });
}
