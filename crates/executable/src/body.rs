//! The function of an executable, as a function of arrays in the order of their description.

use std::cell::RefCell;

use mlx_rs::Array;
use tacit_core::{Aval, Result};

use crate::Named;
use crate::extent::Extent;
use crate::signature::Signature;

/// What a user's function is to an executable.
pub(crate) type Function<'f> = dyn Fn(&Named<'_>) -> Result<Vec<Array>> + 'f;

pub(crate) struct Body<'f> {
    pub(crate) signature: Signature,
    pub(crate) function: Box<Function<'f>>,
    /// The rows that are computed, where these are not all, and what the outputs of them are.
    pub(crate) rows: RefCell<Option<(Extent, Vec<Aval>)>>,
}

impl Body<'_> {
    /// The outputs, checked against the description.
    pub(crate) fn call(&self, parameters: &[Array], inputs: &[Array]) -> Result<Vec<Array>> {
        let outputs = (self.function)(&Named::new(&self.signature, parameters, inputs))?;
        let rows = self.rows.borrow();
        self.signature.check_outputs(&outputs, rows.as_ref().map(|(_, avals)| &avals[..]))?;
        Ok(outputs)
    }

    pub(crate) fn extent(&self) -> Option<Extent> {
        self.rows.borrow().as_ref().map(|(extent, _)| *extent)
    }
}
