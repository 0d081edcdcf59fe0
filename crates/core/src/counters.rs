//! Counts of what interception did.

use std::cell::Cell;
use std::ops::{AddAssign, Sub};

/// Counts of what interception did on one thread.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::{Counters, implicit};
///
/// let (y, counters) = Counters::during(|| implicit(Array::from_f32(1.0), |x| x.exp()));
/// y?;
/// assert_eq!(counters.materialized_bytes, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Nodes with an implicit operand.
    pub seen: u64,
    /// Nodes that a handler took, or the default handler of a type.
    pub handled: u64,
    /// Handlers that declined a call.
    pub declined: u64,
    /// Arrays that were materialized, by one layer each.
    pub materialized: u64,
    /// The bytes of the dense arrays that were built.
    pub materialized_bytes: u64,
    /// Kernels that were replaced by plain ops, on a GPU for which they have no source.
    pub decomposed: u64,
    /// Kernels that run on the CPU for the same reason, as [`DeviceFallback::Cpu`](crate::DeviceFallback::Cpu) says.
    pub offloaded: u64,
    /// The kernels of `decomposed` that have a source, which `TACIT_GPU_SOURCES=off` leaves out.
    pub switched_off: u64,
}

thread_local! {
    static TOTAL: Cell<Counters> = const {
        Cell::new(Counters {
            seen: 0,
            handled: 0,
            declined: 0,
            materialized: 0,
            materialized_bytes: 0,
            decomposed: 0,
            offloaded: 0,
            switched_off: 0,
        })
    };
}

impl Counters {
    /// The totals of this thread so far.
    #[must_use]
    pub fn total() -> Self {
        TOTAL.get()
    }

    /// Runs `f` and counts what it did on this thread.
    pub fn during<R>(f: impl FnOnce() -> R) -> (R, Self) {
        let before = Self::total();
        let result = f();
        (result, Self::total() - before)
    }

    /// The kernels that have no source for the GPU, as the end of a line; nothing where there are none.
    pub(crate) fn elsewhere(&self) -> String {
        let told = |count: u64, how: &str| if count == 0 { String::new() } else { format!(", {count} {how}") };
        told(self.decomposed, "as plain ops") + &told(self.offloaded, "on the CPU")
    }

    pub(crate) fn add(self) {
        let mut total = TOTAL.get();
        total += self;
        TOTAL.set(total);
    }

    fn zip_with(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            seen: of(self.seen, other.seen),
            handled: of(self.handled, other.handled),
            declined: of(self.declined, other.declined),
            materialized: of(self.materialized, other.materialized),
            materialized_bytes: of(self.materialized_bytes, other.materialized_bytes),
            decomposed: of(self.decomposed, other.decomposed),
            offloaded: of(self.offloaded, other.offloaded),
            switched_off: of(self.switched_off, other.switched_off),
        }
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        *self = self.zip_with(other, |a, b| a + b);
    }
}

impl Sub for Counters {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        self.zip_with(before, |a, b| a - b)
    }
}
