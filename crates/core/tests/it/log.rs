//! A subscriber of `tracing`.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Metadata, Subscriber};

/// Keeps the messages that Tacit logs.
#[derive(Clone)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

/// Lives beside each other one. Where there is a single subscriber, `tracing` asks the thread that comes to a message first,
/// which may have none, whether anybody listens; of two it asks both.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Log(Arc::default())));

impl Default for Log {
    fn default() -> Self {
        LazyLock::force(&SECOND);
        Self(Arc::default())
    }
}

impl Log {
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Visit for Log {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{value:?}"));
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "tacit"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn what_a_thread_without_a_subscriber_said_first_is_heard_of_others() {
    let log = Log::default();
    let say = || tracing::info!(target: "tacit", "said");
    tracing::subscriber::with_default(log.clone(), || {
        std::thread::spawn(say).join().expect("no panic");
        say();
    });
    assert_eq!(log.lines(), ["said"]);
}
