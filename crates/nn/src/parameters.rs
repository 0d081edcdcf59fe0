//! mlx-rs modules with implicit parameters for the length of a call.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use mlx_rs::module::ModuleParameters;
use mlx_rs::{Array, ops};
use tacit_core::embedding::guarded;
use tacit_core::{Argument, Aval, Error, Explanation, Result, Tree, Value, array_id, explain, implicit_with_state};

use crate::moved::Moved;
use crate::places::Places;

/// Values for some parameters of a module, by their path as mlx-rs flattens it: `layers.0.weight`.
pub type Parameters = BTreeMap<String, Value>;

/// What a function assigned to the parameters of a module, by path.
pub(crate) type Assigned<T> = Vec<(String, T)>;

/// Runs `f` on a module some of whose parameters are replaced by `parameters`.
///
/// The module is any mlx-rs module, unmodified. It has its own parameters back afterwards, all of them where `f` fails or
/// panics. Where `f` runs through, a parameter that it assigned and that was not replaced, such as a running statistic,
/// keeps what it was assigned.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, module::Module, nn};
/// use tacit_nn::{Parameters, with_parameters};
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
/// [`implicit`](tacit_core::implicit()).
pub fn with_parameters<M: ModuleParameters, O: Tree, E: Into<Error>>(
    module: &mut M,
    parameters: &Parameters,
    f: impl FnOnce(&mut M) -> Result<O, E>,
) -> Result<O::With<Value>> {
    check_parameters(module, parameters)?;
    let places = Places::from_module(module);
    let replacements = Replacements::new(&places, parameters);
    let (results, assigned) = run(module, &replacements, Vec::new(), &mut (), |module, ()| f(module))?;
    let unlent = assigned.into_iter().filter(|(path, _)| !parameters.contains_key(path));
    let unlent = unlent.map(|(path, value)| Ok((path, value.dense()?))).collect::<Result<Vec<_>>>()?;
    if !unlent.is_empty() {
        let mut slots = module.parameters_mut().flatten();
        for (path, array) in unlent {
            slots.entry(path.into()).and_modify(|slot| **slot = array);
        }
    }
    Ok(results)
}

/// Runs `f` as [`with_parameters`] does and tells what happened; the module is left as it was.
///
/// # Errors
///
/// As for [`with_parameters`].
pub fn explain_with_parameters<M: ModuleParameters, O: Tree, E: Into<Error>>(
    module: &mut M,
    parameters: &Parameters,
    f: impl FnOnce(&mut M) -> Result<O, E>,
) -> Result<Explanation> {
    check_parameters(module, parameters)?;
    explained(module, &Replacements::new(&Places::from_module(module), parameters), f)
}

/// Tells what happened while `f` ran on a module with other parameters.
pub(crate) fn explained<M: ModuleParameters, O: Tree, E: Into<Error>>(
    module: &mut M,
    replacements: &Replacements<'_>,
    f: impl FnOnce(&mut M) -> Result<O, E>,
) -> Result<Explanation> {
    let args: Vec<&Value> = replacements.values.iter().map(|(_, value)| value).collect();
    let told = explain(args, |arrays| Ok::<_, Error>(lend(module, replacements, arrays, f)?.0));
    let paths = replacements.values.iter().map(|(number, _)| replacements.places.paths[*number].clone());
    Ok(told.map_err(|error| replacements.named(error))?.with_input_names(paths))
}

/// Checks that a module has a parameter of each path, of the value's shape and dtype.
///
/// # Errors
///
/// The module has no parameter of a path, or one of another shape or dtype.
pub fn check_parameters(module: &impl ModuleParameters, parameters: &Parameters) -> Result<()> {
    let slots = module.parameters().flatten();
    for (path, value) in parameters {
        let Some(array) = slots.get(path.as_str()) else { return Err(missing(path, slots.keys())) };
        let (expected, found) = (Aval::from(*array), value.aval()?);
        if expected != found {
            return Err(Error::invalid(
                format!("the parameter {path} is {expected} and was given {value}"),
                "give a value of the parameter's own shape and dtype",
            ));
        }
    }
    Ok(())
}

