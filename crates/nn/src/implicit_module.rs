//! A module that holds implicit arrays in place of dense parameters.

use mlx_rs::module::{FlattenedModuleParamMut, Module, ModuleParameters};
use mlx_rs::{Array, ops};
use tacit_core::tree::{Arguments, Leaf, Reader, Visitor};
use tacit_core::{Error, Explanation, Result, Tree, Value};

use crate::module::show;
use crate::parameters::{missing, run};
use crate::{Inputs, Parameters, check_parameters, explain_with_parameters, quantized};

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
///     Ok(if path == "weight" { Some(Nf4Array::quantize(w, 64)?.into()) } else { None })
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
    /// The rule fails, chooses nothing, or makes an array of another shape or dtype; the module is dropped then, so pass a
    /// clone where it is still needed.
    pub fn quantize(module: M, rule: impl FnMut(&str, &Array) -> Result<Option<Value>>) -> Result<Self> {
        let parameters = quantized(&module, rule)?;
        Self::new(module, parameters)
    }

    /// Puts `parameters` in place of the module's own and lets go of those.
    ///
    /// # Errors
    ///
    /// The module has no parameter of a given path, or one of another shape or dtype.
    pub fn new(module: M, parameters: Parameters) -> Result<Self> {
        check_parameters(&module, &parameters)?;
        let mut this = Self { module, parameters: Parameters::new() };
        let mut slots = this.module.parameters_mut().flatten();
        for (path, value) in parameters {
            put(&mut slots, &mut this.parameters, &path, value)?;
        }
        drop(slots);
        Ok(this)
    }

    /// Runs the module's own forward pass, intercepted.
    ///
    /// A parameter that the module assigns, such as a running statistic, keeps what it was assigned.
    ///
    /// # Errors
    ///
    /// The module fails, or as for [`tacit_core::implicit()`].
    pub fn forward<I>(&mut self, input: I) -> Result<Array>
    where
        I: Inputs,
        M: Module<I, Output = Array>,
        M::Error: Into<Error>,
    {
        let mut inputs = Vec::new();
        input.collect(&mut inputs);
        self.run_on(inputs, |module| module.forward(input))?.dense()
    }

    /// Runs any function of the module, intercepted. What it captures is walked with the graph; see
    /// [`forward`](Self::forward) for inputs with a long graph behind them.
    ///
    /// # Errors
    ///
    /// The function fails, or as for [`tacit_core::implicit()`].
    pub fn run<O: Tree, E: Into<Error>>(&mut self, f: impl FnOnce(&mut M) -> Result<O, E>) -> Result<O::With<Value>> {
        self.run_on(Vec::new(), f)
    }

    fn run_on<O: Tree, E: Into<Error>>(
        &mut self,
        inputs: Vec<Array>,
        f: impl FnOnce(&mut M) -> Result<O, E>,
    ) -> Result<O::With<Value>> {
        let (results, assigned) = run(&mut self.module, &self.parameters, inputs, f)?;
        if !assigned.is_empty() {
            let mut slots = self.module.parameters_mut().flatten();
            for (path, value) in assigned {
                put(&mut slots, &mut self.parameters, &path, value)?;
            }
        }
        Ok(results)
    }

    /// Runs a function of the module and tells what happened to each primitive.
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run).
    pub fn explain<O: Tree, E: Into<Error>>(&mut self, f: impl FnOnce(&mut M) -> Result<O, E>) -> Result<Explanation> {
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

const NODE: &str = "ImplicitModule";

impl<M: ModuleParameters> Arguments for ImplicitModule<M> {
    type Arrays = Self;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        show(&self.module, Some(&self.parameters), NODE, None, visitor);
        Ok(())
    }
}

/// The leaves are the parameters by path, the implicit ones as they are. Inside a traced function every parameter is
/// dense, so that the module itself runs there. It can be a state, and not an argument: a module cannot be made of its
/// parameters alone.
impl<M: ModuleParameters> Tree for ImplicitModule<M> {
    type With<L: Leaf> = L::Fixed<Self>;

    fn unflatten(_: &mut Reader<'_>) -> Result<Self> {
        Err(Error::invalid(
            "a module cannot be made of its parameters alone",
            "pass it as the state of `compile_with_state`, or change it in place",
        ))
    }

    fn assign(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        let Self { module, parameters } = self;
        let mut slots = module.parameters_mut().flatten();
        for path in reader.enter(NODE)?.keys() {
            put(&mut slots, parameters, path, reader.value()?)?;
        }
        Ok(())
    }
}

/// Puts `value` in place of a module's parameter.
fn put(slots: &mut FlattenedModuleParamMut<'_>, parameters: &mut Parameters, path: &str, value: Value) -> Result<()> {
    let Some(slot) = slots.get_mut(path) else { return Err(missing(path, slots.keys())) };
    match value {
        Value::Dense(array) => {
            **slot = array;
            parameters.remove(path);
        }
        implicit @ Value::Implicit(_) => {
            let aval = implicit.aval()?;
            // A single zero that is broadcast keeps shape and dtype, and nothing of the dense weight.
            let zero = ops::zeros_dtype(&[], aval.dtype)?;
            **slot = ops::broadcast_to(&zero, &aval.shape)?;
            parameters.insert(path.to_owned(), implicit);
        }
    }
    Ok(())
}
