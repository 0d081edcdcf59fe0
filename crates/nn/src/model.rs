//! A model whose parameters may be implicit arrays.

mod coded;
mod gradient;
pub(crate) mod halves;
pub(crate) mod int8_activations;
pub(crate) mod kinds;
mod leaves;
mod observe;
mod own;
pub(crate) mod qat;
mod reported;
mod restored;
mod saved_activations;
mod saving;
mod scales;
pub(crate) mod surgery;
mod tie;
mod ties;
mod tree;
mod update;

use std::collections::{BTreeMap, BTreeSet};

use mlx_rs::module::{Module, ModuleParameters};
use mlx_rs::{Array, Dtype, ops};
use tacit_core::embedding::{given_back, guarded};
use tacit_core::tree::{self as trees, Open, TreeDef};
use tacit_core::{Arguments, Aval, Error, Explanation, Result, Tree, Value};

use self::own::{Own, Parts};
use self::saving::{can_save, saving, unsaved};
use self::ties::{Ties, remove_of, shared};
use crate::array_leaves::ArrayLeaves;
use crate::parameters::{Replacements, explained, kept, listed, missing, run, sorted};
use crate::places::Places;
use crate::report::Report;
use crate::{ParameterFilter, Parameters};

/// An mlx-rs module with implicit arrays in place of some parameters.
///
/// It is a module itself, with the module's own forward pass: it nests in others, and mlx-rs's optimizers train it. Its
/// parameters, for mlx-rs, are its leaves: a dense parameter under its own path, and the arrays that an implicit one holds
/// under theirs, such as `layers.0.q_proj.weight.a` for the factor `a` of a low-rank sum.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::module::Module;
/// use mlx_rs::{nn, ops};
/// use tacit_arrays::format::Nf4;
/// use tacit_nn::Model;
///
/// let mut model = Model::new(nn::Linear::new(64, 64)?)?.quantize("weight", Nf4 { block: 64, double: false })?;
/// assert_eq!(model.nbytes(), 64 * 64 / 2 + 64 * 4 + 64 * 4);
/// let y = model.forward(&ops::ones::<f32>(&[1, 64])?)?;
/// assert_eq!(y.shape(), [1, 64]);
/// # Ok(())
/// # }
/// ```
///
/// Parameters are told apart by their paths, as in the module: clones of a layer, which share their arrays, are trained each by
/// itself. What is to be one parameter at several paths, such as the embedding that is also the head, is declared by
/// [`tie`](Self::tie); [`report`](Self::report) names what was one array and is not.
#[derive(Clone, Debug)]
pub struct Model<M> {
    parts: Own<Parts<M>>,
    /// Whether it was said that parameters which were one array are trained each by itself.
    told: bool,
    /// The half floats among the leaves that the latest gradient was taken of.
    halves: BTreeMap<String, Dtype>,
    /// What was done with parameters; what they are by now, [`report`](Self::report) adds.
    report: Report,
}

impl<M: ModuleParameters> Model<M> {
    /// The model with the module's own parameters.
    ///
    /// # Errors
    ///
    /// None today: a module is a model as it is.
    pub fn new(module: M) -> Result<Self> {
        let places = Places::from_module(&module);
        let report = Report { shared: shared(&sorted(&module)), ..Report::default() };
        let parts = Parts {
            module,
            places,
            implicit: BTreeMap::new(),
            ties: Ties::default(),
            trained: ParameterFilter::default(),
            frozen: BTreeSet::new(),
            saved: BTreeMap::new(),
            training: true,
            switch: None,
        };
        Ok(Self { parts: Own::new(parts), told: false, halves: BTreeMap::new(), report })
    }

    /// The value of a parameter.
    ///
    /// # Errors
    ///
    /// The model has no parameter of this path.
    pub fn get(&self, path: &str) -> Result<Value> {
        let path = self.parts.ties.parameter_path(path);
        if let Some(leaves) = self.parts.implicit.get(path) {
            return leaves.value();
        }
        // Not of `values`, which puts each implicit parameter together anew: a loop over paths would do so for each of them.
        let parameters = self.parts.module.parameters().flatten();
        parameters.get(path).map(|&array| array.into()).ok_or_else(|| self.no(path))
    }

