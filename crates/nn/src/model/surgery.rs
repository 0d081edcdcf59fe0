//! Changes of a model's parameters: formats by rules, other values.

use std::collections::BTreeMap;

use mlx_rs::Array;
use mlx_rs::module::ModuleParameters;
use mlx_rs::{Dtype, ops, transforms};
use tacit_arrays::format::{AnyFormat, RowPieces, quantize_in_pieces};
use tacit_core::{Aval, Error, Policy, Result, Value};

use super::Model;
use super::ties::same;
use crate::matrices::{ONE_AXIS, no_matrix};
use crate::parameters::some_of;
use crate::report::{Outcome, Row};
use crate::rules::{Action, Rule};
use crate::{IntoRules, Parameters, Pattern};

/// Bytes of dense arrays whose codes are put in their places together: to find these costs as much for one as for many.
const WAITING: usize = 64 << 20;

/// The array of a dense parameter in a format that fits it.
pub(super) type ByPath<'q> = dyn Fn(&str, &AnyFormat, &Value) -> Result<Value> + 'q;

/// What may be missing when values are assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Nothing: every parameter is given.
    Refuse,
    /// What is not given stays as it is.
    Keep,
}

impl<M: ModuleParameters> Model<M> {
    /// Quantizes the parameters that a pattern names, in one format or by rules, and drops the dense arrays.
    ///
    /// What is no [matrix](crate::Rules::is_matrix), such as a bias, stays as it is unless the pattern is its path; so does what the format
    /// cannot divide, and what is implicit already. [`report`](Self::report) tells of each.
    ///
    /// Each is quantized and compared with what it was, one after the other, and the dense arrays go as the codes take their
    /// places. Then every array of the model is evaluated, so that it can go to another thread.
    ///
    /// # Errors
    ///
    /// The text is no pattern or no format, a format rounds at random, as `nf4:64+stochastic` does, nothing is quantized, a parameter
    /// has an element that is not finite, or it cannot be quantized for another reason than that the format does not fit it. The model
    /// is dropped then.
    pub fn quantize(self, pattern: impl TryInto<Pattern, Error: Into<Error>>, formats: impl IntoRules) -> Result<Self> {
        self.quantize_by(pattern, formats, &|path, format, value| {
            quantize_in_pieces(format, value).map_err(|error| error.of_parameter(path))
        })
    }

    /// Quantizes as [`quantize`](Self::quantize) does, by `quantizer`.
    pub(super) fn quantize_by(
        mut self,
        pattern: impl TryInto<Pattern, Error: Into<Error>>,
        formats: impl IntoRules,
        quantizer: &ByPath<'_>,
    ) -> Result<Self> {
        let rules = formats.into_rules()?.within(pattern)?;
        let mut report = self.report.clone();
        let (mut parameters, mut refusals) = (Parameters::new(), Vec::new());
        let (mut waiting, mut quantizes) = (0, false);
        for (path, value) in self.values()? {
            let rule = rules.rule(&self.parts.ties.paths(&path), &value.aval()?);
            let (quantized, row) = applied(&path, &value, rule, quantizer)?;
            if let (Some(Rule { action: Action::Quantize(_), .. }), Outcome::Left { reason }) = (rule, &row.outcome) {
                refusals.push((path.clone(), reason.clone()));
            }
            if let Some(quantized) = quantized {
                parameters.insert(path.clone(), quantized);
                (waiting, quantizes) = (waiting + value.nbytes(), true);
            } else if rule.is_none() && report.rows.contains_key(&path)
                || value.is_implicit() && report.has_format(&path)
            {
                continue;
            }
            report.note(path, row);
            drop(value);
            if waiting >= WAITING {
                self.put_all(std::mem::take(&mut parameters))?;
                waiting = 0;
            }
        }
        if !quantizes {
            return Err(nothing_made("the rules quantize no parameter of the model", &refusals, self.listed()));
        }
        report.unused = rules.unused(self.named().iter());
        self.put_all(parameters)?;
        self.report = report;
        // What is lazy belongs to this thread, and whoever has a model may send it to another.
        self.eval()?;
        Ok(self)
    }

    /// Replaces the parameters that a pattern names; where `f` returns `None`, the parameter stays as it is.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::{Dtype, nn};
    /// use tacit_nn::Model;
    ///
    /// let mut model = Model::new(nn::Linear::new(4, 4)?)?;
    /// model.replace("*", |_, value| Ok(Some(value.dense()?.as_dtype(Dtype::Bfloat16)?.into())))?;
    /// assert_eq!(model.get("weight")?.to_string(), "bf16[4,4]");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The pattern names no parameter, `f` fails, or a value has another shape. The model is then what it was.
    pub fn replace(
        &mut self,
        pattern: impl TryInto<Pattern, Error: Into<Error>>,
        f: impl FnMut(&str, Value) -> Result<Option<Value>>,
    ) -> Result<&mut Self> {
        let pattern = pattern.try_into().map_err(Into::into)?;
        let parameters = self.replacing(&pattern, f)?;
        self.put_noted(parameters)?;
        Ok(self)
    }

