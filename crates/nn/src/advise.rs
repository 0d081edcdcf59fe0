//! Formats under a budget of bits, by what each costs each parameter.

mod budget;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use mlx_rs::{Array, Dtype, transforms};
use serde::Serialize;
use tacit_arrays::format::{AnyFormat, RowPieces, quantize_in_pieces};
use tacit_core::{Aval, Error, Policy, Result, Value};

use crate::matrices::no_matrix;
use crate::report::printed;
use crate::{Observations, Parameters, Pattern, Rules};
use budget::{Choice, choose};

/// Chooses a format for each parameter, so that all together take at most so many bits and the error is small.
///
/// Each parameter is quantized in each format, and its error is what products with it then lose: for `y = x W^T` the
/// squares of all elements of `W - W'`, each times the mean square of its channel of `x`, which is 1 where no inputs are
/// given. Channels are taken for uncorrelated, and the errors of parameters for independent, so that they add up; what a
/// loss makes of them is not asked. An embedding is taken for such a product, too.
///
/// The sum is made small by going along the convex hulls of error over bytes, the steepest step first, and then by exchanges
/// between two parameters. That need not be the least sum; [`Advice::bound`] tells how much less no choice can have.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::random;
/// use tacit_nn::{Advisor, Parameters};
///
/// let weight = |seed| random::normal::<f32>(&[64, 128], None, None, &random::key(seed)?);
/// let parameters = Parameters::from([
///     ("a.weight".to_owned(), weight(0)?.multiply(mlx_rs::Array::from_f32(10.0))?.into()),
///     ("b.weight".to_owned(), weight(1)?.into()),
/// ]);
/// let advice = Advisor::new(["affine:2:64".parse()?, "affine:6:64".parse()?]).advise(&parameters, 5.0)?;
/// assert_eq!(advice.bits, 5.0);
/// assert_eq!(advice.rows["a.weight"].format.as_deref(), Some("affine:6:64"));
/// assert_eq!(advice.rows["b.weight"].format.as_deref(), Some("affine:2:64"));
/// assert_eq!(serde_json::to_string(&advice.rules()?).unwrap(), r#"{"a.weight":"affine:6:64","b.weight":"affine:2:64"}"#);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Advisor {
    formats: Vec<AnyFormat>,
    inputs: Parameters,
    /// Mean squares of channels, by path.
    squares: BTreeMap<String, Array>,
}

/// What [`Advisor`] chose.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// All parameters by path.
    pub rows: BTreeMap<String, Advised>,
    /// Bits that all parameters take, for each of their elements.
    pub bits: f64,
    /// The relative error of all parameters: the root of the sum of the squares that are lost over the sum of the squares of the
    /// parameters, both weighted by the inputs.
    pub error: f64,
    /// No choice within the budget has an error below this.
    pub bound: f64,
}

/// The format that an [`Advisor`] chose for one parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advised {
    /// Its shape and dtype, as in `f32[4,8]`.
    #[serde(serialize_with = "printed")]
    pub aval: Aval,
    /// The text of its format; `None` where it stays as it is.
    pub format: Option<String>,
    /// Bits that it takes for each element.
    pub bits: f64,
    /// As [`Advice::error`], of this parameter.
    pub error: f64,
    /// Its part of the squares that all parameters lose, from 0 to 1.
    pub share: f64,
}

/// A parameter that formats may hold, and what each would make of it.
struct Measured {
    path: String,
    aval: Aval,
    /// What it is, weighted by the inputs.
    energy: f64,
    /// The format of each choice.
    formats: Vec<Option<String>>,
    choices: Vec<Choice>,
}

impl Advisor {
    /// An advisor that gives each parameter one of these formats, or leaves it as it is.
    pub fn new(formats: impl IntoIterator<Item = AnyFormat>) -> Self {
        Self { formats: formats.into_iter().collect(), inputs: Parameters::new(), squares: BTreeMap::new() }
    }

    /// The same with what parameters are multiplied with: activations `[.., k]` for the path of a weight `[.., k]`.
    #[must_use]
    pub fn with_inputs(self, inputs: Parameters) -> Self {
        Self { inputs, ..self }
    }

