//! Norms of layers and of heads.

use mlx_rs::error::Exception;
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::Param;
use mlx_rs::{Array, Dtype, fast, ops};

use crate::config::{self, Config};
use crate::numbers::narrowed;

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
        if !self.from_one {
            return fast::rms_norm(x, Some(&self.weight), self.epsilon);
        }
        // In f32, as the model was trained: a half has no place for the 1 beside all bits of the weight.
        let gain = self.weight.as_dtype(Dtype::Float32)?.add(Array::from_f32(1.0))?;
        fast::rms_norm(x, Some(&gain), self.epsilon)?.as_dtype(x.dtype())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gain_less_one_in_half_floats_has_all_its_bits() -> Result<(), Exception> {
        let half = |numbers: [f32; 2]| Array::from_slice(&numbers, &[2]).as_dtype(Dtype::Bfloat16);
        let norm = Norm { weight: Param::new(half([3.140_625, 0.0])?), epsilon: 0.0, from_one: true };
        let found = norm.forward(&half([1.0, 7.0])?)?;
        assert_eq!(found.dtype(), Dtype::Bfloat16);
        // A fifth of 4.140625, which bf16 does not have, and seven fifths as they are rounded there.
        assert_eq!(found.as_dtype(Dtype::Float32)?.as_slice::<f32>(), [0.828_125, 1.398_437_5]);
        Ok(())
    }
}