/// Checks that a step of an optimizer leaves a leaf its shape: moments of another model spread it over axes of their own.
///
/// # Errors
///
/// It is of another shape.
pub(crate) fn check_step(path: &str, stepped: &Array, before: &Array) -> Result<()> {
    if stepped.shape() == before.shape() {
        return Ok(());
    }
    let (stepped, before) = (Aval::from(stepped), Aval::from(before));
    Err(Error::invalid(
        format!("the optimizer makes {stepped} of the leaf {path}, which is {before}"),
        "restore the moments of a model of the same shapes, or begin with a new optimizer",
    ))
}

/// What stands in place of some parameters of a module.
pub(crate) struct Replacements<'p> {
    pub(crate) places: &'p Places,
    /// By their numbers among the places.
    pub(crate) values: Vec<(usize, Value)>,
    /// Parameters that are another one: each takes what that one is.
    pub(crate) ties: Vec<(usize, usize)>,
}

impl<'p> Replacements<'p> {
    fn new(places: &'p Places, parameters: &Parameters) -> Self {
        let values = parameters.iter().filter_map(|(path, value)| Some((places.find(path)?, value.clone()))).collect();
        Self { places, values, ties: Vec::new() }
    }

    /// An error with the paths of the parameters among the arguments, which are the first of them.
    fn named(&self, error: Error) -> Error {
        error.with_arguments(|argument| {
            let (number, _) = self.values.get(argument)?;
            Some(Argument::Parameter(self.places.paths[*number].clone()))
        })
    }
}

/// Runs `f` as [`with_parameters`] does, on a state that it changes; `inputs` are what it takes. The second result is what it
/// assigned to the module, by path.
pub(crate) fn run<M: ModuleParameters, S: Tree, O: Tree, E: Into<Error>>(
    module: &mut M,
    replacements: &Replacements<'_>,
    inputs: Vec<Array>,
    state: &mut S,
    f: impl FnOnce(&mut M, &mut S) -> Result<O, E>,
) -> Result<(O::With<Value>, Assigned<Value>)> {
    // An argument is where the walk of the graph ends, however long the graph before it is. What stands in a replaced
    // parameter's place meanwhile does no harm.
    let dense = replacements.places.sorted(module.parameters()).unwrap_or_default().into_iter().map(Value::from);
    let inputs = inputs.into_iter().map(Value::from);
    let args: Vec<Value> =
        replacements.values.iter().map(|(_, value)| value.clone()).chain(dense).chain(inputs).collect();
    let mut paths = Vec::new();
    let ran = implicit_with_state(state, args, |state, arrays| {
        let (results, assigned) = lend(module, replacements, arrays, |module| f(module, state))?;
        let (changed, arrays): (_, Vec<Array>) = assigned.into_iter().unzip();
        paths = changed;
        Ok::<_, Error>((results, arrays))
    });
    let ran = ran.map_err(|error| given_back(module, replacements.places, replacements.named(error)));
    let (results, assigned) = ran?;
    Ok((results, paths.into_iter().zip(assigned).collect()))
}

/// Calls `f` on a module, which keeps what `f` assigns to its parameters where that runs through, and has its own ones again where
/// it fails or panics.
pub(crate) fn kept<M, O, E>(module: &mut M, places: &Places, f: impl FnOnce(&mut M) -> Result<O, E>) -> Result<O>
where
    M: ModuleParameters,
    E: Into<Error>,
{
    let none = Replacements { places, values: Vec::new(), ties: Vec::new() };
    let mut lent = Lent::new(module, &none, Vec::new())?;
    let ran = guarded(|| f(&mut *lent.module).map_err(Into::into));
    if ran.is_ok() {
        lent.exchanged = None;
    }
    drop(lent);
    ran.map_err(|error| given_back(module, places, error))
}

/// Why a function failed, and what of the module's parameters could not be given back.
fn given_back(module: &impl ModuleParameters, places: &Places, error: Error) -> Error {
    let current = sorted(module);
    match Moved::find(current.iter().map(|(path, _)| &**path), &places.paths) {
        Some(moved) => Error::NotGivenBack { error: Box::new(error), lost: Box::new(moved.error()) },
        None => error,
    }
}

/// Calls `f` on the module with these arrays in place of parameters: the results, and what it assigned.
fn lend<M: ModuleParameters, O, E: Into<Error>>(
    module: &mut M,
    replacements: &Replacements<'_>,
    arrays: Vec<Array>,
    f: impl FnOnce(&mut M) -> Result<O, E>,
) -> Result<(O, Assigned<Array>)> {
    let mut lent = Lent::new(module, replacements, arrays)?;
    let results = f(&mut *lent.module).map_err(Into::into)?;
    Ok((results, lent.give_back()))
}

