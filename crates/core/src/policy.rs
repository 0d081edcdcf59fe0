//! What happens when a call needs an implicit array materialized.

use std::sync::LazyLock;

use tracing::subscriber::NoSubscriber;

use crate::environment::from_environment;
use crate::scoped::{self, PolicyGuard};

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

/// The variable that sets the policy where no guard does: `allow`, `warn` or `deny`.
pub const POLICY_VARIABLE: &str = "TACIT_MATERIALIZE";

impl Policy {
    /// The policy in force on this thread.
    #[must_use]
    pub fn current() -> Self {
        static DEFAULT: LazyLock<Policy> = LazyLock::new(|| {
            let words = [("allow", Policy::Allow), ("warn", Policy::Warn), ("deny", Policy::Deny)];
            from_environment(POLICY_VARIABLE, words)
        });
        scoped::policy().unwrap_or(*DEFAULT)
    }

    /// Puts this policy in force on this thread until the guard is dropped.
    #[must_use = "the policy is in force only while the guard lives"]
    pub fn scope(self) -> PolicyGuard {
        scoped::enter_policy(self)
    }
}

/// Warns through `tracing`, or on standard error where no subscriber listens, neither the thread's nor the program's.
pub(crate) fn warn(text: &str) {
    if tracing::dispatcher::get_default(tracing::Dispatch::is::<NoSubscriber>) {
        eprintln!("warning: {text}");
    } else {
        tracing::warn!(target: "tacit", "{text}");
    }
}
