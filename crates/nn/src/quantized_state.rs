//! Optimizers whose moments are held in few bits.

mod tree;

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use mlx_rs::Array;
use mlx_rs::error::{Exception, StateProjectionError};
use mlx_rs::module::{FlattenedModuleParam, ModuleParameters};
use mlx_rs::ops;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::optimizers::{Optimizer, OptimizerState};
use mlx_rs::utils::{StateProjection, Updatable};
use tacit_arrays::format::{Dynamic, Fit, Fitted, quantize_by_key};
use tacit_core::embedding::guarded;
use tacit_core::{Aval, Error, Result, Value, implicit};

use crate::moments::{Moments, key_of};
use crate::parameters::{check_step, of_one};
use crate::saved_moments::{SavedMoments, unlisted};
use crate::{Apollo, IntoRules, Pattern, Rules};

/// An optimizer of mlx-rs, unchanged, whose moments are implicit arrays between its steps.
///
/// A step lends the optimizer the moments of one parameter after the other: `b1 * m + (1 - b1) * g` is made from the codes of `m`,
/// and what the optimizer leaves is quantized again. Of a float Adam's 8 bytes for each parameter 2.03 are left in
/// [`eight_bits`](Self::eight_bits), and 1.06 in [`four_bits`](Self::four_bits). [`apollo`](Self::apollo) has it step by gradients of a
/// low rank, and hold moments of that rank, in these formats or as floats.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::optimizers::AdamW;
/// use mlx_rs::{module::Module, nn, ops};
/// use tacit_nn::{Model, ParameterFilter, QuantizedState};
///
/// let mut model = Model::new(nn::Linear::new(64, 64)?)?;
/// let mut optimizer = QuantizedState::eight_bits(AdamW::new(1e-3))?;
/// let x = ops::ones::<f32>(&[2, 64])?;
/// for _ in 0..3 {
///     let (_loss, gradients) =
///         model.value_and_grad(ParameterFilter::default(), &x, |m, x| m.forward(x)?.square()?.mean(None))?;
///     model.update(&mut optimizer, &gradients)?;
/// }
/// assert_eq!(optimizer.values()?["weight.1"].to_string(), "Dynamic(f32[64,64])");
/// assert!(optimizer.nbytes() < 64 * 64 * 21 / 10 + 2 * 64 * 4 + 1);
/// # Ok(())
/// # }
/// ```
///
/// It is a state of a compiled step, as a [`Stateful`](crate::Stateful) is: its leaves are the arrays that the moments are made of,
/// and other fields, such as a learning rate, are constants of the trace. The fields of the optimizer are those of this type;
/// the moments in them are empty between the steps. A moment of NaN has no code: the eval of a step with such a gradient is an
/// error, and the moments are lost with it. One that is a float stays NaN, and so do the parameters from then on, as with the
/// optimizer alone. Check gradients by their norm, or save the run.
#[derive(Clone, Debug)]
pub struct QuantizedState<O> {
    optimizer: O,
    moments: Moments<O>,
    rules: Rules,
    /// The gradients that are projected, and how: the first that names one counts.
    projected: Vec<(Pattern, Apollo)>,
    /// The rules as a file has them, and the projections: what a compiled function knows them by.
    text: String,
    /// What has fewer elements stays as it is.
    least: usize,
    /// What the random key is made of, while there is none.
    seed: u64,
}

/// A path that has no dots, where mlx-rs takes a key apart.
const PARAMETER: &str = "parameter";

impl<O: Optimizer> QuantizedState<O> {
    /// An optimizer whose moments take formats by names such as `layers.0.weight.0`, for the mean of Adam's gradients, and
    /// `layers.0.weight.1`, for that of their squares: the path of the parameter and the number of the moment.
    ///
    /// These are mlx-rs's keys, but where there is one moment: its key is the path itself, and rules know it as number 0.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::optimizers::Adam;
    /// use tacit_nn::{QuantizedState, Rules};
    ///
    /// let rules = Rules::new().quantize("*.0", "dynamic:4:128")?.quantize("*.1", "dynamic:8:256:unsigned")?;
    /// let optimizer = QuantizedState::new(Adam::new(1e-3), &rules)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// What no rule names, and what has fewer than 4096 elements, stays as it is. Moments that the optimizer has already are
    /// quantized.
    ///
    /// # Errors
    ///
    /// A text is no format, a format does not fit a moment, or mlx-rs cannot list the state.
    pub fn new(optimizer: O, rules: impl IntoRules) -> Result<Self> {
        const LEAST: usize = 4096;
        let rules = rules.into_rules()?;
        let text = rules.identity();
        let (moments, projected) = (Moments::default(), Vec::new());
        let mut state = Self { optimizer, moments, rules, projected, text, least: LEAST, seed: 0 };
        for (key, array) in taken(&mut state.optimizer)? {
            let (path, name) = Moments::<O>::split(&key);
            state.put(&path.into(), name, array.into())?;
        }
        Ok(state)
    }

