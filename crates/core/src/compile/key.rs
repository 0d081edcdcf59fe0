//! What a trace depends on, and the reason that a call gives for a new one.

use std::sync::Arc;

use mlx_rs::{Array, Stream, thread_local_default_stream};
use tacit_bridge::kernel::GpuBackend;

use crate::scoped::traced_for;
use crate::tree::TreeDef;
use crate::{Aval, DeviceFallback, Policy, Registry};

pub(super) struct Key {
    /// The opened structure of the inputs.
    pub(super) def: TreeDef,
    pub(super) avals: Vec<Aval>,
    pub(super) scope: Scope,
    device: String,
}

/// What is in force while a function is traced.
#[derive(Clone)]
pub(super) struct Scope {
    registry: Arc<Registry>,
    /// The policy of a guard; without one the types of arrays and the process say it, neither of which changes.
    guard: Option<Policy>,
    device_fallback: DeviceFallback,
    /// The GPU that the CPU stands in for.
    traced_for: Option<GpuBackend>,
    /// The stream that mlx-rs was told to use here; MLX's own default is not changed by it.
    stream: Option<Stream>,
}

impl Scope {
    pub(super) fn current() -> Self {
        Self {
            registry: Registry::current(),
            guard: Policy::guarded(),
            device_fallback: DeviceFallback::current(),
            traced_for: traced_for(),
            stream: thread_local_default_stream(),
        }
    }

    /// The policy for types that have none of their own.
    fn policy(&self) -> Policy {
        self.guard.unwrap_or_else(Policy::of_process)
    }
}

impl PartialEq for Scope {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.registry, &other.registry)
            && self.guard == other.guard
            && self.device_fallback == other.device_fallback
            && self.traced_for == other.traced_for
            && self.stream == other.stream
    }
}

impl Key {
    pub(super) fn new(def: TreeDef, inputs: &[&Array], scope: Scope) -> Self {
        let avals = inputs.iter().map(|input| Aval::from(*input)).collect();
        Self { def, avals, scope, device: device() }
    }

    /// Why a trace for `self` does not serve `next`.
    pub(super) fn reason(&self, next: &Self) -> String {
        if let Some(difference) = self.def.difference(&next.def) {
            return difference.to_string();
        }
        let differing = self.avals.iter().zip(&next.avals).position(|(a, b)| a != b);
        if let Some(leaf) = differing {
            let (a, b) = (&self.avals[leaf], &next.avals[leaf]);
            let what = match () {
                () if a.dtype != b.dtype => "dtype",
                () if a.shape.len() != b.shape.len() => "rank",
                () => "shape",
            };
            return format!("{what} of {} {a} -> {b}", self.def.paths()[leaf].shown());
        }
        if self.scope.guard != next.scope.guard {
            let [policy, other] = [&self.scope, &next.scope].map(Scope::policy);
            let says = |scope: &Scope| if scope.guard.is_some() { "a guard's" } else { "the types'" };
            return if policy == other {
                format!("policy {policy:?}, {} -> {}", says(&self.scope), says(&next.scope))
            } else {
                format!("policy {policy:?} -> {other:?}")
            };
        }
        if self.device != next.device {
            return format!("stream {} -> {}", self.device, next.device);
        }
        let [fallback, other] = [&self.scope, &next.scope].map(|scope| scope.device_fallback);
        if fallback != other {
            return format!("device fallback {fallback:?} -> {other:?}");
        }
        if self.scope.traced_for != next.scope.traced_for {
            return "another GPU is traced for".to_owned();
        }
        if self.scope != next.scope {
            return "another registry".to_owned();
        }
        "the trace was dropped".to_owned()
    }
}

fn device() -> String {
    Stream::thread_local_or_default().to_string()
}
