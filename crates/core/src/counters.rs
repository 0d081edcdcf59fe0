//! How often what happened.

use std::cell::Cell;
use std::ops::{AddAssign, Sub};

/// Counts of what interception did on one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Nodes with an implicit operand.
    pub seen: u64,
    /// Nodes that a handler took.
    pub handled: u64,
    /// Handlers that declined a call.
    pub declined: u64,
    /// Arrays that were materialized, by one layer each.
    pub materialized: u64,
    /// The bytes of the dense arrays that were built.
    pub materialized_bytes: u64,
}

thread_local! {
    static TOTAL: Cell<Counters> = const {
        Cell::new(Counters { seen: 0, handled: 0, declined: 0, materialized: 0, materialized_bytes: 0 })
    };
}

impl Counters {
    /// The totals of this thread so far.
    #[must_use]
    pub fn total() -> Self {
        TOTAL.get()
    }

    /// Runs `f` and counts what it did on this thread.
    pub fn of<R>(f: impl FnOnce() -> R) -> (R, Self) {
        let before = Self::total();
        let result = f();
        (result, Self::total() - before)
    }

    pub(crate) fn add(self) {
        let mut total = TOTAL.get();
        total += self;
        TOTAL.set(total);
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.seen += other.seen;
        self.handled += other.handled;
        self.declined += other.declined;
        self.materialized += other.materialized;
        self.materialized_bytes += other.materialized_bytes;
    }
}

impl Sub for Counters {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            seen: self.seen - before.seen,
            handled: self.handled - before.handled,
            declined: self.declined - before.declined,
            materialized: self.materialized - before.materialized,
            materialized_bytes: self.materialized_bytes - before.materialized_bytes,
        }
    }
}
