//! Pauses of this process, in which it is stopped or its machine sleeps: no other rank counts as late for that time.

use std::mem;
use std::time::{Duration, Instant};

/// How long whoever waits for a [`Deadline`] does not look at it, at the most.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

/// The pauses that a thread finds which looks again and again.
pub(crate) struct Pauses {
    pub(crate) looked: Instant,
    /// How late a look is, at the most, of a process that has run meanwhile.
    late: Duration,
}

impl Pauses {
    pub(crate) fn longer_than(late: Duration) -> Self {
        Self { looked: Instant::now(), late }
    }

    /// The time since the last look if it was a pause, and none otherwise.
    pub(crate) fn look(&mut self) -> Duration {
        let now = Instant::now();
        let since = now.duration_since(mem::replace(&mut self.looked, now));
        if since > self.late { since } else { Duration::ZERO }
    }
}

/// The end of a wait, of whose time pauses take nothing.
pub(crate) struct Deadline {
    until: Instant,
    pauses: Pauses,
}

impl Deadline {
    pub(crate) fn after(limit: Duration) -> Self {
        Self { until: Instant::now() + limit, pauses: Pauses::longer_than(3 * LOOK) }
    }

    /// What is left of the time.
    pub(crate) fn remaining(&mut self) -> Duration {
        self.until += self.pauses.look();
        self.until.saturating_duration_since(Instant::now())
    }

    pub(crate) fn is_over(&mut self) -> bool {
        self.remaining().is_zero()
    }

    pub(crate) fn extend(&mut self, by: Duration) {
        self.until += by;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_takes_nothing_of_a_wait() {
        let minute = Duration::from_mins(1);
        let mut deadline = Deadline::after(minute);
        for time in [&mut deadline.until, &mut deadline.pauses.looked] {
            *time = time.checked_sub(2 * minute).expect("a time");
        }
        assert!(deadline.remaining() > minute / 2);
        // Time in which it runs does.
        deadline.until = deadline.until.checked_sub(minute).expect("a time");
        assert!(deadline.is_over());
    }
}
