//! mlx-rs modules with implicit parameters.

use std::collections::BTreeMap;
use std::rc::Rc;

use mlx_rs::Array;
use mlx_rs::module::ModuleParameters;

use crate::values::Values;
use crate::{Error, Explanation, Result, Tree, Value};

/// Values for some parameters of a module, by their path as mlx-rs flattens it: `layers.0.weight`.
pub type Parameters = BTreeMap<String, Value>;

/// Runs `f` on a module some of whose parameters are replaced by `parameters`.
///
/// The module is any mlx-rs module, unmodified. It has its own parameters back afterwards, also when `f` fails or
/// panics.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, module::Module, nn};
/// use tacit_core::{Parameters, with_parameters};
///
/// let mut linear = nn::Linear::new(2, 3)?;
/// let x = Array::from_slice(&[1f32, 2.0], &[1, 2]);
/// let zeros = mlx_rs::ops::zeros::<f32>(&[3, 2])?;
/// let parameters = Parameters::from([("weight".to_owned(), zeros.into())]);
/// let y = with_parameters(&mut linear, &parameters, |linear| linear.forward(&x))?;
/// assert_eq!(y.to_string(), "f32[1,3]");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The module has no parameter of a given path, or one of another shape or dtype; otherwise as for
/// [`implicit`](crate::implicit()).
pub fn with_parameters<M, O, E>(
    module: &mut M,
    parameters: &Parameters,
    f: impl FnOnce(&mut M) -> Result<O, E>,
) -> Result<O::With<Value>>
where
    M: ModuleParameters,
    O: Tree,
    E: Into<Error>,
{
    let (paths, values) = checked(module, parameters)?;
    Values::traced(&values, |arrays| call(module, paths, arrays, f))?.into_tree()
}

/// Runs `f` as [`with_parameters`] does and tells what happened.
///
/// # Errors
///
/// As for [`with_parameters`].
pub fn explain_with_parameters<M, O, E>(
    module: &mut M,
    parameters: &Parameters,
    f: impl FnOnce(&mut M) -> Result<O, E>,
) -> Result<Explanation>
where
    M: ModuleParameters,
    O: Tree,
    E: Into<Error>,
{
    let (paths, values) = checked(module, parameters)?;
    Values::explained(&values, |arrays| call(module, paths, arrays, f))
}

/// Checks that a module has a parameter of each path, of the value's shape and dtype.
///
/// # Errors
///
/// It has not.
pub fn check_parameters(module: &impl ModuleParameters, parameters: &Parameters) -> Result<()> {
    let own = module.parameters().flatten();
    for (path, value) in parameters {
        let Some(array) = own.get(path.as_str()) else {
            let mut known: Vec<&str> = own.keys().map(|key| &**key).collect();
            known.sort_unstable();
            return Err(Error::invalid(
                format!("the module has no parameter {path}"),
                format!("its parameters are {}", known.join(", ")),
            ));
        };
        let (expected, found) = (tacit_bridge::Aval::from(*array), value.aval()?);
        if expected != found {
            return Err(Error::invalid(
                format!("the parameter {path} is {expected} and was given {value}"),
                "give a value of the parameter's own shape and dtype",
            ));
        }
    }
    Ok(())
}

fn checked(module: &impl ModuleParameters, parameters: &Parameters) -> Result<(Vec<Rc<str>>, Vec<Value>)> {
    check_parameters(module, parameters)?;
    Ok((parameters.keys().map(|path| Rc::from(path.as_str())).collect(), parameters.values().cloned().collect()))
}

fn call<M, O, E>(
    module: &mut M,
    paths: Vec<Rc<str>>,
    arrays: Vec<Array>,
    f: impl FnOnce(&mut M) -> Result<O, E>,
) -> Result<O>
where
    M: ModuleParameters,
    E: Into<Error>,
{
    let lent = Lent::new(module, paths.into_iter().zip(arrays));
    f(&mut *lent.module).map_err(Into::into)
}

/// A module with other parameters, until it is dropped.
struct Lent<'a, M: ModuleParameters> {
    module: &'a mut M,
    own: Vec<(Rc<str>, Array)>,
}

impl<'a, M: ModuleParameters> Lent<'a, M> {
    fn new(module: &'a mut M, others: impl Iterator<Item = (Rc<str>, Array)>) -> Self {
        let mut own = Vec::new();
        let mut slots = module.parameters_mut().flatten();
        for (path, other) in others {
            if let Some(slot) = slots.get_mut(&path) {
                own.push((path, std::mem::replace(*slot, other)));
            }
        }
        drop(slots);
        Self { module, own }
    }

    fn give_back(&mut self) {
        let mut slots = self.module.parameters_mut().flatten();
        for (path, array) in self.own.drain(..) {
            if let Some(slot) = slots.get_mut(&path) {
                **slot = array;
            }
        }
    }
}

impl<M: ModuleParameters> Drop for Lent<'_, M> {
    fn drop(&mut self) {
        self.give_back();
    }
}
