//! How far a stored matrix is from the floats that were quantized, and which scales and biases would bring it nearer.

use mlx_rs::ops;
use mlx_rs::{Array, stop_gradient};
use tacit_core::kernel::{Fallback, Input, Kernel, Mapped, Output, apply};
use tacit_core::{Aval, Param, Result};

use super::encode::{blocks, number};
use super::quantize::one_by_one;
use super::{Fallible, Layout};

/// Sums over each block, as [`tacit_kernels::deviations`] has them: `f32[blocks]` each.
pub(crate) struct Sums {
    /// Of `|r|^power`.
    pub(crate) error: Array,
    /// Of the values.
    pub(crate) value: Array,
    /// Of their squares.
    pub(crate) square: Array,
    /// Of the values times what is to be followed.
    pub(crate) slope: Array,
    /// Of what is to be followed.
    pub(crate) shift: Array,
}

/// Measures `children`, which `x: f32` was quantized to, block by block, without a gradient; the weights are one for each
/// block, and mean nothing where the power is 2.
///
/// # Errors
///
/// When it runs: the lengths do not fit.
pub(crate) fn deviations(layout: Layout, power: f32, x: &Array, weights: &Array, children: &[Array]) -> Result<Sums> {
    let inputs: Vec<Array> =
        [x, weights].into_iter().chain(children).map(stop_gradient).collect::<std::result::Result<_, _>>()?;
    let mut made = apply(Deviations { layout, power }, &inputs)?.into_iter();
    let mut next = || made.next().unwrap_or_else(|| unreachable!("the kernel declares five results"));
    Ok(Sums { error: next(), value: next(), square: next(), slope: next(), shift: next() })
}

pub(super) struct Deviations {
    pub(super) layout: Layout,
    pub(super) power: f32,
}

impl Kernel for Deviations {
    fn name(&self) -> &'static str {
        self.layout.scheme.kernel("Deviations")
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        let power = ("power", Param::Int(i64::from(self.power.to_bits())));
        Some(self.layout.params().into_iter().chain([power]).collect())
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        Ok(vec![inputs[1].clone(); 5])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let [error, value, square, slope, shift] = outputs else { return Err("five outputs are expected".into()) };
        let sums = tacit_kernels::Deviations {
            error: error.elements()?,
            value: value.elements()?,
            square: square.elements()?,
            slope: slope.elements()?,
            shift: shift.elements()?,
        };
        let matrix = self.layout.matrix(&inputs[2..])?;
        Ok(tacit_kernels::deviations(&matrix, inputs[0].elements()?, self.power, inputs[1].elements()?, sums)?)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let [x, weights, children @ ..] = inputs else { return Err("an array and weights are expected".into()) };
        let x = blocks(x, self.layout.block)?;
        let values = blocks(&self.layout.decoded(children)?, self.layout.block)?;
        let r = x.subtract(&values)?;
        let (error, g) = if self.power == 2.0 {
            (r.square()?, r)
        } else {
            let most = r.abs()?;
            let exact = most.eq(number(0.0))?;
            let steep = ops::select(&exact, number(1.0), &most)?.power(number(self.power - 1.0))?;
            let steep = ops::select(&exact, number(0.0), steep)?;
            let followed = ops::minimum(&most, steep.multiply(weights.reshape(&[-1, 1])?)?)?;
            (most.multiply(steep)?, ops::select(r.lt(number(0.0))?, followed.negative()?, &followed)?)
        };
        let sums = [error, values.clone(), values.square()?, values.multiply(&g)?, g];
        let sums = sums.iter().map(|sum| sum.sum_axis(-1, None)).collect::<std::result::Result<_, _>>()?;
        Ok(sums)
    }

    fn fallback(&self, inputs: &[Array], reason: Fallback) -> Fallible<Vec<Array>> {
        self.layout.permit(self.name(), reason)?;
        self.decompose(inputs)
    }

    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Fallible<Mapped>> {
        Some(one_by_one(|| Self { layout: self.layout, power: self.power }, inputs, axes))
    }
}
