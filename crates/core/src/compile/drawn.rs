//! Random numbers that a compiled function draws without a key, from the random state of the thread.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use mlx_rs::random::{self, RandomState, with_random_state};
use mlx_rs::{Array, Dtype};
use tacit_bridge::{constants, frontier, reached};

use super::held::may_be_key;
use crate::Result;

/// The last input of a program whose function draws random numbers: the key that they are drawn from.
#[derive(Clone)]
pub(super) struct Drawn {
    /// The key of the trace; that of another call has its shape.
    key: Array,
    /// Whether the results depend on it.
    used: bool,
}

impl Drawn {
    /// A key for the trace. Whether it is used is known afterwards.
    pub(super) fn new() -> Result<Self> {
        Ok(Self { key: fresh()?, used: true })
    }

    /// The key of the trace.
    pub(super) fn first(&self) -> &Array {
        &self.key
    }

    /// The key of the next call.
    pub(super) fn next(&self) -> Result<Array> {
        if self.used { fresh() } else { Ok(self.key.clone()) }
    }

    /// Notes whether what was recorded depends on the tracer of the key.
    pub(super) fn see(&mut self, tracer: &Array, outputs: &[Array]) -> Result<()> {
        self.used = !reached(outputs, std::slice::from_ref(tracer))?.is_empty();
        Ok(())
    }
}

/// Whether a function that was recorded on `inputs` may have drawn from the random state of the thread: it holds what was
/// computed of an array that a key may be.
pub(super) fn may_draw(inputs: &[Array], outputs: &[Array]) -> Result<bool> {
    let sources = constants(&frontier(outputs, inputs)?, &[])?;
    Ok(sources.iter().any(|source| may_be_key(&source.into())))
}

/// Runs `f`, for which the random state of the thread is this key.
pub(super) fn drawing<T>(key: &Array, f: impl FnOnce() -> T) -> T {
    // mlx-rs puts the state before back only where `f` returns.
    let caught = with_random_state(RandomState::from_key(key.clone()), || catch_unwind(AssertUnwindSafe(f)));
    caught.unwrap_or_else(|panic| resume_unwind(panic))
}

/// A key from the random state of the thread.
fn fresh() -> Result<Array> {
    // mlx-rs hands out no key, but 64 bits that are drawn are one. MLX draws integers as floats, which have fewer than 32.
    Ok(random::randint::<_, u16>(0, 1 << 16, &[4], None)?.view_dtype(Dtype::Uint32)?)
}
