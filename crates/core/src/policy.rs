//! What happens when a call needs an implicit array materialized.

use tracing::subscriber::NoSubscriber;

/// What happens when a call needs to materialize an implicit array, or a kernel needs a dense array in its place.
///
/// What is said nearest the call holds: the innermost guard of [`scope`](Self::scope), then the type's own
/// `#[implicit(materialize = "deny")]`, then the environment, and [`Warn`](Self::Warn) where nobody says anything. So a type
/// may be stricter or laxer than the program, and who calls has the last word. What stands for a kernel has no type: there the
/// guard and the environment are asked.
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
    /// It is materialized, with one warning for each primitive and types.
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
        eprintln!("warning: {text}");
    } else {
        tracing::warn!(target: "tacit", "{text}");
    }
}
