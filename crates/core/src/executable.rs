//! Functions with named parameters and inputs, held and run many times.
//!
//! An [`Executable`] is described once: its parameters, which may be implicit arrays, the inputs that each run is given,
//! the inputs that are resident, and the outputs. An output that is fed to a resident input stays on the device from run
//! to run, as a cache does. Parameters and inputs are arguments of the compiled graph, never constants of it, so setting
//! one anew costs no trace unless it is of another structure.

mod body;
mod builder;
mod bytes;
mod extent;
mod mode;
mod named;
mod pipelined;
mod signature;

pub use builder::Builder;
pub use mode::{MODE_VARIABLE, Mode};
pub use named::{Named, Outputs};
pub use pipelined::Pipelined;

use std::rc::Rc;

use body::Body;
use extent::Extent;
use mlx_rs::ops::indexing::TryIndexMutOp;
use mlx_rs::{Array, ops, transforms};
use signature::{Described, Kind, Place, Signature};
use tacit_bridge::any_tracer;

use crate::compile::{Compiled, Constants, Options, Stats, compile_with};
use crate::tree::{self, Open};
use crate::values::Values;
use crate::{Aval, Error, Result, Value, trace};

/// A function with named parameters and inputs, held and run many times.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, Dtype};
/// use tacit_core::{Aval, Executable};
///
/// let vector = Aval::new(&[2], Dtype::Float32);
/// let mut decay = Executable::builder("decay")
///     .parameter("factor", Aval::new(&[], Dtype::Float32))
///     .input("x", vector.clone())
///     .resident("sum", vector)
///     .output("sum")
///     .output("mean")
///     .feed("sum", "sum")
///     .build(|given| {
///         let sum = given["sum"].multiply(&given["factor"])?.add(&given["x"])?;
///         Ok(vec![sum.clone(), sum.mean(None)?])
///     })?;
/// decay.set_parameter("factor", Array::from_f32(0.5))?;
/// decay.set_input("sum", Array::from_slice(&[0f32, 0.0], &[2]))?;
/// let x = Array::from_slice(&[1f32, 3.0], &[2]);
/// assert_eq!(decay.run(&[("x", &x)])?["mean"].dense()?.item_exact::<f32>(), 2.0);
/// assert_eq!(decay.run(&[("x", &x)])?["mean"].dense()?.item_exact::<f32>(), 3.0);
/// # Ok(())
/// # }
/// ```
///
/// A run that fails leaves parameters and resident inputs as they were. In the modes other than [`Mode::Eager`] a run
/// only builds a graph; a kernel that fails when the graph is evaluated does so later.
pub struct Executable<'f> {
    body: Rc<Body<'f>>,
    mode: Mode,
    compiled: Compiled<'f, Arrays, Vec<Array>>,
    /// The parameters and inputs in the order of their description, as the function's arguments.
    arguments: Arguments,
    /// What must be set before a run and is not.
    unset: Vec<Place>,
    /// What stands for an argument that is not there.
    vacant: Value,
    /// What a committed run returns.
    committed: Option<Vec<Value>>,
}

type Arrays = (Vec<Array>, Vec<Array>);
type Arguments = (Vec<Value>, Vec<Value>);

impl Executable<'static> {
    /// Begins the description of an executable; messages call it `name`.
    pub fn builder(name: &str) -> Builder {
        Builder::new(name)
    }
}

impl<'f> Executable<'f> {
    fn new(body: Rc<Body<'f>>, mode: Mode, constants: Constants) -> Self {
        let Signature { name, parameters, inputs, .. } = &body.signature;
        let options = Options { name: name.clone(), constants, ..Options::default() };
        let vacant = Value::from(Array::from_bool(false));
        let resident = (0..inputs.len()).filter(|&input| inputs[input].kind == Kind::Resident).map(Place::Input);
        let called = Rc::clone(&body);
        Self {
            unset: (0..parameters.len()).map(Place::Parameter).chain(resident).collect(),
            arguments: (vec![vacant.clone(); parameters.len()], vec![vacant.clone(); inputs.len()]),
            compiled: compile_with(move |(parameters, inputs): Arrays| called.call(&parameters, inputs), options),
            committed: None,
            vacant,
            mode,
            body,
        }
    }

