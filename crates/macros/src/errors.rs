//! The mistakes in one item, all of which are reported at once.

use syn::{Error, LifetimeParam, Result};

/// The mistakes so far.
#[derive(Default)]
pub(crate) struct Errors(pub(crate) Option<Error>);

impl Errors {
    pub(crate) fn add(&mut self, error: Error) {
        match &mut self.0 {
            Some(first) => first.combine(error),
            none => *none = Some(error),
        }
    }

    /// The result, or none and its mistake kept.
    pub(crate) fn keep<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.add(error)).ok()
    }
}

/// The mistake of a type that borrows its arrays.
pub(crate) fn borrows(what: &str, parameter: &LifetimeParam) -> Error {
    let message = format!("{what} owns its arrays: hold them by value, they are shared and cheap to clone");
    Error::new_spanned(&parameter.lifetime, message)
}
