//! What is in force on this thread: registry and policy.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::Arc;

use crate::{Policy, Registry};

thread_local! {
    static REGISTRY: RefCell<Vec<Arc<Registry>>> = const { RefCell::new(Vec::new()) };
    static POLICY: Cell<Option<Policy>> = const { Cell::new(None) };
}

pub(crate) fn registry() -> Option<Arc<Registry>> {
    REGISTRY.with_borrow(|stack| stack.last().cloned())
}

pub(crate) fn policy() -> Option<Policy> {
    POLICY.get()
}

/// Keeps a registry current; see [`Registry::scope`].
#[derive(Debug)]
pub struct RegistryGuard {
    /// A guard belongs to the thread whose stack it is on.
    thread: PhantomData<*const ()>,
}

pub(crate) fn enter_registry(registry: Arc<Registry>) -> RegistryGuard {
    REGISTRY.with_borrow_mut(|stack| stack.push(registry));
    RegistryGuard { thread: PhantomData }
}

impl Drop for RegistryGuard {
    fn drop(&mut self) {
        let _ = self.thread;
        REGISTRY.with_borrow_mut(Vec::pop);
    }
}

/// Keeps a policy in force; see [`Policy::scope`].
#[derive(Debug)]
pub struct PolicyGuard {
    before: Option<Policy>,
    /// A guard belongs to the thread whose policy it changed.
    thread: PhantomData<*const ()>,
}

pub(crate) fn enter_policy(policy: Policy) -> PolicyGuard {
    PolicyGuard { before: POLICY.replace(Some(policy)), thread: PhantomData }
}

impl Drop for PolicyGuard {
    fn drop(&mut self) {
        let _ = self.thread;
        POLICY.set(self.before);
    }
}
