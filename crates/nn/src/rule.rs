//! Which parameters become which implicit arrays.

use mlx_rs::Array;
use mlx_rs::module::ModuleParameters;
use tacit_arrays::ste;
use tacit_core::{Error, Result, Value};

use crate::Parameters;
use crate::parameters::{listed, sorted};

/// Makes implicit arrays of the parameters that `rule` chooses.
///
/// `rule` is called with each parameter's path, as mlx-rs flattens it (`layers.0.weight`), in alphabetical order;
/// `None` leaves the parameter dense. The module itself does not change.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{module::Module, nn, ops};
/// use tacit_arrays::Nf4Array;
/// use tacit_nn::{quantized, with_parameters};
///
/// let mut linear = nn::Linear::new(64, 8)?;
/// let weights = quantized(&linear, |path, w| {
///     Ok(if path.ends_with("weight") { Some(Nf4Array::quantize(w, 64)?.into()) } else { None })
/// })?;
/// let x = ops::ones::<f32>(&[1, 64])?;
/// let y = with_parameters(&mut linear, &weights, |linear| linear.forward(&x))?;
/// assert_eq!(y.to_string(), "f32[1,8]");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The rule fails, or chooses nothing: a model that stays dense unnoticed is worse than an error.
pub fn quantized(
    module: &impl ModuleParameters,
    mut rule: impl FnMut(&str, &Array) -> Result<Option<Value>>,
) -> Result<Parameters> {
    let parameters = sorted(module);
    let mut chosen = Parameters::new();
    for (path, array) in &parameters {
        if let Some(value) = rule(path, array)? {
            chosen.insert(path.to_string(), value);
        }
    }
    if chosen.is_empty() {
        return Err(Error::invalid(
            "the rule chose no parameter of the module",
            listed(parameters.iter().map(|(path, _)| path)),
        ));
    }
    Ok(chosen)
}

/// Makes straight-through arrays of the parameters that `rule` chooses: quantized in the forward pass, with the
/// gradient going to the float parameter.
///
/// Call it inside the loss, so that each step quantizes the parameters as they are then.
///
/// # Errors
///
/// The rule fails, chooses nothing, or makes an array of another shape or dtype.
pub fn straight_through(
    module: &impl ModuleParameters,
    mut rule: impl FnMut(&str, &Array) -> Result<Option<Value>>,
) -> Result<Parameters> {
    // The rule is asked with the parameter whose gradient is stopped; what it leaves alone stays as it is.
    quantized(module, |path, master| {
        let mut chosen = true;
        let value = ste(master, |stopped| {
            let quantized = rule(path, stopped)?;
            chosen = quantized.is_some();
            Ok::<_, Error>(quantized.unwrap_or_else(|| master.into()))
        })?;
        Ok(chosen.then_some(value))
    })
}
