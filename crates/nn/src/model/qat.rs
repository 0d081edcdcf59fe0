//! Quantization-aware training: parameters that are prepared for a format, and converted to it.

use mlx_rs::module::ModuleParameters;
use mlx_rs::{Array, Dtype, ops, random, transforms};
use tacit_arrays::format::AnyFormat;
use tacit_arrays::{ActivationGranularity, Int8Inputs, Int8Training, Packed, Prepared, TrainedCodes, within_products};
use tacit_core::{Aval, Error, Result, Value, tree};

use super::Model;
use super::surgery::{IMPLICIT, nothing_made, relative_error};
use crate::array_leaves::ArrayLeaves;
use crate::lora::seed_of;
use crate::matrices::no_matrix;
use crate::report::{Outcome, Row};
use crate::rules::{Action, Rule};
use crate::{IntoRules, Parameters, Pattern, Rules, within};

/// How a parameter is trained for quantization: its format, whether its scales are trained, and whether activations and gradients
/// are rounded too.
///
/// ```
/// use tacit_arrays::ActivationGranularity;
/// use tacit_arrays::format::Affine;
/// use tacit_nn::{QatConfig, Rules};
///
/// // 4-bit weights whose scales are trained, and 8-bit activations with a scale for each token.
/// let aware = QatConfig::new(Affine { bits: 4, group: 32 }).trained_scales().int8_activations(ActivationGranularity::Token);
///
/// // 8-bit weights in the first layer and 4-bit ones in the others, all with trained scales.
/// let rules = Rules::new().quantize("layers.0.*", "affine:8:32")?.quantize("*", "affine:4:32")?;
/// let aware = QatConfig::from(&rules).trained_scales();
/// # Ok::<_, tacit_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct QatConfig {
    rules: Rules,
    trained_scales: bool,
    products: Products,
    seed: u64,
}

/// What products with a prepared parameter round beside it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Products {
    Nothing,
    Activations(ActivationGranularity),
    /// Activations and gradients, as integers.
    Int8,
    StochasticInt8,
}

impl QatConfig {
    /// Weights in `format` with scales that each step calculates, and activations that are not rounded.
    pub fn new(format: impl Into<AnyFormat>) -> Self {
        Self::by(Rules::all(format.into()))
    }

    fn by(rules: Rules) -> Self {
        Self { rules, trained_scales: false, products: Products::Nothing, seed: 0 }
    }

    /// The same with scales that are trained: see [`Prepared::with_trained_scales`].
    #[must_use]
    pub fn trained_scales(self) -> Self {
        Self { trained_scales: true, ..self }
    }

    /// The same with activations that are rounded to 8 bits: see [`Int8Inputs`].
    #[must_use]
    pub fn int8_activations(self, granularity: ActivationGranularity) -> Self {
        Self { products: Products::Activations(granularity), ..self }
    }

