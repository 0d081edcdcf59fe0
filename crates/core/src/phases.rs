//! How the time of calls is spent.

use std::cell::Cell;
use std::ops::{AddAssign, Sub};
use std::time::Duration;

/// The time of calls and evaluations by phase, on the thread that makes them.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::compile::Phases;
/// use tacit_core::{compile, tree};
///
/// let mut square = compile(|x: Array| x.square());
/// let x = Array::from_f32(3.0);
/// let (y, spent) = Phases::during(|| {
///     let y = square.call(&x)?;
///     tree::eval(&y)?;
///     Ok::<_, tacit_core::Error>(y)
/// });
/// assert_eq!(y?.dense()?.item_exact::<f32>(), 9.0);
/// // The first call traces.
/// assert!(spent.build.is_zero() && !spent.trace.is_zero() && !spent.compute().is_zero());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    /// Traces: the function itself, dispatch, passes, and what MLX makes of the graph. The first evaluation of a trace may
    /// run a compiler as well, which is part of `encode`.
    pub trace: Duration,
    /// Calls that needed no trace: finding the one to replay, and building its graph on the arguments.
    pub build: Duration,
    /// Handing nodes to the device. MLX does that on the calling thread, while the device computes those before.
    pub encode: Duration,
    /// Waiting for what the device has not computed by then.
    pub wait: Duration,
}

thread_local! {
    static TOTAL: Cell<Phases> = const {
        Cell::new(Phases { trace: Duration::ZERO, build: Duration::ZERO, encode: Duration::ZERO, wait: Duration::ZERO })
    };
}

impl Phases {
    /// Runs `f`, and what its compiled calls and evaluations of trees took on this thread.
    pub fn during<R>(f: impl FnOnce() -> R) -> (R, Self) {
        let before = Self::total();
        let result = f();
        (result, Self::total() - before)
    }

    /// From the first node that was handed over to the last result: the device computes within it.
    #[must_use]
    pub fn compute(&self) -> Duration {
        self.encode + self.wait
    }

    /// What was counted on this thread so far.
    pub(crate) fn total() -> Self {
        TOTAL.get()
    }

    pub(crate) fn add(self) {
        self.add_to(Self::total());
    }

    /// The total is this much more than `before`.
    pub(crate) fn add_to(self, mut before: Self) {
        before += self;
        TOTAL.set(before);
    }
}

impl AddAssign for Phases {
    fn add_assign(&mut self, other: Self) {
        self.trace += other.trace;
        self.build += other.build;
        self.encode += other.encode;
        self.wait += other.wait;
    }
}

impl Sub for Phases {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            trace: self.trace.saturating_sub(before.trace),
            build: self.build.saturating_sub(before.build),
            encode: self.encode.saturating_sub(before.encode),
            wait: self.wait.saturating_sub(before.wait),
        }
    }
}
