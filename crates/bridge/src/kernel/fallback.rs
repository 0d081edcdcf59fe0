//! Why plain ops stand for a kernel.

use std::fmt;

use crate::error::BoxError;
use crate::ffi::FallbackReason;

/// Why plain ops stand for a kernel in a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fallback {
    /// The device has no source of the kernel.
    Device,
    /// A gradient is taken, and the kernel has no vjp of its own for it.
    Vjp,
    /// A directional derivative is taken, and the kernel has no jvp of its own for it.
    Jvp,
    /// It is mapped over inputs for which it has no vmap of its own.
    Vmap {
        /// Along the mapped axis.
        examples: usize,
    },
}

impl Fallback {
    pub(super) fn from_reason(reason: FallbackReason) -> Result<Self, BoxError> {
        Ok(match reason.kind {
            0 => Self::Device,
            1 => Self::Vjp,
            2 => Self::Jvp,
            3 => Self::Vmap { examples: reason.examples },
            other => {
                return Err(format!("a kernel is replaced for a reason {other} that this build does not know").into());
            }
        })
    }
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device => f.write_str("off the CPU"),
            Self::Vjp => f.write_str("for a gradient"),
            Self::Jvp => f.write_str("for a derivative"),
            Self::Vmap { examples: 1 } => f.write_str("mapped over 1 example"),
            Self::Vmap { examples } => write!(f, "mapped over {examples} examples"),
        }
    }
}
