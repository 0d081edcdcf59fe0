//! Norms of layers and of heads.

use mlx_rs::error::Exception;
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::Param;
use mlx_rs::{Array, fast, ops};

use crate::config::{self, Config};
use crate::numbers::{narrowed, scalar};

/// A division by the root of the mean square, and a gain.
#[derive(Clone, Debug, ModuleParameters)]
pub(crate) struct Norm {
    #[param]
    pub(crate) weight: Param<Array>,
    epsilon: f32,
    from_one: bool,
}

impl Norm {
    pub(crate) fn new(size: i32, config: &Config) -> Result<Self, Exception> {
        let config::Norm { epsilon, from_one } = config.norm;
        let weight = if from_one { ops::zeros::<f32>(&[size])? } else { ops::ones::<f32>(&[size])? };
        Ok(Self { weight: Param::new(weight), epsilon, from_one })
    }

    /// In half precision where the gain is.
    pub(crate) fn forward(&self, x: &Array) -> Result<Array, Exception> {
        narrowed(&self.wide(x)?, self.weight.dtype())
    }

    /// For a sum that is widened.
    pub(crate) fn wide(&self, x: &Array) -> Result<Array, Exception> {
        let one = self.from_one.then(|| scalar(1.0, self.weight.dtype())).transpose()?;
        let gain = one.map(|one| self.weight.add(one)).transpose()?;
        fast::rms_norm(x, Some(gain.as_ref().unwrap_or(&self.weight)), self.epsilon)
    }
}
