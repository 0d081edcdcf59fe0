//! Internals for the crates that run functions as this one does; not part of the public face.

pub use crate::bits::same_bits;
pub use crate::environment::Setting;
use crate::recording::{self, Recording};
pub use crate::state::given_back;
use crate::{Primitive, Result, state};

/// Calls `f` on placeholders: what it asks of their data is [`EvalInTrace`](crate::Error::EvalInTrace).
pub fn record<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    let _recording = Recording::enter();
    recording::guarded(f)
}

/// Calls a user's function where nothing is traced. A panic of it is the same error as in a trace.
pub fn guarded<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    recording::guarded(f)
}

/// Whether a function is being recorded on placeholders on this thread.
#[must_use]
pub fn is_recording() -> bool {
    recording::is_recording()
}

/// Whether a function of a state runs on this thread: a state that one makes of another is within a step of that.
#[must_use]
pub fn in_step() -> bool {
    state::in_step()
}

/// A recorded primitive.
#[must_use]
pub fn primitive(recorded: tacit_bridge::Primitive) -> Primitive {
    Primitive::new(recorded)
}
