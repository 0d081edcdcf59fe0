//! Converts parameters from one format to another, and tells what that costs.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use mlx_rs::ops;
use tacit_arrays::format::{AnyFormat, Format, Fp4, Mxfp4, Mxfp8, Nested, Nf4, PackedArray, Parts, quantize_in_pieces};
use tacit_arrays::{Dynamic8Array, Packed, within_products};
use tacit_core::{Aval, Error, ImplicitArray, Result, Value};
use tacit_nn::{Parameters, Rules};

use crate::Distance;

/// What [`convert`] did with each parameter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConversionReport {
    /// The parameters that a rule gives a format, in order.
    pub converted: Vec<Converted>,
}

/// What [`convert`] did with one parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Converted {
    /// Its path.
    pub path: String,
    /// What it was, `Nf4(f32[8,64])`.
    pub from: String,
    /// What it is, with its format: `Affine(f32[8,64]) affine:8:64`.
    pub to: String,
    /// Whether its codes are the very ones that it had.
    pub kept: bool,
    /// The relative error: the norm of the difference over that of the old values.
    pub error: f32,
    /// The bytes that it had.
    pub nbytes_before: usize,
    /// The bytes that it has.
    pub nbytes: usize,
}

/// Converts each parameter to the format that the rules have for it, and reports the error that this adds.
///
/// A parameter that has the format already is kept as it is. One of another format with the same codes keeps its codes: scales that
/// were quantized become floats without a loss, or float scales are quantized. Any other is made dense, some rows at a time, and
/// quantized. The [policy](tacit_core::Policy) is asked for all that is made dense, and so it is for what is compared. Parameters that
/// no rule names stay as they are, and so does what is no [matrix](Rules::is_matrix) unless the pattern is its path.
///
/// What rounds beside a weight in its products, [`Int8Inputs`](tacit_arrays::Int8Inputs) or
/// [`Int8Training`](tacit_arrays::Int8Training), is left out where a rule names it, and the weight in it is converted.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::random;
/// use tacit_arrays::format::{Affine, Nf4};
/// use tacit_arrays::Nf4Array;
/// use tacit_io::convert;
/// use tacit_nn::{Parameters, Rules};
///
/// let x = random::normal::<f32>(&[8, 64], None, None, None)?;
/// let weight = Nf4Array::quantize(&x, 64)?;
/// let parameters = Parameters::from([("a.weight".to_owned(), weight.clone().into()), ("b.weight".to_owned(), weight.into())]);
///
/// let rules = Rules::new().quantize("a.*", Nf4 { block: 64, double: false })?.quantize("b.*", Affine { bits: 8, group: 64 })?;
/// let (converted, report) = convert(&parameters, &rules)?;
/// assert!(report.converted[0].kept);
/// assert_eq!(converted["b.weight"].to_string(), "Affine(f32[8,64])");
/// assert!(report.converted[1].error < 0.01);
/// println!("{report}");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// A parameter does not fit its format (its last axis is no whole number of groups, it is no float), it refuses to be made
/// dense, or the policy forbids it. The message names the parameter.
pub fn convert(parameters: &Parameters, rules: &Rules) -> Result<(Parameters, ConversionReport)> {
    let (mut results, mut report) = (Parameters::new(), ConversionReport::default());
    for (path, value) in parameters {
        let Some(format) = rules.format_of_matrix(path, &value.aval()?) else {
            results.insert(path.clone(), value.clone());
            continue;
        };
        let (value, row) = converted(path, value, format).map_err(|error| error.of_parameter(path))?;
        results.insert(path.clone(), value);
        report.converted.push(row);
    }
    Ok((results, report))
}

/// Makes every parameter dense, for a file of floats.
///
/// What is dense already stays the same array.
///
/// Nothing is lost: a dense array has the values that its parameter stands for.
///
/// # Errors
///
/// A parameter refuses to be made dense, or the [policy](tacit_core::Policy) forbids it.
pub fn dense(parameters: impl Borrow<Parameters>) -> Result<Parameters> {
    let dense = |(path, value): (&String, &Value)| {
        Ok((path.clone(), value.dense().map_err(|error| error.of_parameter(path))?.into()))
    };
    parameters.borrow().iter().map(dense).collect()
}

