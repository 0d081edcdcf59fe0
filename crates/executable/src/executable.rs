//! The executable itself: what it holds, and a run of it.

use std::rc::Rc;

use mlx_rs::{Array, ops};
use tacit_bridge::any_tracer;
use tacit_core::compile::{CompileOptions, CompileStats, Compiled, compile_with};
use tacit_core::{Aval, Error, Result, Value, embedding, transform, tree};

use crate::body::Body;
use crate::extent::Extent;
use crate::nodes::Nodes;
use crate::pending::Pending;
use crate::rehearsal::rehearse;
use crate::signature::{Described, Kind, Override, Place, Signature};
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
/// A run that fails leaves parameters and resident inputs as they were. In the modes other than [`Mode::Eager`], and where
/// it is committed, a run only builds a graph: a kernel that fails when it is evaluated does so later, and a resident input
/// that was fed from it makes every run an error until it is set again.
///
/// A scalar array that is set or given where a shape is described is broadcast to it.
pub struct Executable<'f> {
    pub(crate) body: Rc<Body<'f>>,
    mode: Mode,
    compiled: Compiled<'f, Arrays, Vec<Array>>,
    /// The parameters and inputs in the order of their description, as the function's arguments.
    pub(crate) arguments: Arguments,
    /// What must be set before a run and is not.
    pub(crate) unset: Vec<Place>,
    pub(crate) committed: Option<Pending>,
}

type Arrays = (Vec<Array>, Vec<Array>);
pub(crate) type Arguments = (Vec<Value>, Vec<Value>);

impl<'f> Executable<'f> {
    #[track_caller]
    pub(crate) fn new(body: Rc<Body<'f>>, mode: Mode, options: CompileOptions, defaults: Vec<(usize, Value)>) -> Self {
        let Signature { name, parameters, inputs, .. } = &body.signature;
        let options = CompileOptions { name: name.clone(), ..options };
        // It stands for an argument that is not there.
        let vacant = Value::from(Array::from_bool(false));
        let resident = (0..inputs.len()).filter(|&input| inputs[input].kind == Kind::Resident).map(Place::Input);
        let mut arguments = (vec![vacant.clone(); parameters.len()], vec![vacant.clone(); inputs.len()]);
        for (input, value) in defaults {
            arguments.1[input] = value;
        }
        let called = Rc::clone(&body);
        Self {
            unset: (0..parameters.len()).map(Place::Parameter).chain(resident).collect(),
            arguments,
            compiled: compile_with(options, move |(parameters, inputs): Arrays| called.call(&parameters, &inputs)),
            committed: None,
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
        let arguments = self.with_stand_ins()?;
        let former = std::mem::replace(&mut self.arguments, arguments);
        let result = self.results();
        self.arguments = former;
        result?.finish().map(drop)
    }

    /// The arguments, with zeros for the inputs that are not there.
    pub(crate) fn with_stand_ins(&self) -> Result<Arguments> {
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
        Ok(arguments)
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
        let (inputs, overrides) = self.in_order(inputs)?;
        let mut returned = Vec::new();
        self.step(&inputs, &overrides, &mut returned)?;
        Ok(self.named(returned))
    }

    /// Runs the function on its inputs that are neither resident nor optional, in the order of their description, and puts
    /// the outputs that are not fed into `outputs`, whose memory is used again.
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run); `outputs` is then as it was.
    pub fn run_positional(&mut self, inputs: &[&Array], outputs: &mut Vec<Value>) -> Result<()> {
        self.step(inputs, &[], outputs)
    }

