//! The function of an executable, as a function of arrays in the order of their description.

use std::cell::Cell;

use mlx_rs::Array;
use tacit_bridge::Scope;

use super::Named;
use super::extent::{Extent, leading};
use super::signature::Signature;
use crate::{Aval, Result, trace};

/// What a user's function is to an executable.
pub(super) type Function<'f> = dyn Fn(&Named<'_>) -> Result<Vec<Array>> + 'f;

pub(super) struct Body<'f> {
    pub(super) signature: Signature,
    pub(super) function: Box<Function<'f>>,
    /// The rows that are computed, where these are not all.
    pub(super) extent: Cell<Option<Extent>>,
}

impl Body<'_> {
    /// The outputs, or their leading rows of inputs that are cut.
    pub(super) fn call(&self, parameters: &[Array], inputs: Vec<Array>) -> Result<Vec<Array>> {
        match self.extent.get() {
            None => self.whole(parameters, &inputs),
            Some(extent) => self.cut(extent, parameters, inputs),
        }
    }

    fn whole(&self, parameters: &[Array], inputs: &[Array]) -> Result<Vec<Array>> {
        let outputs = (self.function)(&Named::new(&self.signature, parameters, inputs))?;
        self.signature.check_outputs(&outputs)?;
        Ok(outputs)
    }

    fn cut(&self, extent: Extent, parameters: &[Array], inputs: Vec<Array>) -> Result<Vec<Array>> {
        let described: Vec<&Aval> = self.signature.inputs.iter().map(|input| &input.aval).collect();
        leading(extent, &described, inputs, parameters, |inputs| self.whole(parameters, inputs))
    }

    /// Follows the rows through the function without computing anything.
    pub(super) fn rehearse(&self, extent: Extent) -> Result<()> {
        let Signature { parameters, inputs, .. } = &self.signature;
        let scope = Scope::new()?;
        let whole = parameters.iter().map(|own| Ok(scope.placeholder(&own.aval)?));
        let parameters = whole.collect::<Result<Vec<Array>>>()?;
        let cut = inputs.iter().map(|own| Ok(scope.placeholder(&extent.of(&own.aval))?));
        let inputs = cut.collect::<Result<Vec<Array>>>()?;
        trace::run(&[], |_| self.cut(extent, &parameters, inputs))?;
        Ok(())
    }
}
