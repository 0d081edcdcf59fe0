//! One array that a compiled function holds and that is not an argument.

use std::fmt;

use mlx_rs::Dtype;
use tacit_bridge::Aval;

/// An array that a compiled function holds and that is not one of its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedArray {
    /// The array as the function uses it.
    pub aval: Aval,
    /// What it is computed from, where it has no data of its own yet: before the function or in it.
    pub sources: Vec<Aval>,
}

impl fmt::Display for CapturedArray {
    /// As `f32[2,3]`, or `f32[2,256] computed from u32[2]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.aval)?;
        for (i, source) in self.sources.iter().enumerate() {
            write!(f, "{}{source}", if i == 0 { " computed from " } else { " and " })?;
        }
        Ok(())
    }
}

/// Whether an array may be a key, or the two that one was split into, of which the random state is one.
pub(crate) fn may_be_key(aval: &Aval) -> bool {
    aval.dtype == Dtype::Uint32 && matches!(aval.shape[..], [2] | [2, 2])
}
