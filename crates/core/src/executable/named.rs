//! Arrays by their names: what a function is given, and what a run returns.

use std::ops::Index;
use std::rc::Rc;

use mlx_rs::Array;

use super::signature::{Place, Signature};
use crate::Value;

/// The parameters and inputs of an executable's function, by name.
pub struct Named<'a> {
    signature: &'a Signature,
    parameters: &'a [Array],
    inputs: &'a [Array],
}

impl<'a> Named<'a> {
    pub(super) fn new(signature: &'a Signature, parameters: &'a [Array], inputs: &'a [Array]) -> Self {
        Self { signature, parameters, inputs }
    }

    /// The array of this name, if one is described.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a Array> {
        match self.signature.places.get(name)? {
            Place::Parameter(index) => self.parameters.get(*index),
            Place::Input(index) => self.inputs.get(*index),
        }
    }
}

impl Index<&str> for Named<'_> {
    type Output = Array;

    /// The array of this name.
    ///
    /// # Panics
    ///
    /// None is described; see [`get`](Named::get).
    fn index(&self, name: &str) -> &Array {
        self.get(name).unwrap_or_else(|| panic!("{} describes no `{name}`", self.signature.name))
    }
}

/// What a run returned: the outputs that are not fed back, in the order of their description.
#[derive(Clone, Debug)]
pub struct Outputs {
    names: Rc<[Rc<str>]>,
    values: Vec<Value>,
}

impl Outputs {
    pub(super) fn new(names: &Rc<[Rc<str>]>, values: Vec<Value>) -> Self {
        Self { names: Rc::clone(names), values }
    }

    /// The output of this name, if there is one that is not fed back.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(self.names.iter().position(|own| &**own == name)?)
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

impl Index<&str> for Outputs {
    type Output = Value;

    /// The output of this name.
    ///
    /// # Panics
    ///
    /// There is none; see [`get`](Outputs::get).
    fn index(&self, name: &str) -> &Value {
        self.get(name).unwrap_or_else(|| panic!("no output `{name}` was returned"))
    }
}
