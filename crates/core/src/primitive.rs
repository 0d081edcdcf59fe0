//! One MLX primitive, with dispatch.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use mlx_rs::Array;
use tacit_bridge::kernel::Kernel;
use tacit_bridge::typed::{self, Derivative, TypedPrimitive};
use tacit_bridge::{NameId, Param, ParamError};

use crate::{Error, Result};

/// One MLX primitive with its static parameters.
#[derive(Clone, Debug)]
pub struct Primitive(tacit_bridge::Primitive);

impl Primitive {
    pub(crate) fn new(bridge: tacit_bridge::Primitive) -> Self {
        Self(bridge)
    }

    /// The name as MLX spells it, such as `Matmul`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    pub(crate) fn name_id(&self) -> NameId {
        self.0.name_id()
    }

    /// Whether it is linear in all its operands together, such as a sum, so that it makes zero of zeros.
    #[must_use]
    pub fn is_linear(&self) -> bool {
        self.0.name_id().description().is_some_and(|description| description.derivative == Derivative::Linear)
    }

    /// How many operands of a [`checkpoint`](crate::transform::checkpoint()) are the arguments of its function, whose results are
    /// the others; nothing for any other primitive.
    #[must_use]
    pub fn checkpoint_args(&self) -> Option<usize> {
        self.0.checkpoint_args()
    }

    /// Calls the function of a checkpoint.
    ///
    /// # Errors
    ///
    /// The function fails; the primitive is no checkpoint of so many arguments.
    pub fn call_checkpointed(&self, args: &[Array]) -> Result<Vec<Array>> {
        Ok(self.0.call_checkpointed(args)?)
    }

    /// The static parameters, in the order of the table of primitives.
    ///
    /// # Errors
    ///
    /// The loaded MLX lays them out in a way that this build does not know.
    pub fn params(&self) -> Result<Vec<Param>> {
        Ok(self.0.params()?)
    }

    /// The typed view of the parameters.
    ///
    /// # Errors
    ///
    /// This is another primitive than `T`.
    pub fn view<T: TypedPrimitive>(&self) -> Result<T> {
        let description = self.0.name_id().description();
        if description.is_none_or(|description| description.name != T::NAME) {
            return Err(Error::invalid(
                format!("the primitive is {}, not {}", self.name(), T::NAME),
                "match on `Primitive::name` first",
            ));
        }
        let takes_none = description.is_some_and(|description| description.fields.is_empty());
        let params = if takes_none { Vec::new() } else { self.params()? };
        T::from_params(&params).map_err(|error| Error::Invalid { message: error.to_string(), help: None })
    }

    /// The integers in the parameter of this name: one, or as many as it has.
    pub(crate) fn integers(&self, name: &'static str) -> Result<Vec<i32>> {
        let Some(description) = self.0.name_id().description() else { return Ok(Vec::new()) };
        let invalid = |error: ParamError| Error::Invalid { message: error.to_string(), help: None };
        typed::integers(description, &self.params()?, name).map_err(invalid)
    }

    /// The kernel of this type that the primitive is, if it is one.
    #[must_use]
    pub fn kernel<K: Kernel>(&self) -> Option<&K> {
        (self.0.kernel()? as &dyn Any).downcast_ref()
    }

    /// The kernel that the primitive is, whatever its type, for another node to run.
    #[must_use]
    pub fn shared_kernel(&self) -> Option<Arc<dyn Kernel>> {
        self.0.shared_kernel()
    }

    /// Puts the primitive, with its parameters, into the graph on other dense operands.
    ///
    /// An elementwise primitive takes operands of any extents, all of one shape, with as many axes as it was recorded with: a
    /// single number is reshaped to `[1, 1, ..]` first. [`apply`](Self::apply) is the same for values that may be implicit.
    ///
    /// # Errors
    ///
    /// The operands have other shapes than the recorded ones and the primitive cannot work out its result shapes.
    pub fn emit(&self, operands: &[Array]) -> Result<Vec<Array>> {
        Ok(self.0.emit(operands)?)
    }
}

impl fmt::Display for Primitive {
    /// As in a jaxpr: `transpose[axes=(1,0)]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