/// A module with other parameters, until it is dropped.
struct Lent<'m, M: ModuleParameters> {
    module: &'m mut M,
    places: &'m Places,
    /// Each parameter as it was, and what was in its place.
    exchanged: Option<Vec<(Array, Array)>>,
}

impl<'m, M: ModuleParameters> Lent<'m, M> {
    fn new(module: &'m mut M, replacements: &'m Replacements<'_>, arrays: Vec<Array>) -> Result<Self> {
        let places = replacements.places;
        let slots = places.sorted(module.parameters_mut()).ok_or_else(|| {
            Error::invalid(
                "the module's parameters came or went meanwhile",
                "let a module keep its parameters in a call",
            )
        })?;
        let before: Vec<Array> = slots.iter().map(|slot| (**slot).clone()).collect();
        let mut lent = before.clone();
        for ((number, _), array) in replacements.values.iter().zip(arrays) {
            lent[*number] = array;
        }
        for (tied, to) in &replacements.ties {
            lent[*tied] = lent[*to].clone();
        }
        for (slot, array) in slots.into_iter().zip(&lent) {
            *slot = array.clone();
        }
        Ok(Self { module, places, exchanged: Some(before.into_iter().zip(lent).collect()) })
    }

    /// Gives the module its own parameters back, and takes out what was assigned to them.
    fn give_back(&mut self) -> Assigned<Array> {
        let Some(exchanged) = self.exchanged.take() else { return Vec::new() };
        let mut assigned = Vec::new();
        let mut give = |path: &str, slot: &mut Array, (before, lent): (Array, Array)| {
            let now = std::mem::replace(slot, before);
            if array_id(&now) != array_id(&lent) {
                assigned.push((path.to_owned(), now));
            }
        };
        if let Some(slots) = self.places.sorted(self.module.parameters_mut()) {
            for ((slot, pair), path) in slots.into_iter().zip(exchanged).zip(&self.places.paths) {
                give(path, slot, pair);
            }
            return assigned;
        }
        // One that was not there before cannot be taken away: a zero has its place until it is given what it is.
        let mut exchanged: HashMap<&str, _> = self.places.paths.iter().map(String::as_str).zip(exchanged).collect();
        let nothing = Array::from_bool(false);
        for (path, slot) in self.module.parameters_mut().flatten() {
            let zero = || ops::zeros_dtype(slot.shape(), slot.dtype()).unwrap_or_else(|_| nothing.clone());
            let before = exchanged.remove(&*path).unwrap_or_else(|| (zero(), nothing.clone()));
            give(&path, slot, before);
        }
        assigned.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        assigned
    }
}

impl<M: ModuleParameters> Drop for Lent<'_, M> {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// The parameters of a module, sorted by their paths.
pub(crate) fn sorted(module: &impl ModuleParameters) -> Vec<(Rc<str>, &Array)> {
    let mut sorted: Vec<_> = module.parameters().flatten().into_iter().collect();
    sorted.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    sorted
}

/// The error of a path that a module does not have.
pub(crate) fn missing(path: &str, known: impl IntoIterator<Item = impl AsRef<str>>) -> Error {
    Error::invalid(format!("the module has no parameter {path}"), listed(known))
}

/// What the parameters of a module are, in words.
pub(crate) fn listed(paths: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let mut paths = paths.into_iter().peekable();
    if paths.peek().is_none() {
        "it has none at all".to_owned()
    } else {
        format!("its parameters are {}", some_of(paths))
    }
}

/// The first of some paths, and how many more there are.
pub(crate) fn some_of(paths: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    const SHOWN: usize = 16;
    let paths: Vec<_> = paths.into_iter().collect();
    let mut paths: Vec<&str> = paths.iter().map(AsRef::as_ref).collect();
    paths.sort_unstable();
    let more = paths.len().saturating_sub(SHOWN);
    paths.truncate(SHOWN);
    if more == 0 { paths.join(", ") } else { format!("{} and {more} more", paths.join(", ")) }
}

/// An error that names which of the things that rules name it is of.
pub(crate) fn of_one(what: &str, error: &Error) -> Error {
    let help = error.help().unwrap_or_else(|| "leave it out by a rule that skips it".to_owned());
    Error::invalid(format!("{what}: {}", error.clause()), help)
}
