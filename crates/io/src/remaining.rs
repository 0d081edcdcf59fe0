//! The tensors of a checkpoint while a reader puts them together.

use std::collections::BTreeSet;

use mlx_rs::{Array, Dtype};
use tacit_core::{Aval, Error, Result};

use crate::Tensors;

/// The tensors that no parameter has taken yet. What is left at the end are dense parameters.
pub(crate) struct Remaining<'t> {
    pub(crate) tensors: &'t Tensors,
    untaken: BTreeSet<&'t str>,
}

impl<'t> Remaining<'t> {
    pub(crate) fn new(tensors: &'t Tensors) -> Self {
        Self { tensors, untaken: tensors.names().collect() }
    }

    /// The names that end so and are left, without their ends.
    pub(crate) fn stems(&self, end: &str) -> Vec<&'t str> {
        self.untaken.iter().filter_map(|name| name.strip_suffix(end)).collect()
    }

    pub(crate) fn take_if(&mut self, name: &str) -> Result<Option<Array>> {
        Ok(if self.untaken.remove(name) { Some(self.tensors.get(name)?) } else { None })
    }

    /// Takes a tensor that must be there: `what` says of what it is a part.
    pub(crate) fn take(&mut self, name: &str, what: &str) -> Result<Array> {
        self.take_if(name)?.ok_or_else(|| {
            let reason = format!("it is not there, and it is a part of {what}");
            self.tensors.wrong(Some(name), reason, "fetch the file again, or convert it from its source again")
        })
    }

    /// Takes a tensor that must be there and be of one dtype.
    pub(crate) fn take_of(&mut self, name: &str, dtype: Dtype, what: &str) -> Result<Array> {
        let array = self.take(name, what)?;
        let aval = Aval::from(&array);
        if aval.dtype == dtype {
            return Ok(array);
        }
        let expected = Aval { dtype, ..aval.clone() };
        Err(self.tensors.wrong(Some(name), format!("it is {aval}, and {expected} in {what}"), OTHER))
    }

    /// Checks that nothing is left: what would be has no place, for this reason.
    pub(crate) fn none_left(&self, reason: &str) -> Result<()> {
        self.untaken.first().map_or(Ok(()), |name| Err(self.tensors.wrong(Some(name), reason, OTHER)))
    }

    /// Leaves out what a reader has taken by itself.
    pub(crate) fn without(&mut self, taken: impl Fn(&str) -> bool) {
        self.untaken.retain(|name| !taken(name));
    }

    /// An error of an array's constructor as one of the file: names it, and the tensor.
    pub(crate) fn at(&self, name: &str) -> impl FnOnce(Error) -> Error + use<'t> {
        let (tensors, name) = (self.tensors, name.to_owned());
        move |error| match error {
            Error::Invalid { message, .. } => tensors.wrong(Some(&name), message, OTHER),
            other => other,
        }
    }
}

const OTHER: &str = "the file is not of this format, or is damaged: fetch it again, or read it as what it is";
