//! What the files of adapters have in common: the change of a matrix by two thin ones.

use std::path::Path;

use mlx_rs::Array;
use tacit_arrays::{Adapter, Dora, Lora};
use tacit_core::{Aval, Result, Value};
use tacit_nn::Parameters;

use crate::Tensors;
use crate::hugging_face::cannot_hold;

/// The name of the configuration in the folder, PEFT's or mlx-lm's.
pub(crate) const CONFIG: &str = "adapter_config.json";

/// A change of a matrix `[out, in]`, as PEFT orients it.
pub(crate) struct Change {
    /// `[r, in]`.
    pub(crate) a: Array,
    /// `[out, r]`.
    pub(crate) b: Array,
    /// What the product of `b` and `a` is multiplied by.
    pub(crate) scale: f32,
    /// The length of each row, `[out]`, in `DoRA`.
    pub(crate) magnitude: Option<Array>,
}

impl Change {
    /// The matrix with this change.
    pub(crate) fn over(self, base: &Value) -> Result<Value> {
        let Self { a, b, scale, magnitude } = self;
        // Views of the file, which may go to another thread once they are evaluated.
        mlx_rs::transforms::eval([&a, &b])?;
        let alpha = scale * rank(&a);
        Ok(match magnitude {
            None => Lora::new(base, a, b, alpha)?.into(),
            Some(m) => Dora::with_magnitudes(base, a, b, m, alpha)?.into(),
        })
    }

    /// The change that a parameter of a module has, with the module's path; none of what is no adapter.
    ///
    /// # Errors
    ///
    /// It is an adapter that the format of `path` cannot hold.
    pub(crate) fn from_parameter<'n>(
        path: &Path,
        name: &'n str,
        value: &Value,
        format: &str,
    ) -> Result<Option<(&'n str, Self)>> {
        let Some(adapter) = value.family::<dyn Adapter>() else { return Ok(None) };
        let transposed = adapter.aux().contains(&("transposed", "true".to_owned()));
        let change = if let Some(lora) = value.downcast::<Lora>() {
            Self { a: lora.a().clone(), b: lora.b().clone(), scale: lora.scale(), magnitude: None }
        } else if let Some(dora) = value.downcast::<Dora>() {
            let magnitude = Some(dora.m().clone());
            Self { a: dora.a().clone(), b: dora.b().clone(), scale: dora.scale(), magnitude }
        } else {
            return Err(cannot_hold(path, name, value, format, "merge it, or train a Lora or a Dora"));
        };
        match name.strip_suffix(".weight").filter(|_| !transposed) {
            Some(module) => Ok(Some((module, change))),
            None => Err(cannot_hold(path, name, value, format, "adapt the `weight` of a module, as the module has it")),
        }
    }

    pub(crate) fn rank(&self) -> i32 {
        self.a.dim(0)
    }

    /// What [`scale`](Self::scale) is after a change with this one went through [`over`](Self::over).
    pub(crate) fn stored(scale: f32, rank: i32) -> f32 {
        scale * rank as f32 / rank as f32
    }
}

fn rank(a: &Array) -> f32 {
    a.shape().first().map_or(1.0, |&rank| rank as f32)
}

/// The parameter that a module of the adapter changes.
pub(crate) fn base<'b>(
    base: &'b Parameters,
    tensors: &Tensors,
    key: &str,
    module: &str,
) -> Result<(String, &'b Value)> {
    let name = format!("{module}.weight");
    if let Some(value) = base.get(&name) {
        return Ok((name, value));
    }
    let help = "give the parameters of the model that the adapter was trained for, under their names in its checkpoint";
    Err(tensors.wrong(Some(key), format!("the model has no {name}"), help))
}

/// Whether a module is an embedding, by the names that they have: their factors are stored the other way round.
pub(crate) fn is_embedding(module: &str) -> bool {
    let last = module.rsplit('.').next().unwrap_or(module);
    // GPT-NeoX's head and projections of embeddings are linear layers.
    if last == "embed_out" || last.ends_with("proj") || last.ends_with("projection") || last.contains("mapping") {
        return false;
    }
    last.starts_with("embed")
        || last.ends_with("embedding")
        || last.ends_with("embeddings")
        || last == "wte"
        || last == "wpe"
}

/// Puts dense values in the place of those of the same name and shape.
pub(crate) fn replaced(parameters: &mut Parameters, tensors: &Tensors, key: &str, name: &str) -> Result<()> {
    let help = "give the parameters of the model that the adapter was trained for";
    let Some(parameter) = parameters.get_mut(name) else {
        return Err(tensors.wrong(Some(key), format!("the model has no {name}"), help));
    };
    let (found, expected): (&Aval, Aval) = (tensors.aval(key)?, parameter.aval()?);
    if found.shape != expected.shape || !found.dtype.is_float() {
        return Err(tensors.wrong(Some(key), format!("it is {found}, and the model has {expected}"), help));
    }
    *parameter = tensors.get(key)?.into();
    Ok(())
}

/// A number of single precision as JSON has it: the shortest text that is read as it.
pub(crate) fn shortest(number: f32) -> f64 {
    number.to_string().parse().unwrap_or_else(|_| f64::from(number))
}
