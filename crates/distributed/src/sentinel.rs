//! What decides whether a rank goes on waiting for the others.

use std::time::Duration;

use tacit_bridge::{InFlight, Watcher};
use tacit_core::Error;

/// The limit of one collective's wait.
pub(crate) struct Sentinel {
    pub(crate) wait: Duration,
}

impl Watcher for Sentinel {
    fn poll(&self, waiting: &InFlight) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if waiting.waited <= self.wait {
            return Ok(());
        }
        Err(Box::new(Error::Group {
            message: format!(
                "{waiting}, collective {} of this rank, has waited for {} s",
                waiting.number,
                self.wait.as_secs_f64()
            ),
            help: "see that every rank evaluates the same collectives in the same order, or raise `Options::wait`",
        }))
    }

    fn failed(&self, of: &InFlight, text: &str, later: bool) -> Box<dyn std::error::Error + Send + Sync> {
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
