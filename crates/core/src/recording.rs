//! Calls of functions that users wrote, and whether one is being recorded on placeholders.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tacit_bridge::PanicError;
use tacit_bridge::mlx::{self, Refusal};

use crate::{Error, Result};

/// Calls what users wrote, a function or handlers. A panic becomes an error, as it has to where C++ calls it: so it is the
/// same error whatever a function is given to. mlx-rs panics in `item` and its like where it could return an error; such a
/// panic about a traced array becomes the error that it is.
pub(crate) fn guarded<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| {
        let panic = PanicError::from_payload(&*payload);
        let traced = mlx::refusal(&panic.0) == Refusal::Traced || is_recording() && is_display_message(&panic.0);
        Err(if traced { Error::EvalInTrace } else { Error::Function(Box::new(panic)) })
    })
}

/// Whether a panic says that something could not be printed: an array of mlx-rs's evaluates itself to be.
fn is_display_message(text: &str) -> bool {
    [
        "a Display implementation returned an error",
        "a formatting trait implementation returned an error",
        "formatter error",
    ]
    .iter()
    .any(|known| text.contains(known))
}

/// Whether a function is being recorded on placeholders on this thread.
pub(crate) fn is_recording() -> bool {
    RECORDING.get() > 0
}

thread_local! {
    static RECORDING: Cell<usize> = const { Cell::new(0) };
}

/// Says that a function is being recorded, until it is dropped.
pub(crate) struct Recording;

impl Recording {
    pub(crate) fn enter() -> Self {
        RECORDING.set(RECORDING.get() + 1);
        Self
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        RECORDING.set(RECORDING.get() - 1);
    }
}