    /// What `f` makes of the parameters that a pattern names, where it makes something of them.
    ///
    /// # Errors
    ///
    /// The pattern names no parameter, or `f` fails.
    pub(super) fn replacing(
        &self,
        pattern: &Pattern,
        mut f: impl FnMut(&str, Value) -> Result<Option<Value>>,
    ) -> Result<Parameters> {
        let mut named = false;
        let parameters = self.mapped_parameters(|path, value| {
            if !pattern.names(&self.parts.ties.paths(path), &value.aval()?) {
                return Ok(None);
            }
            named = true;
            f(path, value)
        })?;
        if !named {
            let message = format!("the pattern {pattern} names no parameter of the model");
            return Err(Error::invalid(message, self.listed()));
        }
        Ok(parameters)
    }

    /// What `f` makes of parameters, where it makes something of them.
    pub(crate) fn mapped_parameters(
        &self,
        mut f: impl FnMut(&str, Value) -> Result<Option<Value>>,
    ) -> Result<Parameters> {
        let map = |(path, value): (String, Value)| f(&path, value).map(|mapped| Some((path, mapped?))).transpose();
        self.values()?.into_iter().filter_map(map).collect()
    }

    /// Replaces a parameter by a value of the same shape; its float type and its format may differ.
    ///
    /// # Errors
    ///
    /// The model has no parameter of this path, or one of another shape; or one of the two is of floats and the other is not,
    /// as codes are that were read without their scales.
    pub fn set(&mut self, path: &str, value: impl Into<Value>) -> Result<()> {
        self.put_noted(Parameters::from([(path.to_owned(), value.into())]))
    }

    /// Replaces the model's parameters by values, such as those of a checkpoint.
    ///
    /// # Errors
    ///
    /// As for [`set`](Self::set); two paths of one parameter, which are [tied](Self::tie), are given different values; or a
    /// parameter is not given, unless that is kept. The model is then what it was.
    pub fn assign(&mut self, parameters: Parameters, missing: Missing) -> Result<()> {
        if missing == Missing::Refuse {
            let avals = self.avals();
            let is_given =
                |path: &String| self.parts.ties.paths(path).iter().any(|path| parameters.contains_key(*path));
            let lacking: Vec<&String> = avals.keys().filter(|path| !is_given(path)).collect();
            let unknown = parameters.keys().filter(|path| !avals.contains_key(self.parts.ties.parameter_path(path)));
            let unknown: Vec<&String> = unknown.collect();
            if !lacking.is_empty() {
                let message = format!("parameters of the model are not given: {}", some_of(lacking));
                let surplus = if unknown.is_empty() {
                    String::new()
                } else {
                    format!("; what is given, and the model does not have: {}", some_of(unknown))
                };
                return Err(Error::invalid(
                    message + &surplus,
                    "give them under the paths of the model, or let them be as they are with `Missing::Keep`",
                ));
            }
        }
        self.put_noted(parameters)
    }

    /// Puts all of these in their places and notes what each is now, or does neither.
    pub(super) fn put_noted(&mut self, parameters: Parameters) -> Result<()> {
        let report = self.noted(&parameters);
        self.put_all(parameters)?;
        self.report = report;
        Ok(())
    }

    /// Puts all of these in their places, or none.
    pub(crate) fn put_all(&mut self, parameters: Parameters) -> Result<()> {
        let avals = self.avals();
        let mut by_path: BTreeMap<String, (String, Value)> = BTreeMap::new();
        for (path, value) in parameters {
            let parameter = self.parts.ties.parameter_path(&path).to_owned();
            let expected = avals.get(&parameter).ok_or_else(|| self.no(&path))?;
            fits(&path, expected, &value)?;
            match by_path.get(&parameter) {
                Some((other, known)) if !same(known, &value)? => {
                    return Err(Error::invalid(
                        format!("the parameters {other} and {path} are tied, and were given different values"),
                        "give one of them, or make the model without the tie",
                    ));
                }
                Some(_) => {}
                None => drop(by_path.insert(parameter, (path, value))),
            }
        }
        self.put(by_path.into_iter().map(|(parameter, (_, value))| (parameter, value)).collect())
    }

    /// All paths of each parameter, its own first, and its aval.
    pub(super) fn named(&self) -> Vec<(Vec<&str>, Aval)> {
        let known = |path: &str| self.parts.places.paths.get(self.parts.places.find(path)?).map(String::as_str);
        let named = |(path, aval): (String, Aval)| Some((self.parts.ties.paths(known(&path)?), aval));
        self.avals().into_iter().filter_map(named).collect()
    }
}

/// Checks that a value may stand in the place of a parameter.
fn fits(path: &str, expected: &Aval, value: &Value) -> Result<()> {
    let found = value.aval()?;
    let message = || format!("the parameter {path} is {expected} and was given {value}");
    if expected.shape != found.shape {
        let help = "give a value of the parameter's own shape; its float type and format may be others";
        return Err(Error::invalid(message(), help));
    }
    if expected.dtype.is_float() != found.dtype.is_float() {
        let help =
            "give floats for floats: codes of a checkpoint are read with their scales, by the reader of its format";
        return Err(Error::invalid(message(), help));
    }
    Ok(())
}

