//! Random numbers that a compiled function draws without a key, from the random state of the thread.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::slice;

use mlx_rs::random::{self, RandomState, with_random_state};
use mlx_rs::{Array, Dtype};
use tacit_bridge::{constants, depth, frontier, reached};

use super::held::may_be_key;
use crate::Result;

/// The last input of a program whose function draws random numbers: the key that they are drawn from.
#[derive(Clone)]
pub(super) struct Drawn {
    /// The key of the trace; that of another call has its shape.
    pub(super) key: Array,
    /// Whether the results depend on it.
    used: bool,
}

impl Drawn {
    /// A key for the trace. Whether it is used is known afterwards.
    pub(super) fn new() -> Result<Self> {
        Ok(Self { key: fresh(&[])?, used: true })
    }

    /// The key of the next call.
    pub(super) fn next(&self) -> Result<Array> {
        if self.used { fresh(&[]) } else { Ok(self.key.clone()) }
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
pub(crate) fn drawing<T>(key: &Array, f: impl FnOnce() -> T) -> T {
    // mlx-rs puts the state before back only where `f` returns.
    let caught = with_random_state(RandomState::from_key(key.clone()), || catch_unwind(AssertUnwindSafe(f)));
    caught.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Runs `f`, for which a key of no meaning is the random state of the thread, and tells whether it drew from that.
pub(crate) fn watched<T>(f: impl FnOnce() -> T) -> Result<(T, bool)> {
    let key = Array::from_slice(&[0_u32, 0], &[2]);
    let untouched = drawing(&key, || fresh(&[]))?;
    let (result, next) = drawing(&key, || (f(), fresh(&[])));
    // Each draw splits the key, so that the next draw takes another one.
    let far = |drawn: &Array| depth(slice::from_ref(drawn), slice::from_ref(&key));
    Ok((result, far(&next?)? != far(&untouched)?))
}

/// Keys from the random state of the thread, in an array of this shape and an axis of two for the numbers of each.
pub(crate) fn fresh(shape: &[i32]) -> Result<Array> {
    // mlx-rs hands out no key, but 64 bits that are drawn are one. MLX draws integers as floats, which have fewer than 32.
    Ok(random::randint::<_, u16>(0, 1 << 16, &[shape, &[4]].concat(), None)?.view_dtype(Dtype::Uint32)?)
}
