//! The executable itself: what it holds, and a run of it.

use std::rc::Rc;

use mlx_rs::{Array, ops};
use tacit_bridge::any_tracer;
use tacit_core::compile::{CompileOptions, CompileStats, Compiled, Constants, compile_with};
use tacit_core::tree::{self, Open};
use tacit_core::{Aval, Error, Result, Value, embedding, transform};

use crate::body::Body;
use crate::extent::Extent;
use crate::rehearsal::rehearse;
use crate::signature::{Described, Kind, Place, Signature};
use crate::{Mode, Outputs, bytes};

/// A function with named parameters and inputs, which is prepared once and run many times.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, Dtype};
/// use tacit_core::Aval;
/// use tacit_executable::Executable;
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
///         let sum = given.get("sum")?.multiply(given.get("factor")?)?.add(given.get("x")?)?;
///         Ok(vec![sum.clone(), sum.mean(None)?])
///     })?;
/// decay.set_parameter("factor", Array::from_f32(0.5))?;
/// decay.set_input("sum", Array::from_slice(&[0f32, 0.0], &[2]))?;
/// let x = Array::from_slice(&[1f32, 3.0], &[2]);
/// assert_eq!(decay.run(&[("x", &x)])?.get("mean")?.dense()?.item_exact::<f32>(), 2.0);
/// assert_eq!(decay.run(&[("x", &x)])?.get("mean")?.dense()?.item_exact::<f32>(), 3.0);
/// # Ok(())
/// # }
/// ```
///
/// A run that fails leaves parameters and resident inputs as they were. In the modes other than [`Mode::Eager`] a run
/// only builds a graph: a kernel that fails when it is evaluated does so later, and a resident input that was fed from it
/// makes every run an error until it is set again.
pub struct Executable<'f> {
    pub(crate) body: Rc<Body<'f>>,
    mode: Mode,
    compiled: Compiled<'f, Arrays, Vec<Array>>,
    /// The parameters and inputs in the order of their description, as the function's arguments.
    pub(crate) arguments: Arguments,
    /// What must be set before a run and is not.
    unset: Vec<Place>,
    /// What stands for an argument that is not there.
    vacant: Value,
    /// What a committed run returns.
    committed: Option<Vec<Value>>,
}

type Arrays = (Vec<Array>, Vec<Array>);
pub(crate) type Arguments = (Vec<Value>, Vec<Value>);

impl<'f> Executable<'f> {
    pub(crate) fn new(body: Rc<Body<'f>>, mode: Mode, constants: Constants) -> Self {
        let Signature { name, parameters, inputs, .. } = &body.signature;
        let options = CompileOptions { name: name.clone(), constants, ..CompileOptions::default() };
        let vacant = Value::from(Array::from_bool(false));
        let resident = (0..inputs.len()).filter(|&input| inputs[input].kind == Kind::Resident).map(Place::Input);
        let called = Rc::clone(&body);
        Self {
            unset: (0..parameters.len()).map(Place::Parameter).chain(resident).collect(),
            arguments: (vec![vacant.clone(); parameters.len()], vec![vacant.clone(); inputs.len()]),
            compiled: compile_with(options, move |(parameters, inputs): Arrays| called.call(&parameters, &inputs)),
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
    pub fn stats(&self) -> &CompileStats {
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
    /// It is for batches that are padded to a few sizes. `upper` twice ends it. The function runs on the cut inputs, and
    /// reads their extent where it needs one; parameters stay whole, whatever their extent.
    ///
    /// # Errors
    ///
    /// No input has this leading extent, the function fails on `actual` rows, or its outputs would not be the leading rows
    /// of those of `upper`, because a node mixes rows or a constant depends on the extent; then nothing changes.
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
        let rows = (actual < upper).then(|| rehearse(extent, &self.body).map(|avals| (extent, avals)));
        *self.body.rows.borrow_mut() = rows.transpose()?;
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
    /// # fn step(decoder: &mut tacit_executable::Executable<'_>, token: &mlx_rs::Array) -> tacit_core::Result<()> {
    /// let outputs = decoder.run(&[("token", token)])?;
    /// let logits = outputs.get("logits")?.dense()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// An input is missing, unknown, or of another shape or dtype; a parameter or resident input was not set, or was fed
    /// by a run whose evaluation failed; or the function fails.
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

    pub(crate) fn named(&self, returned: Vec<Value>) -> Outputs {
        Outputs::new(&self.body.signature.returned, returned)
    }

    /// Begins a run and the evaluation of everything that it makes.
    pub(crate) fn begin(&mut self, inputs: &[&Array]) -> Result<Vec<Value>> {
        let returned = self.step(inputs)?;
        // By now the former residents are the graph's alone, and it may write the new ones into their memory.
        tree::async_eval(&(&returned, self.fed_residents().collect::<Vec<_>>()))?;
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
        if feeds && (embedding::is_recording() || any_tracer(inputs)) {
            return Err(Error::invalid(
                format!("{} is run inside a traced function, and keeps what is fed", signature.name),
                "run it outside, or make the cache an argument of the traced function",
            ));
        }
        if let Some(&unset) = self.unset.first() {
            return Err(signature.missing(unset));
        }
        self.check_residents()?;
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
        let cut = self.body.extent().map(|extent| self.cut(extent)).transpose()?;
        let arguments = cut.as_ref().unwrap_or(&self.arguments);
        if self.mode == Mode::Compiled {
            // What was fed and is looked at by nobody would grow from run to run into one long graph.
            self.start_fed()?;
            return self.compiled.call(arguments);
        }
        let (parameters, inputs) = arguments;
        let values: Vec<Value> = parameters.iter().chain(inputs).cloned().collect();
        let made = transform::intercept(&values, |arrays| {
            let (parameters, inputs) = arrays.split_at(parameters.len());
            self.body.call(parameters, inputs)
        })?;
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
}

/// Evaluates the arrays of `values`, implicit ones' children included.
pub(crate) fn evaluate(values: &[Value]) -> Result<()> {
    tree::eval(values)
}

pub(crate) fn dense_leaves<'v>(values: impl IntoIterator<Item = &'v Value>) -> Result<Vec<Array>> {
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