    /// The same with products of 8-bit integers in the forward and in the backward pass: see [`Int8Training`].
    ///
    /// The format is `int8`, which has a scale for each row, or `int8+stochastic`, whose codes are trained without a master.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::{module::Module, nn, ops};
    /// use tacit_arrays::format::Int8;
    /// use tacit_nn::{Model, ParameterFilter, QatConfig};
    ///
    /// let in_8_bits = QatConfig::new(Int8::default()).int8_training();
    /// let mut model = Model::new(nn::Linear::new(64, 8)?)?.prepare("weight", in_8_bits)?;
    /// let x = ops::ones::<f32>(&[2, 64])?;
    /// let (_loss, gradients) =
    ///     model.value_and_grad(ParameterFilter::default(), x, |m, x| m.forward(&x)?.square()?.mean(None))?;
    /// assert!(gradients.contains_key("weight.inner.master"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn int8_training(self) -> Self {
        Self { products: Products::Int8, ..self }
    }

    /// The same as [`int8_training`](Self::int8_training) with gradients that are rounded at random: see [`Int8Training::stochastic`].
    ///
    /// Each parameter has a key of its own, by the [seed](Self::seed).
    #[must_use]
    pub fn stochastic_int8_training(self) -> Self {
        Self { products: Products::StochasticInt8, ..self }
    }

    /// The same with another seed of the keys by which formats such as `int8+stochastic`, and gradients, are rounded; 0 if it is not said.
    ///
    /// A key also depends on the path.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// What is trained in place of the value of the parameter at `path`.
    fn prepared(&self, path: &str, value: &Value, format: &AnyFormat) -> Result<Value> {
        let inner = within_products(value);
        let prepared: Value = if format.stochastic().is_none() {
            let prepared = Prepared::from_value(inner, format)?;
            if self.trained_scales { prepared.with_trained_scales()?.into() } else { prepared.into() }
        } else if self.trained_scales {
            return Err(Error::invalid(
                format!("in the format {format} codes are trained, and no scales beside them"),
                "train scales with a format that rounds to the nearest, or leave `trained_scales` out",
            ));
        } else {
            TrainedCodes::from_value(inner, format, &random::key(seed_of(self.seed, path))?)?.into()
        };
        Ok(match self.products {
            Products::Nothing => prepared,
            Products::Activations(granularity) => Int8Inputs::new(prepared, granularity)?.into(),
            Products::Int8 => Int8Training::new(prepared)?.into(),
            Products::StochasticInt8 => {
                // The codes of the parameter are rounded by the seed of its path.
                let key = random::key(seed_of(self.seed, &format!("{path}.key")))?;
                Int8Training::new(prepared)?.stochastic(&key)?.into()
            }
        })
    }
}

/// What says how parameters are trained for quantization: a format, a value or its text, [`Rules`], or a [`QatConfig`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a format, nor the text of one, nor rules, nor a `QatConfig`"
)]
pub trait IntoQatConfig {
    /// The configuration; a format and rules have scales that each step calculates, and activations that are not rounded.
    ///
    /// # Errors
    ///
    /// The text is no format, or the format has no such options.
    fn into_config(self) -> Result<QatConfig>;
}

impl<R: IntoRules> IntoQatConfig for R {
    fn into_config(self) -> Result<QatConfig> {
        self.into_rules().map(QatConfig::by)
    }
}

impl IntoQatConfig for QatConfig {
    fn into_config(self) -> Result<QatConfig> {
        Ok(self)
    }
}

impl From<&Rules> for QatConfig {
    /// Each weight in the format that the rules give it.
    fn from(rules: &Rules) -> Self {
        Self::by(rules.clone())
    }
}

