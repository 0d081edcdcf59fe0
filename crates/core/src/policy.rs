//! What happens when a call needs an implicit array materialized.

use tracing::subscriber::NoSubscriber;

/// What happens when a call needs an implicit array materialized, or a kernel a dense array to
/// [stand for it](crate::kernel::permit_dense).
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
    /// It is materialized silently.
    Allow,
    /// It is materialized, with one warning for each primitive and types.
    #[default]
    Warn,
    /// It is an error.
    Deny,
}

/// Warns through `tracing`, or on standard error where no subscriber listens, neither the thread's nor the program's.
pub(crate) fn warn(text: &str) {
    if tracing::dispatcher::get_default(tracing::Dispatch::is::<NoSubscriber>) {
        eprintln!("warning: {text}");
    } else {
        tracing::warn!(target: "tacit", "{text}");
    }
}