    /// An optimizer whose moments take 8 bits: bitsandbytes' dynamic map in blocks of 256 elements.
    ///
    /// Means of squares, such as Adam's second moment and the only one of `RmsProp`, have codes without a sign, and scales by absmax.
    /// The scales of all others [reach](Fit::Reach) both ends of the table. Steps of a vector and a matrix of two elements show which
    /// are which.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn eight_bits(mut optimizer: O) -> Result<Self> {
        let rules = dynamic(&mut optimizer, 8, 256)?;
        Self::new(optimizer, &rules)
    }

    /// An optimizer whose moments take 4 bits in the same way, in blocks of 128 elements: see [`Dynamic`].
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn four_bits(mut optimizer: O) -> Result<Self> {
        let rules = dynamic(&mut optimizer, 4, 128)?;
        Self::new(optimizer, &rules)
    }

    /// The same, where steps quantize moments of at least so many elements; 4096 if it is not said.
    #[must_use]
    pub fn from_elements(self, least: usize) -> Self {
        Self { least, ..self }
    }

    /// The same with another seed for formats such as `dynamic:8:256+stochastic`, which round at random; 0 if it is not said.
    ///
    /// Each moment that is rounded so takes a random key of its own in each step, split off the one that is saved and restored with
    /// the moments, as `@key`: a run that is resumed goes on to the same bits.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::{ops, optimizers::{Adam, Optimizer}};
    /// use tacit_nn::{QuantizedState, Rules};
    ///
    /// let rules = Rules::new()
    ///     .quantize("*.1", "dynamic:8:256:unsigned+stochastic")?
    ///     .quantize("*.0", "dynamic:8:256+stochastic")?;
    /// let mut adam = QuantizedState::new(Adam::new(1e-3), &rules)?.with_seed(7);
    /// let (mut weight, gradient) = (ops::ones::<f32>(&[64, 64])?, ops::ones::<f32>(&[64, 64])?);
    /// adam.update_single(&"weight".into(), &gradient, &mut weight)?;
    /// assert_eq!(adam.values()?["@key"].to_string(), "u32[2]");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.moments.key = None;
        Self { seed, ..self }
    }

    /// The same, where the gradients of the matrices that a pattern names are projected to a low rank, and the moments are those of
    /// projected gradients: see [`Apollo`].
    ///
    /// The paths are those of gradients, `layers.0.weight` or a leaf's within an implicit parameter. What has no side above the
    /// rank, such as a bias, is stepped as it is. Leave embeddings out, whose rows need steps of their own. Of several patterns the
    /// first that names a gradient counts.
    ///
    /// # Errors
    ///
    /// The text is no pattern, the rank or the period is 0, or the scale is no number above 0.
    pub fn apollo(mut self, pattern: impl TryInto<Pattern, Error: Into<Error>>, apollo: Apollo) -> Result<Self> {
        apollo.check()?;
        let pattern = pattern.try_into().map_err(Into::into)?;
        self.text = format!("{}\n{:?}: {apollo:?}", self.text, pattern.identity());
        self.projected.push((pattern, apollo));
        Ok(self)
    }

    /// The moments by their keys, and the random key by which they are rounded, if they are, under `@key`.
    ///
    /// # Errors
    ///
    /// An array type refuses its own children.
    pub fn values(&self) -> Result<crate::Parameters> {
        self.moments.values()
    }

    /// The bytes of all moments.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.moments.nbytes()
    }

    /// Holds a moment in the format that the rules give it.
    fn put(&mut self, path: &Rc<str>, name: &str, value: Value) -> Result<()> {
        let aval = value.aval()?;
        let number = if name.is_empty() { "0" } else { name };
        let format = self
            .rules
            .format(&key_of(path, number), &aval)
            .filter(|_| aval.size() >= self.least && aval.dtype.is_float());
        let value = match format {
            Some(format) if format.stores(&value) => value,
            Some(format) => {
                let dense = value.dense()?;
                let quantized = if format.stochastic().is_some() {
                    quantize_by_key(format, &dense, &self.moments.next_key(self.seed)?)
                } else {
                    format.quantize(&dense)
                };
                quantized.map_err(|error| of_one(&format!("the moment {}", key_of(path, name)), &error))?
            }
            None => value.dense()?.into(),
        };
        self.moments.put(path, name, &value)
    }

    /// What `f` makes; where it fails, the moments are what they were.
    fn transaction<T>(&mut self, f: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let before = self.moments.clone();
        f(self).inspect_err(|_| self.moments = before)
    }

    /// What a step makes of a parameter. The `rates` of a step are found for the first parameter that needs them.
    fn step(
        &mut self,
        path: &Rc<str>,
        gradient: &Array,
        parameter: &Array,
        rates: &mut Option<[Array; 2]>,
    ) -> Result<Array> {
        let aval = Aval::from(gradient);
        let kept = self.moments.kept(path)?;
        let apollo = self.projected.iter().find(|(pattern, _)| pattern.matches(path, &aval)).map(|(_, apollo)| *apollo);
        let Some(apollo) = apollo.filter(|apollo| apollo.reduces(&aval)) else {
            if kept.is_some() {
                self.check_moments(path, gradient)?;
            }
            return self.lend(path, gradient, parameter);
        };
        if gradient.shape() != parameter.shape() {
            let message = format!("the parameter {path} is {}, and its gradient is {aval}", Aval::from(parameter));
            return Err(Error::invalid(message, "give a gradient of the parameter's own shape"));
        }
        let projected = apollo.project(path, gradient, kept)?;
        let [rate, decay] = match rates {
            Some(found) => found,
            None => rates.insert(self.rates()?),
        };
        // Those of another run, and those that the optimizer makes.
        self.check_moments(path, &projected.gradient)?;
        let change = self.lend(path, &projected.gradient, &ops::zeros_like(&projected.gradient)?)?;
        self.check_moments(path, &projected.gradient)?;
        let (update, kept) = projected.update(&change, rate)?;
        self.moments.keep(path, kept)?;
        Ok(parameter.multiply(&*decay)?.subtract(update)?)
    }

    /// Refuses moments that are not of this gradient, element by element, where it or they are projected.
    fn check_moments(&self, path: &str, gradient: &Array) -> Result<()> {
        for (_, moment) in self.moments.of(path) {
            let aval = moment.value()?.aval()?;
            if !aval.shape.is_empty() && aval.shape != gradient.shape() {
                return Err(Error::invalid(
                    format!("the moment {} is {aval}, and its gradient is {}", moment.path, Aval::from(gradient)),
                    "take the projections that the moments are of, and an optimizer with a moment for each element",
                ));
            }
        }
        Ok(())
    }

    /// How far a gradient of one moves a parameter, which grows as the learning rate does, and what a step without a gradient
    /// leaves of a parameter of one.
    fn rates(&mut self) -> Result<[Array; 2]> {
        let (gradient, mut parameter) = (Array::from_slice(&[1f32, 0.0], &[2]), Array::from_slice(&[0f32, 1.0], &[2]));
        tried(&mut self.optimizer, &gradient, &mut parameter)?;
        Ok([parameter.try_index(0)?.negative()?, parameter.try_index(1)?])
    }

    /// What the optimizer makes of a parameter, with the moments that there are of its path.
    fn lend(&mut self, path: &Rc<str>, gradient: &Array, parameter: &Array) -> Result<Array> {
        let moments = self.moments.of(path).map(|(name, moment)| Ok((key_of(PARAMETER, name), moment.value()?)));
        let (keys, values): (Vec<String>, Vec<Value>) = moments.collect::<Result<_>>()?;
        let (optimizer, mut names) = (&mut self.optimizer, Vec::new());
        let ran = implicit((values, gradient, parameter), |(arrays, gradient, mut parameter)| {
            *optimizer.state_mut() = O::State::unflatten(keys.into_iter().zip(arrays)).map_err(unread)?;
            optimizer.update_single(&PARAMETER.into(), &gradient, &mut parameter)?;
            let (keys, arrays): (_, Vec<Array>) = taken(optimizer)?.into_iter().unzip();
            names = keys;
            Ok::<_, Error>((parameter, arrays))
        });
        // Whatever happened: no placeholder stays in it.
        taken(&mut self.optimizer)?;
        let (stepped, moments) = ran?;
        let stepped = stepped.dense()?;
        check_step(path, &stepped, parameter)?;
        for (key, moment) in names.into_iter().zip(moments) {
            self.put(path, key.rsplit_once('.').map_or("", |(_, name)| name), moment)?;
        }
        Ok(stepped)
    }
}