impl<M: ModuleParameters> Model<M> {
    /// Prepares the parameters that a pattern names for training in a format, or in formats by rules: each becomes a float master, which is
    /// quantized in each pass and gets straight-through gradients.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::module::Module;
    /// use mlx_rs::optimizers::Adam;
    /// use mlx_rs::{nn, ops};
    /// use tacit_nn::{Model, ParameterFilter};
    ///
    /// let mut model = Model::new(nn::Linear::new(64, 8)?)?.prepare("weight", "affine:2:64")?;
    /// let (x, mut optimizer) = (ops::ones::<f32>(&[2, 64])?, Adam::new(1e-2));
    /// for _ in 0..3 {
    ///     let (_loss, gradients) =
    ///         model.value_and_grad(ParameterFilter::default(), x.clone(), |m, x| m.forward(&x)?.square()?.mean(None))?;
    ///     model.update(&mut optimizer, &gradients)?;
    /// }
    /// let trained = model.forward(&x)?;
    /// model.convert()?;
    /// assert_eq!(model.get("weight")?.to_string(), "Affine(f32[8,64])");
    /// assert!(model.forward(&x)?.eq_exact(&trained)?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// What is no [matrix](Rules::is_matrix) stays as it is unless the pattern is its path; so does what the format cannot divide, and
    /// any implicit array but codes and what was prepared before: see [`Prepared::from_value`]. [`report`](Self::report) tells of each.
    ///
    /// A format that rounds at random, such as `int8+stochastic`, is trained without a master: the parameter is its codes, a
    /// [`TrainedCodes`]. Each [`update`](Self::update) builds its floats, moves them and rounds them to codes at random, by a key that
    /// is saved with the parameter. Its gradient is that of the floats, and is listed at the leaf `value`. Scales of half floats round
    /// small steps away: [`cast_scales`](Self::cast_scales) holds them in `f32` while they are trained.
    ///
    /// Scales that are trained are leaves of [`ParameterFilter::Scales`](crate::ParameterFilter::Scales), which is not among what is
    /// trained by default: a run trains `ParameterFilter::default().or(ParameterFilter::Scales)`, and freezes them from some step on
    /// by leaving them out.
    ///
    /// # Errors
    ///
    /// The text is no format, nothing is prepared, a parameter cannot be prepared for another reason than that the format does not fit
    /// it, scales are to be trained and a format has none that can be, or the policy forbids to build the master of a quantized
    /// parameter. The model is dropped then.
    pub fn prepare(
        mut self,
        pattern: impl TryInto<Pattern, Error: Into<Error>>,
        aware: impl IntoQatConfig,
    ) -> Result<Self> {
        let aware = aware.into_config()?;
        let rules = aware.rules.within(pattern)?;
        rules.supported()?;
        let (mut report, mut parameters, mut passed) = (self.report.clone(), Parameters::new(), Vec::new());
        for (path, value) in self.values()? {
            let aval = value.aval()?;
            let rule = rules.rule(&self.parts.ties.paths(&path), &aval);
            let Some(Rule { pattern, action: Action::Quantize(format) }) = rule else { continue };
            let before = value.nbytes();
            let reason = misfit(&path, &value, pattern.is_exact(), format);
            let outcome = if let Some(reason) = reason.map_err(|error| error.of_parameter(&path))? {
                passed.push((path.clone(), reason.clone()));
                Outcome::left(reason)
            } else {
                let prepared = aware.prepared(&path, &value, format);
                let prepared = prepared.map_err(|error| error.of_parameter(&path))?;
                if format.stochastic().is_some() {
                    // The floats that the codes were made of are nobody's any more.
                    tree::eval(&prepared).map_err(|error| error.of_parameter(&path))?;
                }
                parameters.insert(path.clone(), prepared);
                Outcome::Prepared { format: format.to_string() }
            };
            let after = parameters.get(&path).map_or(before, Value::nbytes);
            report.note(path, Row { aval, before, after, outcome });
        }
        if parameters.is_empty() {
            return Err(nothing_made(NOTHING_PREPARED, &passed, self.listed()));
        }
        report.unused = rules.unused(self.named().iter());
        self.put_all(parameters)?;
        self.report = report;
        Ok(self)
    }

    /// Stores each prepared parameter in its format, and drops masters and the keys by which codes are rounded: the model computes the
    /// same as before, bit for bit.
    ///
    /// # Errors
    ///
    /// Nothing is prepared, quantization is [switched off](Self::switch_quantization), so that the model does not compute
    /// what would be stored, or a master has an element that is not finite. The model is then what it was.
    pub fn convert(&mut self) -> Result<&mut Self> {
        let (mut report, mut parameters) = (self.report.clone(), Parameters::new());
        let values = self.values()?;
        if let Some((path, _)) = values.iter().find(|(_, value)| is_off(value)) {
            return Err(Error::invalid(
                format!(
                    "the parameter {path} is prepared, but its quantization is off: stored, it would compute something else"
                ),
                "switch it on with `Model::switch_quantization(true)`, and see what the model computes then",
            ));
        }
        for (path, value) in values {
            let (mut of, mut format) = (None, String::new());
            // Those of this process, where others have other parts, and none of an adapter's.
            let (mut bytes, mut elements) = (0, 0);
            let stored = within::mapped(&value, &mut |value| {
                let stored = if let Some(trained) = value.downcast::<TrainedCodes>() {
                    format = trained.format().stochastic().map_or_else(String::new, ToString::to_string);
                    trained.codes().clone()
                } else if let Some(prepared) = value.downcast::<Prepared>() {
                    let stored = prepared.convert()?;
                    of = Some((prepared.master().clone(), stored.clone()));
                    format = prepared.format().to_string();
                    stored
                } else {
                    return Ok(None);
                };
                bytes += stored.nbytes();
                elements += stored.aval()?.size();
                Ok(Some(stored))
            })?;
            let Some(stored) = stored else { continue };
            let leaves = ArrayLeaves::new(&path, &stored)?.leaves;
            transforms::eval(leaves.iter().map(|leaf| &leaf.array))
                .map_err(|error| Error::from(error).of_parameter(&path))?;
            let (aval, before, after) = (value.aval()?, value.nbytes(), stored.nbytes());
            let bits = 8.0 * bytes as f64 / elements.max(1) as f64;
            // What was trained as codes is what it was.
            let error = of.map_or(Ok(0.0), |(master, stored)| relative_error(&master, &stored))?;
            let outcome = Outcome::Quantized { format, bits, error };
            report.note(path.clone(), Row { aval, before, after, outcome });
            parameters.insert(path, stored);
        }
        if parameters.is_empty() {
            return Err(nothing_prepared());
        }
        self.put_all(parameters)?;
        self.report = report;
        Ok(self)
    }