    /// The same with what [`Model::observe`](crate::Model::observe) saw: bits go where the products lose most by coarse codes.
    ///
    /// [`Model::observe_squares`](crate::Model::observe_squares) records enough for it. A parameter that met no product counts as one
    /// of inputs that are 1.
    ///
    /// # Errors
    ///
    /// A parameter met activations that were not finite, or was multiplied along another axis than its last.
    pub fn with_observations(mut self, observations: &Observations) -> Result<Self> {
        for path in observations.paths().filter(|path| observations.met(path)) {
            self.squares.insert(path.to_owned(), observations.get(path)?.mean_squares()?);
        }
        // What is lazy would hold the observations, which are matrices.
        transforms::eval(self.squares.values())?;
        Ok(self)
    }

    /// Formats for these parameters, at most `bits` for each element of them all together.
    ///
    /// What is no [matrix](Rules::is_matrix), what is of integers and what is implicit already stays as it is, and its bits count; so
    /// does what none of the formats fits. Each parameter is quantized in each format, one after the other.
    ///
    /// # Errors
    ///
    /// No choice takes so few bits; there are inputs for a path that no parameter has, or they do not fit the parameter; a parameter
    /// has an element that is not finite; a format has no such options, or rounds at random; or a parameter cannot be quantized for
    /// another reason than that a format does not fit it.
    pub fn advise(&self, parameters: &Parameters, bits: f64) -> Result<Advice> {
        if let Some(path) = self.inputs.keys().chain(self.squares.keys()).find(|path| !parameters.contains_key(*path)) {
            let help = "name inputs by the path of the parameter that they are multiplied with";
            return Err(Error::invalid(format!("there are inputs for {path}, and no such parameter"), help));
        }
        let measured: Vec<Measured> =
            parameters.iter().map(|(path, value)| self.measured(path, value)).collect::<Result<_>>()?;
        let elements: usize = measured.iter().map(|of| of.aval.size()).sum();
        let things: Vec<&[Choice]> = measured.iter().map(|of| &of.choices[..]).collect();
        // A product that would be whole may be rounded to a little less.
        let allowed = (bits * elements as f64 / 8.0 * (1.0 + 4.0 * f64::EPSILON)).max(0.0) as u64;
        let Some(chosen) = choose(&things, allowed) else {
            let least: u64 = things.iter().filter_map(|choices| choices.iter().map(|of| of.bytes).min()).sum();
            // Not less than it is, so that who asks for that gets it.
            let least = (8000.0 * least as f64 / elements as f64).ceil() / 1000.0;
            return Err(Error::invalid(
                format!("no choice of these formats takes {bits} bits an element or fewer: the least is {least:.3}"),
                "allow more bits, or name a format of fewer; parameters that no format fits stay as they are, and count",
            ));
        };
        let energy: f64 = measured.iter().map(|of| of.energy).sum();
        let relative = |cost: f64, energy: f64| if cost == 0.0 { 0.0 } else { (cost / energy).sqrt() };
        let (mut rows, mut bytes, mut cost) = (BTreeMap::new(), 0, 0.0);
        for (of, &place) in measured.iter().zip(&chosen.places) {
            bytes += of.choices[place].bytes;
            cost += of.choices[place].cost;
        }
        for (of, &place) in measured.into_iter().zip(&chosen.places) {
            let choice = &of.choices[place];
            let row = Advised {
                format: of.formats[place].clone(),
                bits: 8.0 * choice.bytes as f64 / of.aval.size().max(1) as f64,
                error: relative(choice.cost, of.energy),
                share: if cost == 0.0 { 0.0 } else { choice.cost / cost },
                aval: of.aval,
            };
            rows.insert(of.path, row);
        }
        let bits = 8.0 * bytes as f64 / elements.max(1) as f64;
        Ok(Advice { rows, bits, error: relative(cost, energy), bound: relative(chosen.bound, energy) })
    }

