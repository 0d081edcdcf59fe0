//! One type for all formats.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use super::declaration::Quantizer;

/// Any format, as an array type or a rule holds it: cloned, compared, hashed and stored by its text.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use tacit_arrays::format::{AnyFormat, Nf4};
///
/// let format = AnyFormat::from(Nf4 { block: 64, double: false });
/// assert_eq!(format, "nf4:64".parse()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct AnyFormat(Arc<dyn Quantizer>);

impl<Q: Quantizer + 'static> From<Q> for AnyFormat {
    fn from(format: Q) -> Self {
        Self(Arc::new(format))
    }
}

impl From<&Self> for AnyFormat {
    fn from(format: &Self) -> Self {
        format.clone()
    }
}

impl Deref for AnyFormat {
    type Target = dyn Quantizer;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Display for AnyFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for AnyFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PartialEq for AnyFormat {
    fn eq(&self, other: &Self) -> bool {
        // Most are clones of one, and to write the text takes long.
        Arc::ptr_eq(&self.0, &other.0) || *self.0 == *other.0
    }
}

impl Eq for AnyFormat {}

impl Hash for AnyFormat {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