/// Why a rule passes by codes, and whatever else is not dense.
pub(super) const IMPLICIT: &str = "it is implicit already";

/// The error of rules that make nothing of any parameter: why not of what they name, once for each reason.
pub(super) fn nothing_made(what: &str, left: &[(String, String)], paths: String) -> Error {
    let mut reasons: Vec<&(String, String)> = Vec::new();
    for one in left {
        if reasons.iter().all(|(_, reason)| *reason != one.1) {
            reasons.push(one);
        }
    }
    if reasons.is_empty() {
        return Error::invalid(what, paths);
    }
    let has = |why: &str| reasons.iter().any(|(_, reason)| reason == why);
    let (one_axis, implicit) = (has(ONE_AXIS), has(IMPLICIT));
    let reasons: Vec<String> = reasons.iter().take(4).map(|(path, reason)| format!("{path}: {reason}")).collect();
    let exact = if one_axis { "; what has one axis is quantized where a rule names its very path" } else { "" };
    let codes =
        if implicit { "; codes are quantized anew by `tacit quantize`, or once they are made dense" } else { "" };
    Error::invalid(
        format!("{what}: {}", reasons.join("; ")),
        format!("name other parameters or another format: {paths}{exact}{codes}"),
    )
}

/// What a rule makes of a parameter, if anything.
fn applied(path: &str, value: &Value, rule: Option<&Rule>, quantizer: &ByPath<'_>) -> Result<(Option<Value>, Row)> {
    let aval = value.aval()?;
    let left = |reason: &str| {
        let bytes = value.nbytes();
        let row = Row { aval: aval.clone(), before: bytes, after: bytes, outcome: Outcome::left(reason) };
        Ok((None, row))
    };
    let format = match rule {
        None => return left("no rule names it"),
        Some(Rule { action: Action::Skip, .. }) => return left("a rule skips it"),
        Some(Rule { action: Action::Quantize(format), .. }) => format,
    };
    let Value::Dense(array) = value else { return left(IMPLICIT) };
    if !aval.dtype.is_float() {
        return left("it is not float");
    }
    if let Some(reason) = no_matrix(path, &aval).filter(|_| !rule.is_some_and(|rule| rule.pattern.is_exact())) {
        return left(reason);
    }
    match format.misfit(&aval) {
        Ok(None) => {}
        Ok(Some(reason)) => return left(&reason),
        // There is no key to round by, whatever the parameter is.
        Err(error) if format.stochastic().is_some() => return Err(error),
        Err(error) => return Err(error.of_parameter(path)),
    }
    let quantized = quantizer(path, format, value)?;
    let error = relative_error(array, &quantized).map_err(|error| error.of_parameter(path))?;
    let after = quantized.nbytes();
    let bits = 8.0 * after as f64 / array.size().max(1) as f64;
    let outcome = Outcome::Quantized { format: format.to_string(), bits, error };
    Ok((Some(quantized), Row { aval, before: array.nbytes(), after, outcome }))
}

/// The norm of the difference over that of the array, in pieces; evaluates both.
///
/// # Errors
///
/// One of the two has an element that is not finite.
pub(crate) fn relative_error(array: &Array, quantized: &Value) -> Result<f64> {
    // It is asked for, and lives for the length of this call.
    let _allow = Policy::Allow.scope();
    let (dense, stored) = (RowPieces::new(&array.into())?, RowPieces::new(quantized)?);
    let mut largest = Array::from_f32(0.0);
    for rows in dense.ranges() {
        let both =
            [dense.get(rows.clone())?.as_dtype(Dtype::Float32)?, stored.get(rows.clone())?.as_dtype(Dtype::Float32)?];
        for x in both {
            largest = ops::maximum(&largest, x.abs()?.max(None)?)?;
        }
        transforms::eval([&largest])?;
        dense.forget(rows)?;
    }
    // The squares of numbers up to 1 have a sum.
    let unit = ops::maximum(&largest, Array::from_f32(f32::MIN_POSITIVE))?;
    let mut norms = [0f64; 2];
    for rows in dense.ranges() {
        let wide = dense.get(rows.clone())?.as_dtype(Dtype::Float32)?.divide(&unit)?;
        let difference = stored.get(rows.clone())?.as_dtype(Dtype::Float32)?.divide(&unit)?.subtract(&wide)?;
        let sums = [difference.square()?.sum(None)?, wide.square()?.sum(None)?];
        transforms::eval(&sums)?;
        for (norm, sum) in norms.iter_mut().zip(sums) {
            *norm += f64::from(sum.item_exact::<f32>());
        }
        dense.forget(rows)?;
    }
    let [difference, original] = norms;
    if ![difference, original, f64::from(largest.item_exact::<f32>())].iter().all(|norm| norm.is_finite()) {
        return Err(Error::invalid(
            format!("{quantized} has an element that is not finite"),
            "replace NaN and infinities before quantizing",
        ));
    }
    Ok(if difference == 0.0 { 0.0 } else { (difference / original).sqrt() })
}
