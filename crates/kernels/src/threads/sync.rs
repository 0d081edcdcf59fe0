//! The synchronization that the pool uses: the standard library's, or loom's, which tries every order in which threads
//! may meet.

#[cfg(loom)]
pub(super) use loom::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
};
#[cfg(not(loom))]
pub(super) use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle, Thread},
};
#[cfg(loom)]
pub(super) use thread::Thread;

use std::time::{Duration, Instant};

/// How long a helper looks out for the next job, and a caller for the end of its helpers, before it sleeps.
pub(super) const WATCH: Duration = Duration::from_micros(100);

/// Looks between two offers of the core to others.
const LOOKS: usize = 64;

/// A moment from which a watch is kept. A model knows no time: its watches are never over.
pub(super) struct Watch(Instant);

impl Watch {
    pub(super) fn begin() -> Self {
        Self(Instant::now())
    }

    pub(super) fn is_over(&self) -> bool {
        !cfg!(loom) && self.0.elapsed() >= WATCH
    }
}

/// Returns when it holds, or soon; in a model after one look.
pub(super) fn look_out(holds: impl Fn() -> bool) {
    let watch = Watch::begin();
    while !watch.is_over() {
        for _ in 0..LOOKS {
            if holds() || cfg!(loom) {
                return;
            }
            std::hint::spin_loop();
        }
        thread::yield_now();
    }
}

/// Says that a part of the memory of one thread is used by another, which a model compares with its end.
#[derive(Default)]
pub(super) struct Used {
    #[cfg(loom)]
    cell: loom::cell::UnsafeCell<()>,
}

// SAFETY: a model reports each use that is not ordered with the end.
#[cfg(loom)]
unsafe impl Sync for Used {}

#[allow(clippy::unused_self, reason = "it is nothing outside of a model")]
impl Used {
    /// Somebody uses it.
    pub(super) fn here(&self) {
        #[cfg(loom)]
        self.cell.with(|_| ());
    }

    /// Nobody may use it any more.
    pub(super) fn ends(&self) {
        #[cfg(loom)]
        self.cell.with_mut(|_| ());
    }
}

/// Threads as loom has them, but for the waking of one.
///
/// Loom orders what a thread did before `unpark` with all that the other does from then on, whether that one sleeps or not,
/// and lets nobody in before it: no model would miss an ordering of the count that a caller looks at instead. The standard
/// library orders it with the return of `park`, and so does this.
#[cfg(loom)]
pub(super) mod thread {
    use loom::sync::{Arc, Condvar, Mutex};
    pub(in super::super) use loom::thread::{Builder, yield_now};

    loom::thread_local! {
        static OWN: Thread = Thread(Arc::new(Token { given: Mutex::new(false), changed: Condvar::new() }));
    }

    struct Token {
        given: Mutex<bool>,
        changed: Condvar,
    }

    #[derive(Clone)]
    pub(in super::super) struct Thread(Arc<Token>);

    pub(in super::super) fn current() -> Thread {
        OWN.with(Clone::clone)
    }

    pub(in super::super) fn park() {
        let Thread(token) = current();
        let mut given = token.given.lock().expect("nobody panics with it");
        while !*given {
            given = token.changed.wait(given).expect("nobody panics with it");
        }
        *given = false;
    }

    impl Thread {
        pub(in super::super) fn unpark(&self) {
            *self.0.given.lock().expect("nobody panics with it") = true;
            self.0.changed.notify_one();
        }
    }
}