    /// The value of a parameter as a call of the model has it: that of [`get`](Self::get), whose adapters drop nothing out of
    /// training.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get).
    pub fn used(&self, path: &str) -> Result<Value> {
        match self.parts.implicit.get(self.parts.ties.parameter_path(path)) {
            Some(held) => held.used(self.parts.training),
            None => self.get(path),
        }
    }

    /// The values of all parameters as a call of the model has them, a tied one under each of its paths.
    ///
    /// # Errors
    ///
    /// As for [`values`](Self::values).
    pub fn used_values(&self) -> Result<Parameters> {
        let mut values = self.values_by(|leaves| leaves.used(self.parts.training))?;
        for (tied, parameter) in self.parts.ties.iter() {
            if let Some(value) = values.get(parameter).cloned() {
                values.insert(tied.to_owned(), value);
            }
        }
        Ok(values)
    }

    /// The values of all parameters by path; a tied parameter is listed under the path that it is tied to.
    ///
    /// # Errors
    ///
    /// An implicit array refuses its own children.
    pub fn values(&self) -> Result<Parameters> {
        self.values_by(ArrayLeaves::value)
    }

    fn values_by(&self, value: impl Fn(&ArrayLeaves) -> Result<Value>) -> Result<Parameters> {
        let parameters = sorted(&self.parts.module).into_iter().filter(|(path, _)| !self.parts.ties.is_tied(path));
        parameters
            .map(|(path, array)| {
                let value = self.parts.implicit.get(&*path).map_or_else(|| Ok(array.into()), &value)?;
                Ok((path.to_string(), value))
            })
            .collect()
    }

    /// Shape and dtype of each parameter by path; a tied parameter is listed under the path that it is tied to.
    #[must_use]
    pub fn avals(&self) -> BTreeMap<String, Aval> {
        let parameters = sorted(&self.parts.module).into_iter().filter(|(path, _)| !self.parts.ties.is_tied(path));
        parameters.map(|(path, array)| (path.to_string(), Aval::from(array))).collect()
    }

    /// Computes all parameters together, implicit and dense, and waits for them.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::nn;
    /// use tacit_nn::Model;
    ///
    /// let mut model = Model::new(nn::Linear::new(64, 64)?)?;
    /// model.replace("weight", |_, weight| Ok(Some(weight.dense()?.t().into())))?.eval()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// One cannot be computed, or is one that a trace is recorded on.
    pub fn eval(&self) -> Result<()> {
        tacit_core::tree::eval(self)
    }

