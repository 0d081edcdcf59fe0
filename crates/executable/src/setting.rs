//! Setting what an executable holds: parameters and resident inputs.

use mlx_rs::Array;
use tacit_core::{Result, Value};

use crate::signature::{Kind, Place};
use crate::{Executable, bytes};

impl Executable<'_> {
    /// Sets a parameter: an array, or an implicit array that stands for one.
    ///
    /// # Errors
    ///
    /// There is no such parameter, or the value is of another shape or dtype.
    pub fn set_parameter(&mut self, name: &str, value: impl Into<Value>) -> Result<()> {
        self.set(name, Kind::Parameter, value.into())
    }

    /// Sets a parameter from the bytes of its elements, row-major, in the dtype that is described and this machine's
    /// byte order.
    ///
    /// # Errors
    ///
    /// There is no such parameter, or it has another number of bytes.
    pub fn set_parameter_bytes(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.set_bytes(name, Kind::Parameter, bytes)
    }

    /// The array of a parameter or an input from the bytes of its elements, row-major, in the dtype that is described and
    /// this machine's byte order: for every kind of run.
    ///
    /// # Errors
    ///
    /// Nothing of this name is described, or it has another number of bytes.
    pub fn array_from_bytes(&self, name: &str, bytes: &[u8]) -> Result<Array> {
        let described = self.body.signature.described(self.body.signature.place(name)?);
        bytes::from_bytes(&format!("{} {name}", described.kind.words()), &described.aval, bytes)
    }

    /// Sets a resident or optional input, which stays until it is set again or an output is fed to it.
    ///
    /// # Errors
    ///
    /// There is no such input, or the value is of another shape or dtype.
    pub fn set_input(&mut self, name: &str, value: impl Into<Value>) -> Result<()> {
        self.set(name, Kind::Resident, value.into())
    }

    /// Sets a resident or optional input from the bytes of its elements, as
    /// [`array_from_bytes`](Self::array_from_bytes) takes them.
    ///
    /// # Errors
    ///
    /// There is no such input, or it has another number of bytes.
    pub fn set_input_bytes(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.set_bytes(name, Kind::Resident, bytes)
    }

    /// The current value of a resident input.
    ///
    /// # Errors
    ///
    /// There is no such input, or it was not set.
    pub fn resident(&self, name: &str) -> Result<&Value> {
        let place = self.body.signature.find(name, Kind::Resident)?;
        match place {
            Place::Input(index) if !self.unset.contains(&place) => Ok(&self.arguments.1[index]),
            _ => Err(self.body.signature.missing(place)),
        }
    }

    /// The bytes of the elements of a resident input as it is now, evaluated: row-major, in its dtype and this machine's
    /// byte order.
    ///
    /// # Errors
    ///
    /// As for [`resident`](Self::resident), or it cannot be evaluated.
    pub fn resident_bytes(&self, name: &str) -> Result<Vec<u8>> {
        bytes::to_bytes(self.resident(name)?)
    }

    fn set_bytes(&mut self, name: &str, kind: Kind, bytes: &[u8]) -> Result<()> {
        // Another kind is told before the number of bytes.
        self.body.signature.find(name, kind)?;
        let array = self.array_from_bytes(name, bytes)?;
        self.set(name, kind, array.into())
    }

    fn set(&mut self, name: &str, kind: Kind, value: Value) -> Result<()> {
        let place = self.body.signature.find(name, kind)?;
        let value = self.body.signature.described(place).fitted_value(value)?;
        match place {
            Place::Parameter(index) => self.arguments.0[index] = value,
            Place::Input(index) => self.arguments.1[index] = value,
        }
        self.unset.retain(|unset| *unset != place);
        Ok(())
    }
}
