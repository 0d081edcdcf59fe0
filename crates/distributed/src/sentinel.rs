//! What decides whether a rank goes on waiting for the others.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tacit_bridge::process::exit_without_destructors;
use tacit_bridge::{InFlight, Op, Watcher};
use tacit_core::Error;

use crate::watch::{Doing, Extent, Limits, Watch};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How much sooner than the watch the engine may know that a rank is gone.
const SOONER: Duration = Duration::from_secs(1);

/// How much later than it the limit of a wait is found without the watch, which can tell where all ranks are.
const LATER: Duration = Duration::from_secs(2);

/// The watch of a group, and the limit of one collective's wait.
pub(crate) struct Sentinel {
    limits: Limits,
    watch: Arc<OnceLock<Watch>>,
    begun: Mutex<Begun>,
}

/// The collective that this rank has begun last.
#[derive(Default)]
struct Begun {
    /// Its number among all.
    number: u64,
    /// And among those of all ranks, which is the same on each.
    of_all: u64,
}

impl Sentinel {
    pub(crate) fn new(limits: Limits, watch: Arc<OnceLock<Watch>>) -> Self {
        Self { limits, watch, begun: Mutex::default() }
    }

    fn tell(&self, watch: &Watch, waiting: &InFlight) {
        let extent = if matches!(waiting.op, Op::Send | Op::Recv) { Extent::Two } else { Extent::All };
        let label = waiting.to_string();
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        if begun.number != waiting.number {
            *begun = Begun { number: waiting.number, of_all: watch.begin(&label, extent) };
        }
        watch.doing(Doing { number: begun.of_all, label, extent, age: waiting.waited.as_millis() as u64 });
    }
}

impl Watcher for Sentinel {
    fn poll(&self, waiting: &InFlight) -> Result<(), BoxError> {
        let watch = self.watch.get();
        if let Some(watch) = watch {
            self.tell(watch, waiting);
            if let Err(lost) = watch.check() {
                exit_without_destructors();
                return Err(Box::new(lost));
            }
        }
        if waiting.waited <= self.limits.wait + watch.map_or(Duration::ZERO, |_| LATER) {
            return Ok(());
        }
        exit_without_destructors();
        Err(Box::new(Error::Group {
            message: format!(
                "{waiting}, collective {} of this rank, has waited for {:.1} s",
                waiting.number,
                waiting.waited.as_secs_f64()
            ),
            help: "see that every rank evaluates the same collectives in the same order, or raise `GroupOptions::wait`",
        }))
    }

    fn failed(&self, of: &InFlight, text: &str, later: bool) -> BoxError {
        exit_without_destructors();
        if let Some(lost) = self.watch.get().and_then(|watch| watch.why(SOONER)) {
            return Box::new(match lost {
                Error::PeerLost { rank, address, during: None, reason } => {
                    Error::PeerLost { rank, address, during: Some(of.to_string()), reason }
                }
                other => other,
            });
        }
        let message = text.split("\nhelp: ").next().unwrap_or(text);
        let message =
            if later { format!("an array came of a collective that failed: {message}") } else { message.to_owned() };
        let message = if message.contains(&of.to_string()) {
            message
        } else {
            format!("{of}, collective {} of this rank, failed: {message}", of.number)
        };
        Box::new(Error::Group {
            message,
            help: "start the ranks anew from the last checkpoint: a group that has failed is of no more use",
        })
    }
}
