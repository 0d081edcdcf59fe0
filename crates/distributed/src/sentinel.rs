//! Decides whether a rank goes on waiting for the others.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tacit_bridge::process::exit_without_destructors;
use tacit_bridge::{InFlight, Op, Watcher};
use tacit_core::Error;

use crate::named::named;
use crate::watch::{Doing, Extent, Limits, Part, Watch};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How much sooner than the watch the engine may know that a rank is gone.
const SOONER: Duration = Duration::from_secs(1);

/// How much later than it the limit of a wait is found without the watch, which can tell where all ranks are.
const LATER: Duration = Duration::from_secs(2);

/// The watch of a group, and the limit of one collective's wait.
pub(crate) struct Sentinel {
    limits: Limits,
    watch: Arc<OnceLock<Watch>>,
    /// The ranks of the group, where it was split off the one that they watch.
    part: Option<Part>,
    begun: Mutex<Begun>,
}

/// The collective that this rank has begun last.
#[derive(Default)]
struct Begun {
    /// Its number among all.
    number: u64,
    /// And among those that the ranks of the group run together, which is the same on each.
    of_all: u64,
}

impl Sentinel {
    pub(crate) fn new(limits: Limits, watch: Arc<OnceLock<Watch>>, part: Option<Part>) -> Self {
        Self { limits, watch, part, begun: Mutex::default() }
    }

    fn tell(&self, watch: &Watch, waiting: &InFlight) {
        let Some(extent) = self.extent(waiting) else { return };
        let label = self.label(waiting);
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        if begun.number != waiting.number {
            *begun = Begun { number: waiting.number, of_all: watch.begin(&label, &extent) };
        }
        watch.doing(Doing { number: begun.of_all, label, extent, age: waiting.waited.as_millis() as u64 });
    }

    /// Who takes part in a collective; nobody in a split, where only neighbors wait for each other.
    fn extent(&self, of: &InFlight) -> Option<Extent> {
        Some(match (of.op, self.peer(of), &self.part) {
            (Op::Split, ..) => return None,
            (_, Some(peer), _) => Extent::Two(peer),
            (_, None, Some(part)) => Extent::Part(part.clone()),
            (_, None, None) => Extent::All,
        })
    }

    /// The rank at the other end of a message, by its number in the group that was joined.
    fn peer(&self, of: &InFlight) -> Option<usize> {
        let peer = of.peer?;
        self.part.as_ref().map_or(Some(peer), |part| part.ranks.get(peer).copied())
    }

    /// The error of a rank that is lost while this one waits, also where the watch concluded it before it heard of that.
    fn lost_in(&self, waiting: &InFlight, lost: Error) -> BoxError {
        Box::new(match lost {
            Error::PeerLost { rank, address, during: None, reason } => {
                Error::PeerLost { rank, address, during: Some(self.label(waiting)), reason }
            }
            other => other,
        })
    }

    /// What a collective is, and of which ranks where that is not all of them.
    fn label(&self, of: &InFlight) -> String {
        match &self.part {
            Some(part) => {
                let of = InFlight { peer: self.peer(of), ..of.clone() };
                format!("{of} among {}", named(&part.ranks))
            }
            None => of.to_string(),
        }
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        if let (Some(part), Some(watch)) = (&self.part, self.watch.get()) {
            watch.forget(part);
        }
    }
}

impl Watcher for Sentinel {
    fn poll(&self, waiting: &InFlight) -> Result<(), BoxError> {
        let watch = self.watch.get();
        if let Some(watch) = watch {
            self.tell(watch, waiting);
            if let Err(lost) = watch.check() {
                exit_without_destructors();
                return Err(self.lost_in(waiting, lost));
            }
        }
        let limit = match waiting.op {
            Op::Split => self.limits.join,
            _ => self.limits.wait + watch.map_or(Duration::ZERO, |_| LATER),
        };
        if waiting.waited <= limit {
            return Ok(());
        }
        exit_without_destructors();
        let seconds = waiting.waited.as_secs_f64();
        if waiting.op == Op::Split {
            return Err(Box::new(Error::Group {
                message: format!("the ranks of a split have not connected within {seconds:.1} s"),
                help: "see whether every rank reaches the addresses of the others, as in `MLX_HOSTFILE`",
            }));
        }
        Err(Box::new(Error::Group {
            message: format!(
                "{}, collective {} of this rank, has waited for {seconds:.1} s",
                self.label(waiting),
                waiting.number
            ),
            help: "see that every rank evaluates the same collectives in the same order, or raise `GroupOptions::wait`",
        }))
    }

    fn failed(&self, of: &InFlight, text: &str, later: bool) -> BoxError {
        exit_without_destructors();
        if let Some(lost) = self.watch.get().and_then(|watch| watch.why(SOONER, self.extent(of).as_ref())) {
            return self.lost_in(of, lost);
        }
        let message = text.split("\nhelp: ").next().unwrap_or(text);
        let message =
            if later { format!("an array came of a collective that failed: {message}") } else { message.to_owned() };
        let label = self.label(of);
        let message = if message.contains(&label) {
            message
        } else {
            format!("{label}, collective {} of this rank, failed: {message}", of.number)
        };
        Box::new(Error::Group {
            message,
            help: "start the ranks anew from the last checkpoint: a group that has failed is of no more use",
        })
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use mlx_rs::Dtype;
    use tacit_core::Aval;

    use super::*;

    #[test]
    fn what_ends_a_wait_says_which_collective_it_was_and_what_to_do() {
        let sentinel = Sentinel::new(Limits::default(), Arc::default(), None);
        let waits = |op: Op, seconds: u64| InFlight {
            op,
            peer: None,
            number: 3,
            overtaken: 0,
            missed: 0,
            aval: Aval::new(&[8], Dtype::Float32),
            waited: Duration::from_secs(seconds),
        };
        sentinel.poll(&waits(Op::Sum, 600)).expect("there is time");
        let words = "[ring] the connection was closed\nhelp: look at it";
        let found = [
            sentinel.poll(&waits(Op::Split, 61)).expect_err("nobody connects"),
            sentinel.poll(&waits(Op::Sum, 601)).expect_err("nobody comes"),
            sentinel.failed(&waits(Op::Sum, 1), words, false),
            sentinel.failed(&waits(Op::Sum, 1), words, true),
        ];
        expect![[r#"
            the ranks of a split have not connected within 61.0 s
            help: see whether every rank reaches the addresses of the others, as in `MLX_HOSTFILE`
            all_sum f32[8], collective 3 of this rank, has waited for 601.0 s
            help: see that every rank evaluates the same collectives in the same order, or raise `GroupOptions::wait`
            all_sum f32[8], collective 3 of this rank, failed: [ring] the connection was closed
            help: start the ranks anew from the last checkpoint: a group that has failed is of no more use
            all_sum f32[8], collective 3 of this rank, failed: an array came of a collective that failed: [ring] the connection was closed
            help: start the ranks anew from the last checkpoint: a group that has failed is of no more use"#]].assert_eq(&found.map(|error| error.to_string()).join("\n"));
    }
}
