//! The carry of a loop: the values that go from step to step.

use mlx_rs::Array;

use super::structure::Structure;
use crate::tree::Arguments;
use crate::values::Values;
use crate::{Error, Result, Value};

pub(super) struct Carry {
    pub(super) now: Values,
    first: Structure,
}

impl Carry {
    /// The carry that a loop begins with.
    pub(super) fn new(init: &impl Arguments) -> Result<Self> {
        let now = Values::from_arguments(init)?;
        let (_, first) = Structure::from_values(&now.def, now.values.clone())?;
        Ok(Self { now, first })
    }

    /// Takes the carry that a step returned, and gives its arrays.
    pub(super) fn advance(&mut self, result: Values) -> Result<Vec<Array>> {
        let (arrays, structure) = Structure::from_values(&result.def, result.values.clone())?;
        if let Some(change) = self.first.change(&structure) {
            let help = if self.now.values.iter().any(Value::is_implicit) {
                "return the carry as it came; an implicit array that the body computes anew is dense: begin with its `dense`"
            } else {
                "return the carry with the structure, shapes and dtypes that it came with, as by `as_dtype`"
            };
            return Err(Error::invalid(
                format!("the body changes the carry from {} to {}{}", change.from, change.to, change.place),
                help,
            ));
        }
        self.now = result;
        Ok(arrays)
    }
}
