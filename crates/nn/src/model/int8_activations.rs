//! Products with codes that round activations to 8 bits.

use std::collections::BTreeMap;
use std::fmt;

use mlx_rs::module::ModuleParameters;
use serde::Serialize;
use tacit_arrays::Packed;
use tacit_core::{Error, Result, Value};

use super::Model;
use crate::{Pattern, within};

/// Which parameters round the activations of their products, and which do not: see [`Model::int8_activations`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RoundedActivations {
    /// The paths of those that do.
    pub rounding: Vec<String>,
    /// Why others that the pattern names do not, by path.
    pub left: BTreeMap<String, String>,
}

impl<M: ModuleParameters> Model<M> {
    /// Lets products with the parameters that a pattern names round their activations to 8 bits, where the codes of a parameter are
    /// multiplied as integers: faster for many rows, and less exact by about half a percent.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::nn;
    /// use tacit_nn::{Model, Rules};
    ///
    /// let layers = nn::Sequential::new().append(nn::Linear::new(64, 64)?).append(nn::Linear::new(64, 8)?);
    /// let rules = Rules::new().quantize("layers.0.weight", "nf4:64")?.quantize("*", "bf16")?;
    /// let mut model = Model::new(layers)?.quantize("*", &rules)?;
    /// let rounded = model.int8_activations("*")?;
    /// assert_eq!(rounded.rounding, ["layers.0.weight"]);
    /// assert_eq!(rounded.left["layers.1.weight"], "bf16 has no products with activations in 8 bits");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// What stands around the codes, such as an adapter or a stack of experts, is kept: the products with the codes within it round.
    /// Products with codes that lie as one stack of matrices stay in floats, and so does the backward pass; see
    /// [`PackedArray::with_int8_activations`]. What has one axis is passed by unless the pattern is its path.
    ///
    /// # Errors
    ///
    /// The pattern names no parameter, or none that it names has such products. The model is then what it was.
    ///
    /// [`PackedArray::with_int8_activations`]: tacit_arrays::format::PackedArray::with_int8_activations
    pub fn int8_activations(
        &mut self,
        pattern: impl TryInto<Pattern, Error: Into<Error>>,
    ) -> Result<RoundedActivations> {
        let pattern = pattern.try_into().map_err(Into::into)?;
        let mut rounded = RoundedActivations::default();
        let parameters = self.replacing(&pattern, |path, value| {
            if value.aval()?.shape.len() < 2 && !pattern.is_exact() {
                return Ok(None);
            }
            match rounding(&value)? {
                Ok(array) => {
                    rounded.rounding.push(path.to_owned());
                    Ok(Some(array))
                }
                Err(reason) => {
                    rounded.left.insert(path.to_owned(), reason);
                    Ok(None)
                }
            }
        })?;
        if parameters.is_empty() {
            return Err(Error::invalid(
                rounded.to_string(),
                "quantize weights first, in a format whose codes are multiplied as integers, such as nf4:64",
            ));
        }
        // The codes are the same, and so is what the report says of them.
        self.put_all(parameters)?;
        Ok(rounded)
    }
}

/// The value with rounding codes in it, or why there are none.
fn rounding(value: &Value) -> Result<Result<Value, String>> {
    let (mut rounds, mut refused) = (false, None);
    let rounded = within::mapped(value, &mut |value| {
        let Some(codes) = value.family::<dyn Packed>() else { return Ok(None) };
        match codes.rounding_activations() {
            Ok(array) => {
                rounds = true;
                Ok(Some(array.into()))
            }
            Err(error) => {
                refused = Some(error.clause());
                // As it is, for its scales may be codes, and are in no product.
                Ok(Some(value.clone()))
            }
        }
    })?;
    let none = if value.is_implicit() { "it holds no codes" } else { "it is dense" };
    Ok(rounded.filter(|_| rounds).ok_or_else(|| refused.unwrap_or_else(|| none.to_owned())))
}

impl fmt::Display for RoundedActivations {
    /// How many parameters round, and for each reason why others do not: the first of these, and how many more there are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rounding.len() {
            0 => f.write_str("no parameter rounds activations to 8 bits")?,
            1 => f.write_str("1 parameter rounds activations to 8 bits")?,
            count => write!(f, "{count} parameters round activations to 8 bits")?,
        }
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (path, reason) in &self.left {
            reasons.entry(reason).or_default().push(path);
        }
        for (reason, paths) in reasons {
            write!(f, "; {}", paths[0])?;
            if paths.len() > 1 {
                write!(f, " and {} more", paths.len() - 1)?;
            }
            write!(f, ": {reason}")?;
        }
        Ok(())
    }
}