    /// The bytes of all parameters, implicit and dense.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        let implicit: usize = self.parts.implicit.values().map(ArrayLeaves::nbytes).sum();
        let is_dense = |path: &str| !self.parts.implicit.contains_key(path) && !self.parts.ties.is_tied(path);
        let dense = sorted(&self.parts.module).into_iter().filter(|(path, _)| is_dense(path));
        implicit + dense.map(|(_, array)| array.nbytes()).sum::<usize>()
    }

    /// Runs any function of the module, intercepted.
    ///
    /// A parameter that the function assigns, such as a running statistic, keeps what it was assigned; where the function
    /// fails or panics, which is an error too, every parameter is what it was. What it captures is walked with the graph; the inputs of
    /// [`forward`](Module::forward) are not.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::{module::Module, nn, ops};
    /// use tacit_arrays::format::Affine;
    /// use tacit_nn::Model;
    ///
    /// let tokens = mlx_rs::Array::from_slice(&[3u32], &[1, 1]);
    /// let mut model = Model::new(nn::Embedding::new(16, 64)?)?.quantize("weight", Affine { bits: 8, group: 64 })?;
    /// let logits = model.run(|embedding| {
    ///     let x = embedding.forward(&tokens)?;
    ///     embedding.as_linear(&x)
    /// })?;
    /// assert_eq!(logits.shape(), [1, 1, 16]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The function fails, or as for [`implicit`](tacit_core::implicit()).
    pub fn run<O: Tree, E: Into<Error>>(&mut self, f: impl FnOnce(&mut M) -> Result<O, E>) -> Result<O> {
        if self.is_dense() {
            self.refresh();
            let Parts { module, places, .. } = &mut *self.parts;
            return kept(module, places, f);
        }
        self.run_with(&mut (), |module, ()| f(module))
    }

    /// Runs any function of the module and of a state that it changes, such as the cache of a decoder.
    ///
    /// Inside the function the state's values are plain, as the parameters are; afterwards it holds what the function made of
    /// them, implicit arrays too. Where the function fails, parameters and state are what they were.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::{Array, module::Module, nn, ops};
    /// use tacit_core::Value;
    /// use tacit_nn::Model;
    ///
    /// let mut model = Model::new(nn::Linear::new(2, 2)?)?;
    /// let mut sum = Value::from(ops::zeros::<f32>(&[1, 2])?);
    /// let x = ops::ones::<f32>(&[1, 2])?;
    /// let y = model.run_with(&mut sum, |linear, sum| {
    ///     let y = linear.forward(&x)?;
    ///     *sum = sum.dense()?.add(&y)?.into();
    ///     Ok::<_, tacit_core::Error>(y)
    /// })?;
    /// assert_eq!(sum.dense()?.as_slice::<f32>(), y.as_slice::<f32>());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run).
    pub fn run_with<S: Tree, O: Tree, E: Into<Error>>(
        &mut self,
        state: &mut S,
        f: impl FnOnce(&mut M, &mut S) -> Result<O, E>,
    ) -> Result<O> {
        self.run_on(Vec::new(), state, f)
    }

    fn run_on<S: Tree, O: Tree, E: Into<Error>>(
        &mut self,
        inputs: Vec<Array>,
        state: &mut S,
        f: impl FnOnce(&mut M, &mut S) -> Result<O, E>,
    ) -> Result<O> {
        self.refresh();
        let saves = self.parts.saves();
        let (module, replacements) = self.parts.replacements()?;
        let mut def = None;
        let before = trees::flatten(state, Open::Closed)?;
        let (mut results, mut assigned) = run(module, &replacements, inputs, state, |module, state| {
            let (leaves, structure) = trees::flatten(&f(module, state).map_err(Into::into)?, Open::Closed)?;
            def = Some(structure);
            leaves.iter().map(Value::dense).collect::<Result<Vec<Array>>>()
        })?;
        drop(replacements);
        if saves {
            let outputs = results.iter_mut().chain(assigned.iter_mut().map(|(_, value)| value));
            outputs.for_each(|value| *value = unsaved(value));
        }
        let ended = dense_tree(def, &results).and_then(|results| {
            if !assigned.is_empty() {
                self.assigned_once(&assigned)?;
                self.put(assigned)?;
            }
            Ok(results)
        });
        ended.map_err(|error| given_back(state, before, error))
    }

    /// Runs a function of the module and returns what happened to each primitive; the model does not change.
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run).
    pub fn explain<O: Tree, E: Into<Error>>(&mut self, f: impl FnOnce(&mut M) -> Result<O, E>) -> Result<Explanation> {
        self.refresh();
        let (module, replacements) = self.parts.replacements()?;
        explained(module, &replacements, f)
    }

    /// Whether a call is the module's own.
    fn is_dense(&self) -> bool {
        self.parts.implicit.is_empty() && self.parts.ties.is_empty() && !self.parts.saves()
    }

    /// Finds the parameters again where some came or went.
    fn refresh(&mut self) {
        if self.parts.places.sorted(self.parts.module.parameters()).is_none() {
            self.parts.places = Places::from_module(&self.parts.module);
        }
    }

    /// Puts values of the parameters' own shapes in their places.
    fn put(&mut self, values: Vec<(String, Value)>) -> Result<()> {
        self.refresh();
        self.put_in_places(values)
    }

    /// As [`put`](Self::put), where the places are known to be those of the module.
    fn put_in_places(&mut self, values: Vec<(String, Value)>) -> Result<()> {
        let mut placed = Vec::with_capacity(values.len());
        let mut tied = Vec::new();
        for (path, value) in values {
            let path = self.parts.ties.parameter_path(&path).to_owned();
            let Some(number) = self.parts.places.find(&path) else { return Err(self.no(&path)) };
            let leaves = if value.is_implicit() { Some(ArrayLeaves::new(&path, &value)?) } else { None };
            let hollow = |aval: &Aval| ops::broadcast_to(&ops::zeros_dtype(&[], aval.dtype)?, &aval.shape);
            let array = match &value {
                Value::Dense(array) => array.clone(),
                // A single zero that is broadcast keeps shape and dtype, and nothing of the dense array.
                Value::Implicit(_) => hollow(&value.aval()?)?,
            };
            for other in self.parts.ties.others(&path).filter_map(|other| self.parts.places.find(other)) {
                tied.push((other, hollow(&value.aval()?)?));
            }
            placed.push((number, path, leaves, array));
        }
        let Parts { module, places, implicit, frozen, .. } = &mut *self.parts;
        let slots = places.sorted(module.parameters_mut());
        let mut slots = slots.unwrap_or_else(|| unreachable!("the places are those of the module"));
        for (number, array) in tied {
            *slots[number] = array;
        }
        for (number, path, leaves, array) in placed {
            *slots[number] = array;
            remove_of(&mut self.halves, &path);
            let adapts = |leaves: Option<&ArrayLeaves>| leaves.is_some_and(ArrayLeaves::is_adapter);
            if !(adapts(leaves.as_ref()) && adapts(implicit.get(&path))) {
                // An adapter that comes to a frozen parameter is there to be trained.
                frozen.remove(&path);
            }
            match leaves {
                Some(leaves) => drop(implicit.insert(path, leaves)),
                None => drop(implicit.remove(&path)),
            }
        }
        Ok(())
    }

    /// The parameters of the module, for a message.
    fn listed(&self) -> String {
        listed(self.parts.module.parameters().flatten().into_keys())
    }

    fn no(&self, path: &str) -> Error {
        missing(path, self.parts.module.parameters().flatten().keys())
    }
}

