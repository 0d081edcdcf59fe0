//! What happens when a call needs an implicit array materialized.

use std::io::{self, Write};

use tracing::subscriber::NoSubscriber;

/// What happens when a call needs to materialize an implicit array, or a kernel needs a dense array in its place.
///
/// The policy nearest the call holds: that of the innermost guard of [`scope`](Self::scope), then the type's own, such as
/// `#[implicit(materialize = "deny")]`, then that of the environment (`TACIT_MATERIALIZE`). Without any of them it is
/// [`Warn`](Self::Warn). So a type may be stricter or laxer than the program, and the caller has the last word. The plain ops
/// that stand for a kernel have no type: there only the guard and the environment count.
///
/// ```
/// use tacit_core::Policy;
///
/// let guard = Policy::Deny.scope();
/// assert_eq!(Policy::current(), Policy::Deny);
/// drop(guard);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// The array is materialized without a message.
    Allow,
    /// The array is materialized, with one warning for each primitive and the types of its operands.
    ///
    /// A dense array that code asks for itself, as by [`Value::dense`](crate::Value::dense), is built without a warning.
    #[default]
    Warn,
    /// Materialization is an error.
    Deny,
}

/// What stands for a kernel on a GPU for which it has no source.
///
/// The innermost guard of [`scope`](Self::scope) says it, then the environment (`TACIT_DEVICE_FALLBACK=dense` or `cpu`). On a
/// CPU it says nothing.
///
/// ```
/// use tacit_core::DeviceFallback;
///
/// let guard = DeviceFallback::Cpu.scope();
/// assert_eq!(DeviceFallback::current(), DeviceFallback::Cpu);
/// drop(guard);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum DeviceFallback {
    /// Plain MLX ops on the GPU. Where they build the dense array of codes, the [`Policy`] is asked.
    #[default]
    Dense,
    /// The kernel itself, on the CPU, from the codes: nothing dense is built, and the GPU waits for it.
    Cpu,
}

/// Warns through `tracing`, or on standard error where no subscriber listens, neither the thread's nor the program's.
pub(crate) fn warn(text: &str) {
    if tracing::dispatcher::get_default(tracing::Dispatch::is::<NoSubscriber>) {
        // Who closed the standard error does not read it.
        drop(writeln!(io::stderr(), "warning: {text}"));
    } else {
        tracing::warn!(target: "tacit", "{text}");
    }
}
