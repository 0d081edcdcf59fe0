//! What is in force on this thread: the registry, the policy, and the fallback for kernels off the CPU.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::thread::LocalKey;

use tacit_bridge::kernel::GpuBackend;

use crate::array_type::ArrayType;
use crate::environment::Setting;
use crate::policy::DeviceFallback;
use crate::{Policy, Registry};

/// What guards keep in force, the innermost last, each with the number of its guard.
type Stack<T> = RefCell<Vec<(u64, T)>>;

thread_local! {
    static REGISTRY: Stack<Arc<Registry>> = const { RefCell::new(Vec::new()) };
    static POLICY: Stack<Policy> = const { RefCell::new(Vec::new()) };
    static TRACED_FOR: Stack<GpuBackend> = const { RefCell::new(Vec::new()) };
    static DEVICE_FALLBACK: Stack<DeviceFallback> = const { RefCell::new(Vec::new()) };
}

/// What the innermost guard keeps in force.
fn innermost<T: Clone + 'static>(stack: &'static LocalKey<Stack<T>>) -> Option<T> {
    stack.with_borrow(|stack| stack.last().map(|(_, item)| item.clone()))
}

impl Registry {
    /// The registry in force on this thread.
    #[must_use]
    pub fn current() -> Arc<Self> {
        innermost(&REGISTRY).unwrap_or_else(Self::global)
    }

    /// Makes this registry current on this thread until the guard is dropped.
    #[must_use = "the registry is current only while the guard lives"]
    pub fn scope(self: &Arc<Self>) -> RegistryGuard {
        ScopeGuard::push(&REGISTRY, Arc::clone(self))
    }
}

/// Keeps a registry current; see [`Registry::scope`].
pub type RegistryGuard = ScopeGuard<Arc<Registry>>;

/// The variable that sets the policy where no guard does: `allow`, `warn` or `deny`.
pub const POLICY_VARIABLE: &str = "TACIT_MATERIALIZE";

impl Policy {
    /// The policy in force on this thread, for types that have none of their own.
    #[must_use]
    pub fn current() -> Self {
        Self::guarded().unwrap_or_else(Self::of_process)
    }

    /// The policy in force on this thread for arrays of a type: that of the innermost guard; where there is none, the
    /// type's own; where it has none, that of the environment.
    #[must_use]
    pub fn for_type(ty: &ArrayType) -> Self {
        Self::guarded().or(ty.policy).unwrap_or_else(Self::of_process)
    }

    /// The policy of the innermost guard.
    pub(crate) fn guarded() -> Option<Self> {
        innermost(&POLICY)
    }

    /// The policy of the environment.
    pub(crate) fn of_process() -> Self {
        static DEFAULT: Setting<Policy, 3> =
            Setting::new(POLICY_VARIABLE, [("allow", Policy::Allow), ("warn", Policy::Warn), ("deny", Policy::Deny)]);
        DEFAULT.get()
    }

    /// Puts this policy in force on this thread until the guard is dropped.
    #[must_use = "the policy is in force only while the guard lives"]
    pub fn scope(self) -> PolicyGuard {
        ScopeGuard::push(&POLICY, self)
    }
}

/// Keeps a policy in force; see [`Policy::scope`].
pub type PolicyGuard = ScopeGuard<Policy>;

/// The variable that says what stands for a kernel off the CPU where no guard does: `dense` or `cpu`.
pub const DEVICE_FALLBACK_VARIABLE: &str = "TACIT_DEVICE_FALLBACK";

impl DeviceFallback {
    /// What is in force on this thread: that of the innermost guard, and where there is none that of the environment.
    #[must_use]
    pub fn current() -> Self {
        static DEFAULT: Setting<DeviceFallback, 2> =
            Setting::new(DEVICE_FALLBACK_VARIABLE, [("dense", DeviceFallback::Dense), ("cpu", DeviceFallback::Cpu)]);
        innermost(&DEVICE_FALLBACK).unwrap_or_else(|| DEFAULT.get())
    }

    /// Puts this in force on this thread until the guard is dropped.
    #[must_use = "it is in force only while the guard lives"]
    pub fn scope(self) -> DeviceFallbackGuard {
        ScopeGuard::push(&DEVICE_FALLBACK, self)
    }
}

/// Keeps a fallback in force; see [`DeviceFallback::scope`].
pub type DeviceFallbackGuard = ScopeGuard<DeviceFallback>;

/// Builds graphs as for a GPU of this backend, on this thread, until the guard is dropped; the CPU still runs them.
///
/// It shows without a GPU what one would run. Kernels that have a source for the GPU stay what they are. Other kernels are replaced
/// as they would be there: the policy is asked, and [`Counters`](crate::Counters) count them. MLX's own ops are those of the CPU.
#[must_use = "it is in force only while the guard lives"]
pub fn trace_for(backend: GpuBackend) -> TracedForGuard {
    ScopeGuard::push(&TRACED_FOR, backend)
}

/// The backend of the innermost guard.
pub(crate) fn traced_for() -> Option<GpuBackend> {
    innermost(&TRACED_FOR)
}

/// Has graphs built as for a GPU until it is dropped; see [`trace_for`].
pub type TracedForGuard = ScopeGuard<GpuBackend>;

/// Keeps something in force on this thread; dropping it ends that alone, whatever came into force since.
#[derive(Debug)]
pub struct ScopeGuard<T: 'static> {
    stack: &'static LocalKey<Stack<T>>,
    /// No other guard that is there has this number.
    number: u64,
    /// A guard belongs to the thread whose stack it is on.
    thread: PhantomData<*const ()>,
}

impl<T> ScopeGuard<T> {
    fn push(stack: &'static LocalKey<Stack<T>>, item: T) -> Self {
        let number = stack.with_borrow_mut(|stack| {
            let number = stack.last().map_or(0, |(last, _)| last + 1);
            stack.push((number, item));
            number
        });
        Self { stack, number, thread: PhantomData }
    }
}

impl<T> Drop for ScopeGuard<T> {
    fn drop(&mut self) {
        let _ = self.thread;
        // A guard in the place of another, as in `guard = policy.scope()`, is there before that one goes.
        // A thread that ends may be without its stack already.
        let _ = self.stack.try_with(|stack| stack.borrow_mut().retain(|(number, _)| *number != self.number));
    }
}
