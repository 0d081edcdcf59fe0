//! How long the watch waits, and for what.

use std::time::Duration;

use tacit_core::{Error, Result};

/// The variable that sets limits where a program does not.
const VARIABLE: &str = "TACIT_WATCH_LIMITS";

/// How long a group waits before it takes a rank for lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// For all ranks to come.
    pub(crate) join: Duration,
    /// For a beat of a rank, of which there are four in it at least.
    pub(crate) silence: Duration,
    /// For one collective to end while all ranks are alive, which is how far ranks may be apart.
    pub(crate) wait: Duration,
}

impl Default for Limits {
    /// A minute for all to come, 10 seconds of silence, 10 minutes for a collective.
    fn default() -> Self {
        let [join, silence, wait] = [60, 10, 600].map(Duration::from_secs);
        Self { join, silence, wait }
    }
}

/// The longest limit, in place of none: ten years. Times beyond it have no instant.
const LONGEST: Duration = Duration::from_hours(10 * 365 * 24);

impl Limits {
    /// These, each at most ten years.
    pub(crate) fn new(join: Duration, silence: Duration, wait: Duration) -> Self {
        let [join, silence, wait] = [join, silence, wait].map(|limit| limit.min(LONGEST));
        Self { join, silence, wait }
    }

    /// The defaults with what `TACIT_WATCH_LIMITS` says, such as `join=300 silence=30`, in seconds.
    pub(crate) fn from_environment() -> Result<Self> {
        std::env::var_os(VARIABLE).map_or_else(|| Ok(Self::default()), |text| Self::parse(&text.to_string_lossy()))
    }

    fn parse(text: &str) -> Result<Self> {
        let mut limits = Self::default();
        for word in text.split_whitespace() {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let seconds = value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            let limit = match name {
                "join" => Some(&mut limits.join),
                "silence" => Some(&mut limits.silence),
                "wait" => Some(&mut limits.wait),
                _ => None,
            };
            let (Some(limit), Some(seconds)) = (limit, seconds.filter(|seconds| !seconds.is_zero())) else {
                return Err(Error::invalid(
                    format!("{VARIABLE}={text}: {word} is no limit"),
                    "name join, silence and wait with seconds, as in `join=300 silence=30`",
                ));
            };
            *limit = seconds;
        }
        Ok(Self::new(limits.join, limits.silence, limits.wait))
    }

    /// How often a rank says that it is alive: four times a second, or more often where the silence is short.
    pub(super) fn beat(&self) -> Duration {
        (self.silence / 4).min(Duration::from_millis(250))
    }

    /// How often the watch looks around.
    pub(super) fn round(&self) -> Duration {
        (self.silence / 20).clamp(Duration::from_millis(5), Duration::from_millis(25))
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn limits_are_read_by_name_and_others_refused() {
        let limits = Limits::parse(" silence=0.5 join=3 ").expect("limits");
        let expected =
            Limits { silence: Duration::from_millis(500), join: Duration::from_secs(3), ..Limits::default() };
        assert_eq!(limits, expected);
        for text in ["join=1e19 silence=1e19 wait=1e19", "join=4e8 silence=4e8 wait=4e8"] {
            assert_eq!(Limits::parse(text).expect("limits"), Limits::new(Duration::MAX, Duration::MAX, Duration::MAX));
        }
        for text in ["silence", "silence=0", "silence=-1", "silence=nan", "silence=1e300", "patience=3"] {
            assert!(Limits::parse(text).is_err(), "{text}");
        }
        expect![[r"
            TACIT_WATCH_LIMITS=join=3 patience=3: patience=3 is no limit
            help: name join, silence and wait with seconds, as in `join=300 silence=30`"]]
        .assert_eq(&Limits::parse("join=3 patience=3").expect_err("is none").to_string());
    }
}