    /// Switches the quantization of prepared parameters on or off, for a run that begins in floats: paths and the state of an
    /// optimizer stay the same.
    ///
    /// What is trained as its codes is always on.
    ///
    /// # Errors
    ///
    /// Nothing is prepared, or a parameter that is trained as its codes would be switched off: it has no floats. The model is
    /// then what it was.
    pub fn switch_quantization(&mut self, on: bool) -> Result<&mut Self> {
        if let Some((path, _)) = self.parts.implicit.iter().find(|(_, leaves)| !on && leaves.is_coded()) {
            return Err(Error::invalid(
                format!("the parameter {path} is trained as its codes, and has no floats to be trained in"),
                "prepare it in a format that rounds to the nearest for a run that begins in floats",
            ));
        }
        let parameters = self
            .mapped_parameters(|_, value| mapped(&value, &mut |prepared| Ok(prepared.clone().switched(on).into())))?;
        if parameters.is_empty() && !self.is_coded() {
            return Err(nothing_prepared());
        }
        self.put_all(parameters)?;
        Ok(self)
    }

    /// Folds a batch normalization into the layer before it: in evaluation the layer then computes what both computed, and
    /// the normalization is the identity.
    ///
    /// `layer` and `norm` are the paths of the modules, such as `layers.0`; the layer's outputs are the first axis of its
    /// weight, as those of a linear layer and of a convolution are, and `eps` is the normalization's own. With running mean `m`
    /// and variance `v`, weight `g` and bias `b`, the layer's weight is multiplied by `g / sqrt(v + eps)`, and its bias `c`
    /// becomes `(c - m) g / sqrt(v + eps) + b` (Jacob et al., 2018). Fold before the weight is prepared; while
    /// training goes on, keep the normalization in evaluation mode, which is also how its statistics are frozen.
    ///
    /// # Errors
    ///
    /// One of the parameters, the layer's bias included, is missing, not dense or [tied](Self::tie), or their shapes do not go
    /// together. The model is then what it was.
    pub fn fold_batch_norm(&mut self, layer: &str, norm: &str, eps: f32) -> Result<&mut Self> {
        let dense = |model: &Self, path: &str, name: &str| -> Result<(String, Array)> {
            let path = format!("{path}.{name}");
            match model.get(&path)? {
                Value::Dense(array) => Ok((path, array)),
                value @ Value::Implicit(_) => Err(Error::invalid(
                    format!("the parameter {path} is {value}, into which nothing is folded"),
                    "fold the normalization before the weight is quantized or prepared",
                )),
            }
        };
        if layer == norm {
            return Err(Error::invalid(
                format!("{layer} is named as the layer and as its normalization"),
                "name the normalization that follows the layer",
            ));
        }
        let of_norm = ["running_mean", "running_var", "weight", "bias"].map(|name| format!("{norm}.{name}"));
        for path in ["weight", "bias"].map(|name| format!("{layer}.{name}")).iter().chain(&of_norm) {
            if let [path, other, ..] = self.parts.ties.paths(self.parts.ties.parameter_path(path))[..] {
                return Err(Error::invalid(
                    format!("the parameter {path} is that of {other} as well, which would change with it"),
                    "fold the normalization before the parameters are tied, or keep it",
                ));
            }
        }
        let [weight, bias] = [dense(self, layer, "weight")?, dense(self, layer, "bias")?];
        let [mean, variance] = [dense(self, norm, "running_mean")?, dense(self, norm, "running_var")?];
        let [gain, shift] = [dense(self, norm, "weight")?, dense(self, norm, "bias")?];
        let outputs = weight.1.shape().first().copied().unwrap_or(1);
        for (path, array) in [&bias, &mean, &variance, &gain, &shift] {
            if array.shape() != [outputs] {
                return Err(Error::invalid(
                    format!("the parameter {path} is {}, and {} has {outputs} outputs", Aval::from(array), weight.0),
                    "name the normalization that follows the layer",
                ));
            }
        }
        let wide = |array: &Array| array.as_dtype(Dtype::Float32);
        let factor = wide(&gain.1)?.divide(wide(&variance.1)?.add(Array::from_f32(eps))?.sqrt()?)?;
        let mut column = vec![1; weight.1.ndim()];
        column[0] = outputs;
        let like = |array: Array, as_was: &Array| array.as_dtype(as_was.dtype());
        let folded = like(wide(&weight.1)?.multiply(factor.reshape(&column)?)?, &weight.1)?;
        let moved = wide(&bias.1)?.subtract(wide(&mean.1)?)?.multiply(&factor)?.add(wide(&shift.1)?)?;
        // A normalization of mean 0 and of variance 1, once eps is added.
        let one = ops::full::<f32>(&[outputs], Array::from_f32(1.0 - eps))?;
        let replaced = [
            (folded, weight),
            (like(moved, &bias.1)?, bias),
            (ops::zeros_like(&mean.1)?, mean),
            (like(one, &variance.1)?, variance),
            (ops::ones_like(&gain.1)?, gain),
            (ops::zeros_like(&shift.1)?, shift),
        ];
        transforms::eval(replaced.iter().map(|(array, _)| array))?;
        self.put_noted(replaced.into_iter().map(|(array, (path, _))| (path, array.into())).collect())?;
        Ok(self)
    }
}