impl<M> Parts<M> {
    /// The module, and what stands in place of its parameters while a function runs. Out of training no adapter drops anything.
    fn replacements(&mut self) -> Result<(&mut M, Replacements<'_>)>
    where
        M: ModuleParameters,
    {
        let saves = self.saves();
        let Self { module, places, implicit, ties, saved, training, .. } = self;
        let places = &*places;
        let values = implicit.iter().filter_map(|(path, leaves)| {
            let number = places.find(path)?;
            Some(leaves.used(*training).map(|value| (number, value)))
        });
        let mut values = values.collect::<Result<Vec<_>>>()?;
        if saves {
            let arrays = places.sorted(module.parameters()).unwrap_or_default();
            let dense = places.paths.iter().zip(arrays).enumerate().filter(|(_, (path, array))| {
                can_save(path, &Aval::from(*array)) && !implicit.contains_key(*path) && !ties.is_tied(path)
            });
            values.extend(dense.map(|(number, (_, array))| (number, array.into())));
            for (number, value) in &mut values {
                let path = &places.paths[*number];
                if can_save(path, &value.aval()?) {
                    *value = saving(value, saved.get(path))?;
                }
            }
        }
        let ties = ties.iter().filter_map(|(tied, to)| Some((places.find(tied)?, places.find(to)?)));
        Ok((module, Replacements { places, values, ties: ties.collect() }))
    }
}

/// The tree of a function's results, which are dense.
fn dense_tree<O: Tree>(def: Option<TreeDef>, results: &[Value]) -> Result<O> {
    let def = def.unwrap_or_else(|| unreachable!("a function that ran through has results"));
    let dense = results.iter().map(|value| Ok(value.dense()?.into())).collect::<Result<_>>()?;
    trees::unflatten(&def, dense)
}

/// The module's own forward pass, intercepted.
impl<M, I> Module<I> for Model<M>
where
    M: Module<I>,
    M::Output: Tree,
    M::Error: From<Error> + Into<Error>,
    I: Arguments,
{
    type Output = M::Output;
    type Error = M::Error;

    fn forward(&mut self, input: I) -> Result<M::Output, M::Error> {
        if self.is_dense() {
            let module = &mut self.parts.module;
            return guarded(|| Ok(module.forward(input)))?;
        }
        // The walk of the recorded graph ends at them, so that a stack of layers costs no more the deeper it is.
        let (inputs, _) = trees::flatten(&input, Open::Fully)?;
        let inputs = inputs.iter().filter_map(|input| input.as_dense().cloned()).collect();
        Ok(self.run_on(inputs, &mut (), |module, ()| module.forward(input))?)
    }

    /// In evaluation no adapter drops features, whatever [`drop_features`](Model::drop_features) said last.
    ///
    /// A compiled step that changes the mode leaves the whole module in it, and one that fails in the mode from before. A part that
    /// has a mode of its own, such as a norm whose statistics are frozen, is to be put in that again.
    fn training_mode(&mut self, mode: bool) {
        self.parts.switch = Some(<M as Module<I>>::training_mode);
        self.parts.switch_to(mode);
    }
}
