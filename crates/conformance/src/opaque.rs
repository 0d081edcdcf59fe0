//! Implicit types without handlers, which show what interception does by itself.

use mlx_rs::Array;
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value};

/// An implicit array that hides a dense one and may be materialized.
///
/// Every op on it must equal the op on the dense array, bit for bit: the same primitive is emitted again.
///
/// ```
/// use mlx_rs::Array;
/// use tacit_core::{Policy, Value, implicit};
/// use tacit_conformance::opaque::Opaque;
///
/// let _policy = Policy::Allow.scope();
/// let hidden = Value::from(Opaque::new(Array::from_slice(&[1f32, -2.0], &[2])));
/// let y = implicit(hidden, |x| x.abs())?.dense()?;
/// assert_eq!(y.as_slice::<f32>(), [1.0, 2.0]);
/// # Ok::<(), tacit_core::Error>(())
/// ```
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "testing.Opaque")]
pub struct Opaque {
    array: Array,
    #[implicit(aux)]
    aval: Aval,
}

impl Opaque {
    /// Hides `array`.
    #[must_use]
    pub fn new(array: Array) -> Self {
        Self { aval: Aval::from(&array), array }
    }
}

impl Materialize for Opaque {
    fn materialize(&self) -> Result<Value> {
        Ok(self.array.clone().into())
    }
}

/// An implicit array that declares its aval and refuses to be materialized.
///
/// Every op on it must be an error that names the op's primitive: nothing builds it silently.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "testing.Refusing")]
pub struct Refusing {
    #[implicit(aux)]
    aval: Aval,
}

impl Refusing {
    /// An array of this aval.
    #[must_use]
    pub fn new(aval: Aval) -> Self {
        Self { aval }
    }
}

impl Materialize for Refusing {
    fn materialize(&self) -> Result<Value> {
        Err(Error::refuse("it is never built"))
    }
}
