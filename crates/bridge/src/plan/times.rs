//! The time that plans and their stages take, counted while somebody asks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time that plans took, and that of their stages by the names of the kernels.
///
/// A plan runs on the thread that waits for it or on that of its stream; what plans of all threads take meanwhile is counted.
///
/// ```
/// use tacit_bridge::StageTimes;
///
/// let (sum, times) = StageTimes::during(|| 1 + 1);
/// assert_eq!((sum, times.plans, times.stages.len()), (2, 0, 0));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// How many plans ran to their end.
    pub plans: usize,
    /// The time of whole plans: that of their stages, and what lies between those.
    pub total: Duration,
    /// How often each kernel ran, and how long in all. Kernels that run together, a piece at a time, are one: `Pieces`.
    pub stages: BTreeMap<&'static str, (usize, Duration)>,
}

/// How many ask.
static ASKING: AtomicUsize = AtomicUsize::new(0);
/// What plans took while somebody asked, since the program began.
static TAKEN: Mutex<StageTimes> = Mutex::new(StageTimes { plans: 0, total: Duration::ZERO, stages: BTreeMap::new() });

/// Somebody asks, until it is dropped.
struct Asking;

impl Drop for Asking {
    fn drop(&mut self) {
        ASKING.fetch_sub(1, Ordering::Relaxed);
    }
}

impl StageTimes {
    /// Runs `f`, and what the plans took that ended meanwhile.
    pub fn during<R>(f: impl FnOnce() -> R) -> (R, Self) {
        let asking = Asking;
        ASKING.fetch_add(1, Ordering::Relaxed);
        let before = Self::taken();
        let result = f();
        drop(asking);
        (result, Self::taken().since(&before))
    }

    fn taken() -> Self {
        TAKEN.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn since(mut self, before: &Self) -> Self {
        self.plans -= before.plans;
        self.total = self.total.saturating_sub(before.total);
        for (name, (count, time)) in &before.stages {
            if let Some(own) = self.stages.get_mut(name) {
                *own = (own.0 - count, own.1.saturating_sub(*time));
            }
        }
        self.stages.retain(|_, (count, _)| *count > 0);
        self
    }
}

/// The times of a plan while it runs, where somebody asks.
pub(super) struct Watch {
    start: Instant,
    stages: Vec<(&'static str, Duration)>,
}

impl Watch {
    pub(super) fn begin() -> Option<Self> {
        let asked = ASKING.load(Ordering::Relaxed) > 0;
        asked.then(|| Self { start: Instant::now(), stages: Vec::new() })
    }

    pub(super) fn stage(&mut self, name: &'static str, start: Instant) {
        self.stages.push((name, start.elapsed()));
    }

    pub(super) fn end(self) {
        let total = self.start.elapsed();
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        taken.plans += 1;
        taken.total += total;
        for (name, time) in self.stages {
            let (count, sum) = taken.stages.entry(name).or_default();
            *count += 1;
            *sum += time;
        }
    }
}
