//! Which parameters become which implicit arrays.

use mlx_rs::Array;
use mlx_rs::module::ModuleParameters;
use tacit_arrays::ste;
use tacit_core::{Parameters, Result, Value};

/// Makes implicit arrays of the parameters that `rule` chooses.
///
/// `rule` is called with each parameter's path, as mlx-rs flattens it (`layers.0.weight`), in alphabetical order;
/// `None` leaves the parameter dense. The module itself does not change.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{module::Module, nn, ops};
/// use tacit_arrays::Nf4Array;
/// use tacit_core::with_parameters;
/// use tacit_nn::quantized;
///
/// let mut linear = nn::Linear::new(64, 8)?;
/// let weights = quantized(&linear, |path, w| {
///     path.ends_with("weight").then(|| Ok(Nf4Array::quantize(w, 64)?.into()))
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
/// The rule fails.
pub fn quantized(
    module: &impl ModuleParameters,
    mut rule: impl FnMut(&str, &Array) -> Option<Result<Value>>,
) -> Result<Parameters> {
    let parameters = module.parameters().flatten();
    let mut paths: Vec<_> = parameters.into_iter().collect();
    paths.sort_by(|a, b| a.0.cmp(&b.0));
    paths
        .into_iter()
        .filter_map(|(path, array)| Some(rule(&path, array)?.map(|value| (path.to_string(), value))))
        .collect()
}

/// Makes straight-through arrays of the parameters that `rule` chooses: quantized in the forward pass, with the
/// gradient going to the float parameter.
///
/// Call it inside the loss, so that each step quantizes the parameters as they are then.
///
/// # Errors
///
/// The rule fails, or makes an array of another shape or dtype.
pub fn straight_through(
    module: &impl ModuleParameters,
    mut rule: impl FnMut(&str, &Array) -> Option<Result<Value>>,
) -> Result<Parameters> {
    // The rule is asked with the parameter whose gradient is stopped; what it leaves alone stays as it is.
    quantized(module, |path, master| {
        let mut chosen = true;
        let made = ste(|stopped: &Array| {
            rule(path, stopped).unwrap_or_else(|| {
                chosen = false;
                Ok(master.into())
            })
        })(master);
        chosen.then_some(made)
    })
}
