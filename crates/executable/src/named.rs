//! Arrays by their names: what a function is given, and what a run returns.

use std::rc::Rc;

use mlx_rs::Array;
use tacit_core::{Result, Value};

use crate::bytes;
use crate::signature::{Place, Signature, unknown};

/// The parameters and inputs of an executable's function, by name.
pub struct Named<'a> {
    signature: &'a Signature,
    parameters: &'a [Array],
    inputs: &'a [Array],
}

impl<'a> Named<'a> {
    pub(crate) fn new(signature: &'a Signature, parameters: &'a [Array], inputs: &'a [Array]) -> Self {
        Self { signature, parameters, inputs }
    }

    /// The parameter or input of this name.
    ///
    /// # Errors
    ///
    /// None is described.
    pub fn get(&self, name: &str) -> Result<&'a Array> {
        match self.signature.place(name)? {
            Place::Parameter(index) => self.parameters.get(index),
            Place::Input(index) => self.inputs.get(index),
        }
        .ok_or_else(|| self.signature.missing(self.signature.places[name]))
    }
}

/// What a run returned: the outputs that are not fed back, in the order of their description.
#[derive(Clone, Debug)]
pub struct Outputs {
    names: Rc<[Rc<str>]>,
    values: Vec<Value>,
}

impl Outputs {
    pub(crate) fn new(names: &Rc<[Rc<str>]>, values: Vec<Value>) -> Self {
        Self { names: Rc::clone(names), values }
    }

    /// The output of this name.
    ///
    /// # Errors
    ///
    /// There is none, or it is fed back.
    pub fn get(&self, name: &str) -> Result<&Value> {
        let value = self.iter().find(|(key, _)| *key == name).map(|(_, value)| value);
        value.ok_or_else(|| unknown(format!("the run returned no {name}"), self.iter().map(|(name, _)| name)))
    }

    /// The bytes of the elements of the output of this name, evaluated: row-major, in its dtype and this machine's byte order.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get), or it cannot be evaluated.
    pub fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        bytes::to_bytes(self.get(name)?)
    }

    /// The outputs with their names.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.names.iter().map(|name| &**name).zip(&self.values)
    }

    /// The outputs.
    #[must_use]
    pub fn into_values(self) -> Vec<Value> {
        self.values
    }
}