/// The moments of an optimizer, which has none then.
fn taken<O: Optimizer>(optimizer: &mut O) -> Result<Vec<(Rc<str>, Array)>> {
    let mut state = std::mem::replace(optimizer.state_mut(), nothing::<O>()?);
    let listed = state.flatten().map_err(unlisted)?;
    Ok(listed.into_iter().map(|(key, array)| (key, array.clone())).collect())
}

fn nothing<O: Optimizer>() -> Result<O::State> {
    O::State::unflatten(Vec::<(String, Array)>::new()).map_err(unread)
}

fn unread(error: impl std::fmt::Display) -> Error {
    let help = "restore the moments of an optimizer of the same kind";
    Error::invalid(format!("mlx-rs does not take the moments: {error}"), help)
}

/// Dynamic codes, without a sign for means of squares: those are above zero whatever the signs of the gradients are.
fn dynamic<O: Optimizer>(optimizer: &mut O, bits: u8, block: usize) -> Result<Rules> {
    let signed = Dynamic { bits, block, unsigned: false };
    let state = std::mem::replace(optimizer.state_mut(), nothing::<O>()?);
    // Adafactor has other moments of a matrix than of a vector.
    let moments = [&[2][..], &[1, 2]].map(|shape| {
        let mut parameter = ops::zeros::<f32>(shape)?;
        tried(optimizer, &Array::from_slice(&[-1f32, 1.0], shape), &mut parameter)
    });
    *optimizer.state_mut() = state;
    let mut squares = BTreeSet::new();
    for moments in moments {
        for (key, moment) in moments? {
            let is_float = Aval::from(&moment).dtype.is_float();
            if is_float && moment.gt(Array::from_f32(0.0))?.all(None)?.item_exact::<bool>() {
                squares.insert(key.rsplit_once('.').map_or("0", |(_, name)| name).to_owned());
            }
        }
    }
    let mut rules = Rules::new();
    for name in squares {
        rules = rules.quantize(format!("*.{name}").as_str(), Dynamic { unsigned: true, ..signed })?;
    }
    // The signed tables end nearer to zero below it: by absmax the least of a block would lose a part of itself in each step.
    rules.quantize("*", Fitted::new(signed, Fit::Reach)?)
}

