//! The number of tokens of a generation, and the time that they took.

use std::time::{Duration, Instant};

/// The number of tokens of a generation, and the time that they took.
#[derive(Clone, Copy, Debug, Default)]
pub struct GenerateStats {
    /// Tokens of the prompts, without padding.
    pub prompt_tokens: usize,
    /// From the beginning to the first token.
    pub prompt_time: Duration,
    /// Tokens that were drawn, those included that a sequence stopped at.
    pub tokens: usize,
    /// The tokens of the first step, which are among these; their time is that of the prompts.
    pub first_tokens: usize,
    /// From the first tokens to the last.
    pub time: Duration,
    /// Tokens that a draft proposed.
    pub drafted: usize,
    /// The drafted tokens that were accepted.
    pub accepted: usize,
}

impl GenerateStats {
    /// Tokens of the prompts a second; `None` before the first token.
    #[must_use]
    pub fn prompt_rate(&self) -> Option<f64> {
        rate(self.prompt_tokens, self.prompt_time)
    }

    /// Tokens a second that were drawn after the first step; `None` where it drew all of them.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        rate(self.tokens - self.first_tokens, self.time)
    }
}

fn rate(tokens: usize, time: Duration) -> Option<f64> {
    (!time.is_zero()).then(|| tokens as f64 / time.as_secs_f64())
}

/// The time of a generation, as it runs.
pub(super) struct Clock {
    begun: Instant,
    first: Option<Instant>,
}

impl Clock {
    pub(super) fn start() -> Self {
        Self { begun: Instant::now(), first: None }
    }

    /// So many tokens have been read.
    pub(super) fn read(&mut self, tokens: usize, stats: &mut GenerateStats) {
        let now = Instant::now();
        if let Some(first) = self.first {
            stats.time = now - first;
        } else {
            self.first = Some(now);
            stats.prompt_time = now - self.begun;
            stats.first_tokens = tokens;
        }
        stats.tokens += tokens;
    }
}
