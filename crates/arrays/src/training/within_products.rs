//! The matrices of weights whose products round.

use tacit_core::Value;

use crate::training::int8_inputs::Int8Inputs;
use crate::training::int8_training::Int8Training;

/// The matrix of what has products that round what it is multiplied with.
#[doc(hidden)]
#[must_use]
pub fn within_products(value: &Value) -> Option<&Value> {
    let inputs = value.downcast::<Int8Inputs>().map(Int8Inputs::inner);
    inputs.or_else(|| value.downcast::<Int8Training>().map(Int8Training::inner))
}
