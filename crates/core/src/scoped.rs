//! What is in force on this thread: registry and policy.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::{Policy, Registry};

thread_local! {
    static REGISTRY: RefCell<Vec<Arc<Registry>>> = const { RefCell::new(Vec::new()) };
    static POLICY: RefCell<Vec<Policy>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn registry() -> Option<Arc<Registry>> {
    REGISTRY.with_borrow(|stack| stack.last().cloned())
}

pub(crate) fn policy() -> Option<Policy> {
    POLICY.with_borrow(|stack| stack.last().copied())
}

/// Keeps a registry current; see [`Registry::scope`].
#[derive(Debug)]
pub struct RegistryGuard(Depth);

pub(crate) fn enter_registry(registry: Arc<Registry>) -> RegistryGuard {
    REGISTRY.with_borrow_mut(|stack| RegistryGuard(Depth::push(stack, registry)))
}

impl Drop for RegistryGuard {
    fn drop(&mut self) {
        REGISTRY.with_borrow_mut(|stack| self.0.leave(stack));
    }
}

/// Keeps a policy in force; see [`Policy::scope`].
#[derive(Debug)]
pub struct PolicyGuard(Depth);

pub(crate) fn enter_policy(policy: Policy) -> PolicyGuard {
    POLICY.with_borrow_mut(|stack| PolicyGuard(Depth::push(stack, policy)))
}

impl Drop for PolicyGuard {
    fn drop(&mut self) {
        POLICY.with_borrow_mut(|stack| self.0.leave(stack));
    }
}

/// How deep a stack was before a guard; leaving it also leaves whatever was entered since.
#[derive(Debug)]
struct Depth {
    depth: usize,
    /// A guard belongs to the thread whose stack it is on.
    thread: PhantomData<*const ()>,
}

impl Depth {
    fn push<T>(stack: &mut Vec<T>, item: T) -> Self {
        stack.push(item);
        Self { depth: stack.len() - 1, thread: PhantomData }
    }

    fn leave<T>(&self, stack: &mut Vec<T>) {
        let _ = self.thread;
        stack.truncate(self.depth);
    }
}