/// Whether a prepared weight in it is not quantized.
fn is_off(value: &Value) -> bool {
    let Value::Implicit(array) = value else { return false };
    let itself = value.downcast::<Prepared>().is_some_and(|prepared| !prepared.is_on());
    itself || array.children().iter().any(|(_, child)| is_off(child))
}

const NOTHING_PREPARED: &str = "no parameter of the model is prepared";

fn nothing_prepared() -> Error {
    Error::invalid(NOTHING_PREPARED, "name some by `Model::prepare`")
}

/// Why a parameter is not prepared, if it is not.
fn misfit(path: &str, value: &Value, exact: bool, format: &AnyFormat) -> Result<Option<String>> {
    let aval = value.aval()?;
    let inner = within_products(value);
    let trained = inner.downcast::<Prepared>().is_some() || inner.downcast::<TrainedCodes>().is_some();
    let taken = trained || inner.family::<dyn Packed>().is_some();
    let reason = match (inner, no_matrix(path, &aval)) {
        (Value::Implicit(_), _) if !taken => IMPLICIT,
        _ if !aval.dtype.is_float() => "it is not float",
        (_, Some(reason)) if !exact => reason,
        _ => return format.stochastic().unwrap_or(&**format).misfit(&aval),
    };
    Ok(Some(reason.to_owned()))
}

/// The value with something else in place of each prepared weight in it, if there is one.
fn mapped(value: &Value, f: &mut dyn FnMut(&Prepared) -> Result<Value>) -> Result<Option<Value>> {
    within::mapped(value, &mut |value| value.downcast::<Prepared>().map(&mut *f).transpose())
}