    /// Runs the function as [`run_positional`](Self::run_positional) does and evaluates it, into memory of the caller's: the
    /// elements of each output that is not fed, row-major, in its dtype and this machine's byte order. What the array of an
    /// input is made of, [`array_from_bytes`](Self::array_from_bytes) says.
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run), or an output has another number of bytes than its memory. Nothing is written and nothing
    /// fed then.
    pub fn run_into(&mut self, inputs: &[&Array], outputs: &mut [&mut [u8]]) -> Result<()> {
        let results = self.call(inputs, &[])?.evaluated()?;
        let fed = self.fed(&results)?;
        let returned = self.body.signature.outputs.iter().zip(&results).filter(|(output, _)| output.feeds.is_empty());
        let returned = returned.map(|(_, value)| value.dense()).collect::<Result<Vec<Array>>>()?;
        // What is fed too: a run that fails feeds nothing.
        tree::eval(&(&results, &returned))?;
        let names: Vec<&str> = self.body.signature.returned.iter().map(|name| &**name).collect();
        bytes::copy_into(&names, &returned, outputs)?;
        self.hand_over(results, fed, &mut Vec::new());
        Ok(())
    }

    /// The inputs of a run in the order of their description, and what it gives for optional ones.
    pub(crate) fn in_order<'a>(&self, named: &[(&str, &'a Array)]) -> Result<(Vec<&'a Array>, Vec<Override<'a>>)> {
        let signature = &self.body.signature;
        let mut by_input: Vec<Option<&'a Array>> = vec![None; signature.inputs.len()];
        for &(name, array) in named {
            // What is given to a run is an input.
            let Place::Input(index) = signature.find(name, Kind::Given)? else { continue };
            if by_input[index].replace(array).is_some() {
                return Err(Error::invalid(format!("input {name} is given twice"), "give each input once"));
            }
        }
        let take_input = |&index: &usize| by_input[index].take().ok_or_else(|| signature.missing(Place::Input(index)));
        let inputs = signature.given.iter().map(take_input).collect::<Result<_>>()?;
        let overrides = by_input.into_iter().enumerate().filter_map(|(index, array)| Some((index, array?)));
        Ok((inputs, overrides.collect()))
    }

    pub(crate) fn named(&self, returned: Vec<Value>) -> Outputs {
        Outputs::new(&self.body.signature.returned, returned)
    }

    fn step(&mut self, inputs: &[&Array], overrides: &[Override<'_>], outputs: &mut Vec<Value>) -> Result<()> {
        let result = self.call(inputs, overrides)?.evaluated()?;
        let fed = self.fed(&result)?;
        outputs.clear();
        self.hand_over(result, fed, outputs);
        Ok(())
    }

    /// Every output of the function on `inputs`.
    pub(crate) fn call(&mut self, inputs: &[&Array], overrides: &[Override<'_>]) -> Result<Pending> {
        let signature = &self.body.signature;
        let feeds = signature.outputs.iter().any(|output| !output.feeds.is_empty());
        let replaced = || overrides.iter().map(|&(_, array)| array).collect::<Vec<_>>();
        if feeds && (embedding::is_recording() || any_tracer(inputs) || any_tracer(&replaced())) {
            return Err(Error::invalid(
                format!("{} is run inside a traced function, and keeps what is fed", signature.name),
                "run it outside, or make the cache an argument of the traced function",
            ));
        }
        if let Some(&unset) = self.unset.first() {
            return Err(signature.missing(unset));
        }
        self.check_residents(overrides)?;
        if inputs.len() != signature.given.len() {
            let names: Vec<&str> = signature.given.iter().map(|&index| &*signature.inputs[index].name).collect();
            return Err(Error::invalid(
                format!("{} inputs were given, and {} takes {}", inputs.len(), signature.name, names.len()),
                format!("give these in order: {}", names.join(", ")),
            ));
        }
        let swapped = signature.given.iter().copied().zip(inputs.iter().copied()).chain(overrides.iter().copied());
        let swapped = swapped.map(|(index, array)| Ok((index, signature.inputs[index].fitted(array)?.into())));
        let mut swapped = swapped.collect::<Result<Vec<(usize, Value)>>>()?;
        // A run holds on to nothing of its caller's: what was there before comes back.
        for (index, value) in &mut swapped {
            std::mem::swap(&mut self.arguments.1[*index], value);
        }
        let result = self.results();
        for (index, value) in swapped {
            self.arguments.1[index] = value;
        }
        result
    }

    /// Every output of the function on the arguments.
    fn results(&mut self) -> Result<Pending> {
        let cut = self.cut(&self.arguments)?;
        let arguments = cut.as_ref().unwrap_or(&self.arguments);
        if self.mode == Mode::Compiled {
            // What was fed and is looked at by nobody would grow from run to run into one long graph.
            tree::async_eval(&self.fed_residents().collect::<Vec<_>>())?;
            return Ok(Pending { returned: self.compiled.call(arguments)?, nodes: None });
        }
        let (parameters, inputs) = arguments;
        let values: Vec<Value> = parameters.iter().chain(inputs).cloned().collect();
        let returned = transform::intercept(&values, |arrays| {
            let (parameters, inputs) = arrays.split_at(parameters.len());
            self.body.call(parameters, inputs)
        })?;
        if self.mode == Mode::Lazy {
            return Ok(Pending { returned, nodes: None });
        }
        let nodes = Nodes::between(&self.body.signature.name, tree::arrays(&values)?, &tree::arrays(&returned)?)?;
        Ok(Pending { returned, nodes: Some(nodes) })
    }

    /// The arguments of a run on some of the rows; nothing where it is on all of them.
    pub(crate) fn cut(&self, (parameters, inputs): &Arguments) -> Result<Option<Arguments>> {
        let Some(extent) = self.body.extent() else { return Ok(None) };
        let cut = |(value, described): (&Value, &Described)| {
            if extent.is_of(&described.aval) { Ok(extent.rows(&value.dense()?)?.into()) } else { Ok(value.clone()) }
        };
        let inputs = inputs.iter().zip(&self.body.signature.inputs).map(cut).collect::<Result<_>>()?;
        Ok(Some((parameters.clone(), inputs)))
    }
}