    /// How the function is run.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// How often the function was traced, and why; nothing is counted in other modes than [`Mode::Compiled`].
    #[must_use]
    pub fn stats(&self) -> &Stats {
        self.compiled.stats()
    }

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
        let place = self.body.signature.find(name, Kind::Parameter)?;
        let array = bytes::from_bytes(&format!("parameter {name}"), &self.body.signature.described(place).aval, bytes)?;
        self.set(name, Kind::Parameter, array.into())
    }

    /// Sets a resident input, which stays until it is set again or an output is fed to it.
    ///
    /// # Errors
    ///
    /// There is no such input, or the value is of another shape or dtype.
    pub fn set_input(&mut self, name: &str, value: impl Into<Value>) -> Result<()> {
        self.set(name, Kind::Resident, value.into())
    }

    /// What a resident input is now.
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

    fn set(&mut self, name: &str, kind: Kind, value: Value) -> Result<()> {
        let place = self.body.signature.find(name, kind)?;
        self.body.signature.described(place).check_value(&value)?;
        match place {
            Place::Parameter(index) => self.arguments.0[index] = value,
            Place::Input(index) => self.arguments.1[index] = value,
        }
        self.unset.retain(|unset| *unset != place);
        Ok(())
    }

    /// Computes only the first `actual` rows from now on: inputs whose leading extent is `upper` are given whole and cut
    /// to these, and outputs have only these. An input that is cut and fed keeps its other rows.
    ///
    /// It is for batches that are padded to a few sizes. `upper` twice ends it. The rows of a parameter are not meant,
    /// whatever its extent.
    ///
    /// # Errors
    ///
    /// No input has this leading extent, or a node of the function mixes rows; then nothing changes.
    pub fn active_extent(&mut self, actual: i32, upper: i32) -> Result<()> {
        let Signature { name, inputs, .. } = &self.body.signature;
        if actual < 1 || actual > upper {
            return Err(Error::invalid(
                format!("{actual} of {upper} rows cannot be computed"),
                "name at least one row, and no more than there are",
            ));
        }
        let extent = Extent { actual, upper };
        if !inputs.iter().any(|input| extent.is_of(&input.aval)) {
            let avals: Vec<String> = inputs.iter().map(|input| format!("{} {}", input.name, input.aval)).collect();
            return Err(Error::invalid(
                format!("no input of {name} has the leading extent {upper}"),
                format!("name the leading extent of one of {}", avals.join(", ")),
            ));
        }
        let extent = (actual < upper).then_some(extent);
        if let Some(extent) = extent {
            self.body.rehearse(extent)?;
        }
        self.body.extent.set(extent);
        Ok(())
    }

    /// Traces, compiles and evaluates a run on zeros, so that the first real one need not; nothing is fed.
    ///
    /// Resident inputs that are set are used as they are.
    ///
    /// # Errors
    ///
    /// A parameter was not set, or the function fails.
    pub fn warm_up(&mut self) -> Result<()> {
        if let Some(&parameter) = self.unset.iter().find(|unset| matches!(unset, Place::Parameter(_))) {
            return Err(self.body.signature.missing(parameter));
        }
        let Signature { inputs, given, .. } = &self.body.signature;
        let mut arguments = self.arguments.clone();
        let unset = self.unset.iter().filter_map(|unset| match unset {
            Place::Input(index) => Some(index),
            Place::Parameter(_) => None,
        });
        for &index in given.iter().chain(unset) {
            let Aval { shape, dtype } = &inputs[index].aval;
            arguments.1[index] = ops::zeros_dtype(shape, *dtype)?.into();
        }
        let own = std::mem::replace(&mut self.arguments, arguments);
        let made = self.outputs();
        self.arguments = own;
        evaluate(&made?)
    }

    /// Runs the function on inputs by name.
    ///
    /// ```no_run
    /// # fn step(decoder: &mut tacit_core::Executable<'_>, token: &mlx_rs::Array) -> tacit_core::Result<()> {
    /// let outputs = decoder.run(&[("token", token)])?;
    /// let logits = outputs["logits"].dense()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// An input is missing, unknown, or of another shape or dtype; a parameter or resident input was not set; or the
    /// function fails.
    pub fn run(&mut self, inputs: &[(&str, &Array)]) -> Result<Outputs> {
        let inputs = self.in_order(inputs)?;
        let returned = self.step(&inputs)?;
        Ok(self.named(returned))
    }

    /// Runs the function on its inputs that are not resident, in the order of their description, and puts the outputs
    /// that are not fed into `outputs`, whose memory is used again.
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run); `outputs` is then as it was.
    pub fn run_positional(&mut self, inputs: &[&Array], outputs: &mut Vec<Value>) -> Result<()> {
        let made = self.call(inputs)?;
        let fed = self.fed(&made)?;
        outputs.clear();
        self.hand_over(made, fed, outputs);
        Ok(())
    }

    /// Begins a run and its evaluation, and returns at once; [`wait`](Self::wait) gives the outputs.
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run), or a run is committed already.
    pub fn commit(&mut self, inputs: &[(&str, &Array)]) -> Result<()> {
        if self.committed.is_some() {
            return Err(Error::invalid(
                format!("a run of {} is committed already", self.body.signature.name),
                "call `wait` first, or use `run_pipelined`",
            ));
        }
        let inputs = self.in_order(inputs)?;
        self.committed = Some(self.begin(&inputs)?);
        Ok(())
    }

    /// Waits for the committed run.
    ///
    /// # Errors
    ///
    /// No run is committed, or its evaluation fails.
    pub fn wait(&mut self) -> Result<Outputs> {
        let Some(returned) = self.committed.take() else {
            return Err(Error::invalid(
                format!("no run of {} is committed", self.body.signature.name),
                "call `commit` first",
            ));
        };
        evaluate(&returned)?;
        Ok(self.named(returned))
    }

    /// Runs the function on each of `inputs`, given as for [`run_positional`](Self::run_positional): while one run is
    /// evaluated, the graph of the next is built.
    pub fn run_pipelined<I>(&mut self, inputs: I) -> Pipelined<'_, 'f, I::IntoIter>
    where
        I: IntoIterator,
        I::Item: AsRef<[Array]>,
    {
        Pipelined::new(self, inputs.into_iter())
    }

    /// The inputs of a run in the order of their description.
    fn in_order<'a>(&self, named: &[(&str, &'a Array)]) -> Result<Vec<&'a Array>> {
        let signature = &self.body.signature;
        let mut found: Vec<Option<&'a Array>> = vec![None; signature.inputs.len()];
        for &(name, array) in named {
            // What is given to a run is an input.
            let Place::Input(index) = signature.find(name, Kind::Given)? else { continue };
            if found[index].replace(array).is_some() {
                return Err(Error::invalid(format!("input {name} is given twice"), "give each input once"));
            }
        }
        let given = |&index: &usize| found[index].ok_or_else(|| signature.missing(Place::Input(index)));
        signature.given.iter().map(given).collect()
    }

    fn named(&self, returned: Vec<Value>) -> Outputs {
        Outputs::new(&self.body.signature.returned, returned)
    }

    /// Begins a run and the evaluation of everything that it makes.
    fn begin(&mut self, inputs: &[&Array]) -> Result<Vec<Value>> {
        let returned = self.step(inputs)?;
        // By now the former residents are the graph's alone, and it may write the new ones into their memory.
        transforms::async_eval(&dense_leaves(returned.iter().chain(self.fed_residents()))?)?;
        Ok(returned)
    }

    fn step(&mut self, inputs: &[&Array]) -> Result<Vec<Value>> {
        let mut returned = Vec::new();
        self.run_positional(inputs, &mut returned)?;
        Ok(returned)
    }

    /// Every output of the function on `inputs`.
    fn call(&mut self, inputs: &[&Array]) -> Result<Vec<Value>> {
        let signature = &self.body.signature;
        let feeds = signature.outputs.iter().any(|output| !output.feeds.is_empty());
        if feeds && (trace::is_recording() || any_tracer(inputs)) {
            return Err(Error::invalid(
                format!("{} is run inside a traced function, and keeps what is fed", signature.name),
                "run it outside, or make the cache an argument of the traced function",
            ));
        }
        if let Some(&unset) = self.unset.first() {
            return Err(signature.missing(unset));
        }
        if inputs.len() != signature.given.len() {
            let names: Vec<&str> = signature.given.iter().map(|&index| &*signature.inputs[index].name).collect();
            return Err(Error::invalid(
                format!("{} inputs were given, and {} takes {}", inputs.len(), signature.name, names.len()),
                format!("give these in order: {}", names.join(", ")),
            ));
        }
        for (&index, array) in signature.given.iter().zip(inputs) {
            signature.inputs[index].check(array)?;
        }
        for (&index, &array) in signature.given.iter().zip(inputs) {
            self.arguments.1[index] = array.into();
        }
        let made = self.outputs();
        // A run holds on to nothing of its caller's.
        for &index in &self.body.signature.given {
            self.arguments.1[index] = self.vacant.clone();
        }
        made
    }

    /// Every output of the function on the arguments.
    fn outputs(&mut self) -> Result<Vec<Value>> {
        let cut = self.body.extent.get().map(|extent| self.cut(extent)).transpose()?;
        let arguments = cut.as_ref().unwrap_or(&self.arguments);
        if self.mode == Mode::Compiled {
            // What was fed and is looked at by nobody would grow from run to run into one long graph.
            self.start_fed()?;
            return self.compiled.call(arguments);
        }
        let made: Vec<Value> = Values::of(arguments)?
            .run(|(parameters, inputs): Arrays| self.body.call(&parameters, inputs))?
            .into_tree()?;
        if self.mode == Mode::Eager {
            evaluate(&made)?;
        }
        Ok(made)
    }

    fn cut(&self, extent: Extent) -> Result<Arguments> {
        let (parameters, inputs) = &self.arguments;
        let cut = |(value, described): (&Value, &Described)| {
            if extent.is_of(&described.aval) { Ok(extent.rows(&value.dense()?)?.into()) } else { Ok(value.clone()) }
        };
        Ok((parameters.clone(), inputs.iter().zip(&self.body.signature.inputs).map(cut).collect::<Result<_>>()?))
    }

    /// The residents that outputs are fed to, as they are now.
    fn fed_residents(&self) -> impl Iterator<Item = &Value> {
        let fed = self.body.signature.outputs.iter().flat_map(|output| &output.feeds);
        fed.map(|&input| &self.arguments.1[input])
    }

    /// Begins the evaluation of what the latest run fed.
    fn start_fed(&self) -> Result<()> {
        let mut arrays = self.fed_residents().filter_map(Value::as_dense).peekable();
        if arrays.peek().is_some() {
            transforms::async_eval(arrays)?;
        }
        Ok(())
    }

    /// What becomes of the resident inputs where rows were cut: those that are left, behind those that were made.
    fn fed(&self, made: &[Value]) -> Result<Vec<(usize, Value)>> {
        let Some(extent) = self.body.extent.get() else { return Ok(Vec::new()) };
        let mut fed = Vec::new();
        for (output, value) in self.body.signature.outputs.iter().zip(made) {
            for &input in &output.feeds {
                let Described { aval, name, .. } = &self.body.signature.inputs[input];
                let found = value.aval()?;
                if found == *aval {
                    fed.push((input, value.clone()));
                    continue;
                }
                if found != extent.of(aval) {
                    return Err(Error::invalid(
                        format!(
                            "output {} is {found} in {} of {} rows and cannot be fed to {name}, which is {aval}",
                            output.name, extent.actual, extent.upper
                        ),
                        "let the rows of a fed output be its leading axis",
                    ));
                }
                let mut whole = self.arguments.1[input].dense()?;
                whole.try_index_mut(..extent.actual, &value.dense()?)?;
                fed.push((input, whole.into()));
            }
        }
        Ok(fed)
    }

    /// Feeds what is fed and appends the rest to `returned`. `fed` says what stands for an output in an input.
    fn hand_over(&mut self, made: Vec<Value>, fed: Vec<(usize, Value)>, returned: &mut Vec<Value>) {
        let whole = fed.is_empty();
        for (input, value) in fed {
            self.arguments.1[input] = value;
        }
        for (output, value) in self.body.signature.outputs.iter().zip(made) {
            match output.feeds.as_slice() {
                [] => returned.push(value),
                feeds if whole => {
                    for &input in feeds {
                        self.arguments.1[input] = value.clone();
                    }
                }
                _ => {}
            }
        }
    }
}

/// Evaluates the arrays of `values`, implicit ones' children included.
fn evaluate(values: &[Value]) -> Result<()> {
    Ok(transforms::eval(&dense_leaves(values)?)?)
}

fn dense_leaves<'v>(values: impl IntoIterator<Item = &'v Value>) -> Result<Vec<Array>> {
    let mut arrays = Vec::new();
    for value in values {
        match value {
            Value::Dense(array) => arrays.push(array.clone()),
            implicit @ Value::Implicit(_) => {
                arrays.extend(tree::leaves(implicit, Open::Fully)?.iter().filter_map(Value::as_dense).cloned());
            }
        }
    }
    Ok(arrays)
}
