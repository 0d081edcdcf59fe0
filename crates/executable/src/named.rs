//! Arrays by their names: what a function is given, and what a run returns.

use std::rc::Rc;

use mlx_rs::Array;
use tacit_core::{Error, Result, Value};

use crate::signature::{Place, Signature};

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
        let found = match self.signature.places.get(name) {
            Some(Place::Parameter(index)) => self.parameters.get(*index),
            Some(Place::Input(index)) => self.inputs.get(*index),
            None => None,
        };
        found.ok_or_else(|| {
            let names = self.signature.places.keys().map(|name| &**name);
            unknown(format!("{} describes no {name}", self.signature.name), names)
        })
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
        let found = self.iter().find(|(own, _)| *own == name).map(|(_, value)| value);
        found.ok_or_else(|| unknown(format!("the run returned no {name}"), self.iter().map(|(name, _)| name)))
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

fn unknown<'n>(message: String, names: impl Iterator<Item = &'n str>) -> Error {
    let names: Vec<&str> = names.collect();
    let help =
        if names.is_empty() { "describe it first".to_owned() } else { format!("name one of {}", names.join(", ")) };
    Error::invalid(message, help)
}