fn converted(path: &str, value: &Value, format: &AnyFormat) -> Result<(Value, Converted)> {
    let row = |result: &Value, kept: bool, error: f32| Converted {
        path: path.to_owned(),
        from: value.to_string(),
        to: format!("{result} {format}"),
        kept,
        error,
        nbytes_before: value.nbytes(),
        nbytes: result.nbytes(),
    };
    let value = within_products(value);
    if has_format(value, format)? {
        return Ok((value.clone(), row(value, true, 0.0)));
    }
    let text = format.to_string();
    let kept = [recoded::<Nf4>, recoded::<Fp4>, recoded::<Mxfp4>, recoded::<Mxfp8>];
    let kept = kept.iter().find_map(|recoded| recoded(value, &text)).transpose()?;
    let result = kept.clone().map_or_else(|| quantize_in_pieces(format, value), Ok)?;
    let error = Distance::of_values(value, &result)?.error as f32;
    if !error.is_finite() {
        let help = "leave it as it is, or choose a format whose scales hold its greatest numbers";
        return Err(Error::invalid(format!("what {format} loses of {value} is not finite"), help));
    }
    let row = row(&result, kept.is_some(), error);
    Ok((result, row))
}

/// A value with its own codes in another of the formats `F`, the one that `text` is, if both have the same blocks.
fn recoded<F: Format + FromStr>(value: &Value, text: &str) -> Option<Result<Value>> {
    let (array, format) = (value.downcast::<PackedArray<F>>()?, text.parse::<F>().ok()?);
    if array.format().block() != format.block() || array.stored().transposed {
        return None;
    }
    let old_scales = array.scales()?;
    let scales = || -> Result<Value> {
        Ok(match (old_scales.downcast::<Dynamic8Array>(), format.scheme().nested) {
            (Some(nested), None) => Value::from(nested.clone()).dense()?.into(),
            (None, Some(Nested::Dynamic8 { block })) => Dynamic8Array::quantize(&old_scales.dense()?, block)?.into(),
            _ => old_scales.clone(),
        })
    };
    let rewrap = || -> Result<Value> {
        let parts = Parts::new(array.codes().clone(), scales()?);
        Ok(PackedArray::<F>::from_parts(parts, format.clone(), value.aval()?)?.into())
    };
    Some(rewrap())
}

/// Whether a value is what this format would make of any array of its aval: the same type, fields and children, but for what
/// the children hold and which float type that has. The array that this is asked with is never evaluated.
fn has_format(value: &Value, format: &AnyFormat) -> Result<bool> {
    let Value::Implicit(array) = value else { return Ok(false) };
    let aval = array.aval()?;
    let Ok(Value::Implicit(expected)) = format.quantize(&ops::zeros_dtype(&aval.shape, aval.dtype)?) else {
        return Ok(false);
    };
    let child = |(name, child): (_, Value)| -> Result<_> {
        let Aval { shape, dtype } = child.aval()?;
        let stored = match &child {
            Value::Dense(_) if dtype.is_float() => None,
            _ => Some((dtype, child.to_string())),
        };
        Ok((name, shape, stored))
    };
    let children = |array: &dyn ImplicitArray| array.children().into_iter().map(child).collect::<Result<Vec<_>>>();
    Ok(array.aux_eq(&*expected) && children(&**array)? == children(&*expected)?)
}

impl fmt::Display for ConversionReport {
    /// A line a parameter, and the sum.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longest = |of: fn(&Converted) -> &str| self.converted.iter().map(|row| of(row).len()).max().unwrap_or(0);
        let (paths, froms, tos) = (longest(|row| &row.path), longest(|row| &row.from), longest(|row| &row.to));
        for Converted { path, from, to, kept, error, .. } in &self.converted {
            let lost = match (kept, *error > 0.0) {
                (true, false) => "kept".to_owned(),
                (true, true) => format!("codes kept, error {error:.2e}"),
                (false, _) => format!("error {error:.2e}"),
            };
            writeln!(f, "{path:paths$}  {from:froms$} -> {to:tos$}  {lost}")?;
        }
        let sum = |of: fn(&Converted) -> usize| self.converted.iter().map(of).sum::<usize>();
        let (kept, count) = (self.converted.iter().filter(|row| row.kept).count(), self.converted.len());
        write!(f, "{count} converted, {kept} kept, {} B -> {} B", sum(|row| row.nbytes_before), sum(|row| row.nbytes))
    }
}
