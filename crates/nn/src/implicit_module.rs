//! A module that holds implicit arrays in place of dense parameters.

use mlx_rs::module::{Module, ModuleParameters};
use mlx_rs::{Array, ops};
use tacit_core::{Arrays, Error, Explanation, Parameters, Result, Value, explain_with_parameters, with_parameters};

use crate::quantized;

/// An mlx-rs module that holds implicit arrays in place of some of its dense parameters.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{nn, ops};
/// use tacit_arrays::Nf4Array;
/// use tacit_nn::ImplicitModule;
///
/// let linear = nn::Linear::new(64, 64)?;
/// let mut linear = ImplicitModule::quantize(linear, |path, w| {
///     (path == "weight").then(|| Ok(Nf4Array::quantize(w, 64)?.into()))
/// })?;
/// assert_eq!(linear.nbytes(), 64 * 64 / 2 + 64 * 4 + 64 * 4);
/// let y = linear.forward(&ops::ones::<f32>(&[1, 64])?)?;
/// assert_eq!(y.shape(), [1, 64]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ImplicitModule<M> {
    module: M,
    parameters: Parameters,
}

impl<M: ModuleParameters> ImplicitModule<M> {
    /// Makes implicit arrays of the parameters that `rule` chooses and lets go of the dense ones.
    ///
    /// # Errors
    ///
    /// The rule fails, or makes an array of another shape or dtype; the module is dropped then, so pass a clone where
    /// it is still needed.
    pub fn quantize(module: M, rule: impl FnMut(&str, &Array) -> Option<Result<Value>>) -> Result<Self> {
        let parameters = quantized(&module, rule)?;
        Self::new(module, parameters)
    }

    /// Puts `parameters` in place of the module's own and lets go of those.
    ///
    /// # Errors
    ///
    /// The module has no parameter of a given path, or one of another shape or dtype.
    pub fn new(mut module: M, parameters: Parameters) -> Result<Self> {
        let mut slots = module.parameters_mut().flatten();
        for (path, value) in &parameters {
            let Some(slot) = slots.get_mut(path.as_str()) else {
                return Err(Error::invalid(
                    format!("the module has no parameter {path}"),
                    "use the paths of `module.parameters().flatten()`",
                ));
            };
            let aval = value.aval()?;
            if aval != tacit_core::Aval::from(&**slot) {
                return Err(Error::invalid(
                    format!("the parameter {path} is {} and was given {value}", tacit_core::Aval::from(&**slot)),
                    "give a value of the parameter's own shape and dtype",
                ));
            }
            // A single zero that is broadcast keeps shape and dtype, and nothing of the dense weight.
            let zero = ops::zeros_dtype(&[], aval.dtype)?;
            **slot = ops::broadcast_to(&zero, &aval.shape)?;
        }
        drop(slots);
        Ok(Self { module, parameters })
    }

    /// Runs the module's own forward pass, intercepted.
    ///
    /// # Errors
    ///
    /// The module fails, or as for [`tacit_core::implicit()`].
    pub fn forward<I>(&mut self, input: I) -> Result<Array>
    where
        M: Module<I, Output = Array>,
        M::Error: Into<Error>,
    {
        self.run(|module| module.forward(input))?.dense()
    }

    /// Runs any function of the module, intercepted.
    ///
    /// # Errors
    ///
    /// The function fails, or as for [`tacit_core::implicit()`].
    pub fn run<O: Arrays, E: Into<Error>>(&mut self, f: impl FnOnce(&mut M) -> Result<O, E>) -> Result<O::Values> {
        with_parameters(&mut self.module, &self.parameters, f)
    }

    /// Runs a function of the module and tells what happened to each primitive.
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run).
    pub fn explain<O: Arrays, E: Into<Error>>(
        &mut self,
        f: impl FnOnce(&mut M) -> Result<O, E>,
    ) -> Result<Explanation> {
        explain_with_parameters(&mut self.module, &self.parameters, f)
    }

    /// The implicit parameters by path.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The bytes of all parameters, implicit and dense.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        let implicit: usize = self.parameters.values().map(Value::nbytes).sum();
        let dense: usize = self
            .module
            .parameters()
            .flatten()
            .iter()
            .filter(|(path, _)| !self.parameters.contains_key(&***path))
            .map(|(_, array)| array.nbytes())
            .sum();
        implicit + dense
    }
}
