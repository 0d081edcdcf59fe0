//! Ends a process whose engine waits for ranks that do not come.

use std::io::Write;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tacit_bridge::process::exit_at_once;
use tacit_core::{Error, Result};

use crate::pauses::{LOOK, Pauses};
use crate::watch::{Limits, Watch};

/// The exit code of a process whose group could not begin, where MLX's engine waits and cannot be interrupted: that of
/// `EX_TEMPFAIL`, since starting the ranks again may help.
pub const NOT_JOINED: i32 = 75;

/// Looks whether the engine begins in time, until it is dropped.
pub(crate) struct Guard {
    begun: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Guard {
    pub(crate) fn new(engine: String, limits: Limits, watch: Arc<OnceLock<Watch>>) -> Self {
        let (begun, begins) = mpsc::channel();
        let (mut since, mut pauses) = (Instant::now(), Pauses::longer_than(LOOK));
        let look = move || {
            while begins.recv_timeout(Duration::from_millis(20)) == Err(RecvTimeoutError::Timeout) {
                since += pauses.look();
                if let Err(error) = still_possible(&engine, since.elapsed(), limits, watch.get()) {
                    drop(writeln!(std::io::stderr(), "error: {error}"));
                    exit_at_once(NOT_JOINED);
                }
            }
        };
        // Without a thread nobody looks, and the engine begins as it would anyway.
        let thread = thread::Builder::new().name("tacit-guard".to_owned()).spawn(look).ok();
        Self { begun: Some(begun), thread }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.begun.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn still_possible(engine: &str, waited: Duration, limits: Limits, watch: Option<&Watch>) -> Result<()> {
    if let Some(watch) = watch {
        watch.check()?;
        watch.check_nobody_left(limits.silence)?;
    }
    if waited <= limits.join {
        return Ok(());
    }
    let met = if watch.is_some() { "all ranks have come, and " } else { "" };
    Err(Error::Group {
        message: format!("{met}the {engine} engine has not begun within {:.1} s", waited.as_secs_f64()),
        help: "see whether every rank was started and reaches the addresses of the others, as in `MLX_HOSTFILE`",
    })
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::watch::RankInfo;

    #[test]
    fn an_engine_that_does_not_begin_is_named_with_what_is_known() {
        let limits = Limits::default();
        let possible =
            |waited: u64, watch: Option<&Watch>| still_possible("ring", Duration::from_secs(waited), limits, watch);
        possible(60, None).expect("there is time");
        let met = Watch::at("127.0.0.1:0", 7, RankInfo { rank: 0, size: 1 }, limits).expect("nobody else comes");
        let found = [None, Some(&met)].map(|watch| possible(61, watch).expect_err("it is late").to_string());
        expect![[r#"
            the ring engine has not begun within 61.0 s
            help: see whether every rank was started and reaches the addresses of the others, as in `MLX_HOSTFILE`
            all ranks have come, and the ring engine has not begun within 61.0 s
            help: see whether every rank was started and reaches the addresses of the others, as in `MLX_HOSTFILE`"#]]
        .assert_eq(&found.join("\n"));
    }
}
