//! The stand-ins for parameters whose activations are saved as codes for gradients.

use tacit_arrays::SavedInputs;
use tacit_arrays::format::AnyFormat;
use tacit_core::{Aval, Result, Value, in_transform};

use super::own::Parts;
use crate::filter::Role;

impl<M> Parts<M> {
    /// Whether a call saves activations in formats: only a gradient around it reads them.
    pub(super) fn saves(&self) -> bool {
        !self.saved.is_empty() && in_transform()
    }
}

/// Whether the ops of a parameter may save activations.
pub(super) fn can_save(path: &str, aval: &Aval) -> bool {
    aval.dtype.is_float() && aval.size() > 0 && Role::of_dense(path) != Role::Statistic
}

/// The value of a parameter whose ops save activations in a format; without one they end what others save.
pub(super) fn saving(value: &Value, format: Option<&AnyFormat>) -> Result<Value> {
    Ok(match format {
        Some(format) => SavedInputs::new(value, format)?.into(),
        None => SavedInputs::exact(value)?.into(),
    })
}

/// What [`saving`] was put around, where a value that leaves a call was made of parameters alone.
pub(super) fn unsaved(value: &Value) -> Value {
    value.downcast::<SavedInputs>().map_or(value, SavedInputs::inner).clone()
}
