//! Activations that gradients read from codes, by the paths of parameters.

use mlx_rs::Array;
use mlx_rs::module::ModuleParameters;
use tacit_arrays::SavedInputs;
use tacit_arrays::format::AnyFormat;
use tacit_core::{Error, Result};

use super::Model;
use super::saving::can_save;
use crate::rules::Action;
use crate::{IntoRules, Pattern};

impl<M: ModuleParameters> Model<M> {
    /// Lets gradients read the activations of the parameters that a pattern names from codes, in one format or by rules.
    ///
    /// Those of a parameter are what its ops read beside it, and what is made of their results up to the ops of the next
    /// parameters: see [`SavedInputs`]. So a rule for `layers.*` is one for all that the layers hold for the backward pass, and
    /// what it does not name, such as the last norm and the head, is exact. The forward pass is the same to the bit. A rule
    /// that skips a parameter takes its format away.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::module::Module;
    /// use mlx_rs::{nn, ops};
    /// use tacit_nn::{Model, ParameterFilter};
    ///
    /// let layers = nn::Sequential::new().append(nn::Linear::new(64, 64)?).append(nn::Relu).append(nn::Linear::new(64, 8)?);
    /// let mut model = Model::new(layers)?;
    /// model.saved_activations("layers.*", "affine:8:64")?;
    /// let x = ops::ones::<f32>(&[32, 64])?;
    /// let (_, gradients) =
    ///     model.value_and_grad(ParameterFilter::default(), x, |model, x| model.forward(&x)?.square()?.mean(None))?;
    /// assert_eq!(gradients["layers.0.weight"].shape(), [64, 64]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The parameters stay what they are, and so does what files have of them. The formats go by the paths: a parameter that is
    /// quantized or adapted later keeps its own.
    ///
    /// # Errors
    ///
    /// The text is no format, a format rounds by a random key, or the rules name no float parameter that the pattern names. The model is
    /// then what it was.
    pub fn saved_activations(
        &mut self,
        pattern: impl TryInto<Pattern, Error: Into<Error>>,
        formats: impl IntoRules,
    ) -> Result<&mut Self> {
        let rules = formats.into_rules()?.within(pattern)?;
        rules.supported()?;
        let (mut saved, mut named) = (self.parts.saved.clone(), false);
        for (path, aval) in self.avals() {
            let rule = rules.rule(&self.parts.ties.paths(&path), &aval).filter(|_| can_save(&path, &aval));
            let Some(rule) = rule else { continue };
            named = true;
            match &rule.action {
                Action::Skip => drop(saved.remove(&path)),
                Action::Quantize(format) => {
                    // A format in which nothing can be saved is refused here, and not in the first gradient.
                    SavedInputs::new(Array::from_f32(0.0), format).map_err(|error| error.of_parameter(&path))?;
                    saved.insert(path, format.clone());
                }
            }
        }
        if !named {
            return Err(Error::invalid("no float parameter of the model is named by the rules", self.listed()));
        }
        self.parts.saved = saved;
        Ok(self)
    }

    /// The format in which gradients read the activations of a parameter, if [`saved_activations`](Self::saved_activations) gave it
    /// one.
    #[must_use]
    pub fn saved_activations_of(&self, path: &str) -> Option<&AnyFormat> {
        self.parts.saved.get(self.parts.ties.parameter_path(path))
    }
}