    fn measured(&self, path: &str, value: &Value) -> Result<Measured> {
        let aval = value.aval()?;
        let mut of = Measured {
            path: path.to_owned(),
            energy: 0.0,
            formats: vec![None],
            choices: vec![Choice { bytes: value.nbytes() as u64, cost: 0.0 }],
            aval,
        };
        let stays = value.is_implicit() || !of.aval.dtype.is_float() || of.aval.size() == 0;
        if stays || no_matrix(path, &of.aval).is_some() {
            return Ok(of);
        }
        let from_inputs = self.inputs.get(path).map(|inputs| mean_squares(path, inputs, &of.aval)).transpose()?;
        let squares = from_inputs.or_else(|| self.squares.get(path).cloned());
        let pieces = RowPieces::new(value)?;
        let wide = |rows: Range<i32>| -> Result<Array> { Ok(pieces.get(rows)?.as_dtype(Dtype::Float32)?) };
        of.energy = energy(&pieces, squares.as_ref(), wide)?;
        if !of.energy.is_finite() {
            return Err(Error::invalid(
                format!("{path} has an element that is not finite"),
                "mend it before it is quantized",
            ));
        }
        for format in &self.formats {
            format.supported()?;
            // What is built is asked for, and lives for the length of this turn.
            let _allow = Policy::Allow.scope();
            // What the format does not fit, rows that are no whole groups, is no choice.
            if format.misfit(&of.aval)?.is_some() {
                continue;
            }
            let quantized = quantize_in_pieces(format, value).map_err(|error| error.of_parameter(path))?;
            let bytes = quantized.nbytes() as u64;
            let quantized = RowPieces::new(&quantized)?;
            let lost = |rows: Range<i32>| -> Result<Array> {
                let decoded = quantized.get(rows.clone())?.as_dtype(Dtype::Float32)?;
                Ok(decoded.subtract(wide(rows)?)?)
            };
            let cost = energy(&pieces, squares.as_ref(), lost)?;
            of.formats.push(Some(format.to_string()));
            of.choices.push(Choice { bytes, cost });
        }
        Ok(of)
    }
}

/// The mean squares of the channels of what a parameter is multiplied with.
fn mean_squares(path: &str, inputs: &Value, aval: &Aval) -> Result<Array> {
    let found = inputs.aval()?;
    if found.shape.is_empty() || found.shape.last() != aval.shape.last() || found.size() == 0 || !found.dtype.is_float()
    {
        return Err(Error::invalid(
            format!("{path} is {aval}, and its inputs {found}"),
            "give floats whose last axis is that of the parameter",
        ));
    }
    let rows = inputs.dense()?.as_dtype(Dtype::Float32)?.reshape(&[-1, aval.shape.last().copied().unwrap_or(1)])?;
    Ok(rows.square()?.mean_axis(0, None)?)
}

/// The sum of the squares of what `part` gives of each piece of rows, each times that of its channel.
fn energy(pieces: &RowPieces, squares: Option<&Array>, part: impl Fn(Range<i32>) -> Result<Array>) -> Result<f64> {
    let mut energy = 0.0;
    for rows in pieces.ranges() {
        let squared = part(rows.clone())?.square()?;
        let weighted = squares.map_or(Ok(squared.clone()), |squares| squared.multiply(squares))?;
        // Of each row first, so that no sum of millions is taken in `f32`.
        let sums = weighted.sum_axis(-1, None)?.reshape(&[-1])?;
        transforms::eval([&sums])?;
        energy = sums.try_as_slice::<f32>()?.iter().copied().map(f64::from).fold(energy, |sum, row| sum + row);
        pieces.forget(rows)?;
    }
    Ok(energy)
}

impl Advice {
    /// The choice as rules: each parameter by its path, without those that stay as they are.
    ///
    /// # Errors
    ///
    /// The text of a row is no format. Those that an [`Advisor`] gave are.
    pub fn rules(&self) -> Result<Rules> {
        self.rows.iter().try_fold(Rules::new(), |rules, (path, row)| match &row.format {
            Some(format) => rules.quantize(Pattern::exact(path), format),
            None => Ok(rules),
        })
    }
}

impl fmt::Display for Advice {
    /// One line with the bits, the error and the bound.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bits, error, bound, .. } = self;
        write!(f, "{bits:.3} bits an element, error {error:.5}; no choice within the budget has less than {bound:.5}")
    }
}