/// A step of an optimizer without moments, which has none again afterwards: those that it made.
fn tried<O: Optimizer>(optimizer: &mut O, gradient: &Array, parameter: &mut Array) -> Result<Vec<(Rc<str>, Array)>> {
    let stepped = guarded(|| Ok(optimizer.update_single(&PARAMETER.into(), gradient, parameter)?));
    let moments = taken(optimizer);
    stepped?;
    moments
}

impl<O> Deref for QuantizedState<O> {
    type Target = O;

    fn deref(&self) -> &O {
        &self.optimizer
    }
}

impl<O> DerefMut for QuantizedState<O> {
    fn deref_mut(&mut self) -> &mut O {
        &mut self.optimizer
    }
}

impl<O: Optimizer> Updatable for QuantizedState<O> {
    fn state_projection(&mut self) -> Result<StateProjection<'_>, StateProjectionError> {
        self.moments.state_projection()
    }
}

impl<O: Optimizer> Optimizer for QuantizedState<O> {
    type State = Moments<O>;

    fn state(&self) -> &Moments<O> {
        &self.moments
    }

    fn state_mut(&mut self) -> &mut Moments<O> {
        &mut self.moments
    }

    fn update_single(&mut self, key: &Rc<str>, gradient: &Array, parameter: &mut Array) -> Result<(), Exception> {
        *parameter = self.transaction(|state| state.step(key, gradient, parameter, &mut None))?;
        Ok(())
    }

    /// Parameters and moments are what they were where it fails.
    fn update<M: ModuleParameters>(
        &mut self,
        model: &mut M,
        gradients: impl Borrow<FlattenedModuleParam>,
    ) -> Result<(), Exception> {
        let mut parameters = model.parameters_mut().flatten();
        // In one order, so that equal steps make equal graphs.
        let mut gradients: Vec<_> = gradients.borrow().iter().collect();
        gradients.sort_unstable_by_key(|(path, _)| *path);
        let stepped = self.transaction(|state| {
            let (mut rates, mut stepped) = (None, Vec::new());
            for (path, gradient) in gradients {
                let Some(parameter) = parameters.get(path) else { continue };
                stepped.push((path, state.step(path, gradient, parameter, &mut rates)?));
            }
            Ok(stepped)
        })?;
        for (path, array) in stepped {
            if let Some(parameter) = parameters.get_mut(path) {
                **parameter = array;
            }
        }
        Ok(())
    }
}
