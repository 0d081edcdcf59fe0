//! How far a stored matrix is from the floats that were quantized, and which scales and biases would bring it nearer.

use mlx_rs::{Array, Dtype, ops, stop_gradient};
use tacit_core::kernel::{Fallback, GpuBackend, Input, Kernel, Launch, Mapped, Output, apply};
use tacit_core::{Aval, Param, Result};

use super::encode::{blocks, number};
use super::host::{Fallible, several};
use super::quantize::one_by_one;
use super::{Layout, gpu};

/// Sums over each block, as [`tacit_kernels::deviations`] has them: `f32[blocks]` each.
pub(crate) struct Sums {
    /// Sums of the errors, by their norm.
    pub(crate) error: Array,
    /// Sums of the values.
    pub(crate) value: Array,
    /// Sums of their squares.
    pub(crate) square: Array,
    /// Sums of the values times what is to be followed.
    pub(crate) slope: Array,
    /// Sums of what is to be followed.
    pub(crate) shift: Array,
}

/// Measures `children`, which `x: f32` was quantized to, block by block, without a gradient: by squares of errors, or by a power of
/// them with a weight for each block, as [`tacit_kernels::Norm`] says.
pub(crate) fn deviations(layout: Layout, power: Option<(f32, &Array)>, x: &Array, children: &[Array]) -> Result<Sums> {
    let (power, weights) = power.unzip();
    let inputs = std::iter::once(x).chain(weights).chain(children).map(stop_gradient);
    let inputs: Vec<Array> = inputs.collect::<std::result::Result<_, _>>()?;
    let [error, value, square, slope, shift] = several(apply(Deviations { layout, power }, &inputs)?);
    Ok(Sums { error, value, square, slope, shift })
}

pub(super) struct Deviations {
    pub(super) layout: Layout,
    /// The power of the errors, whose weights are then the second input; none where squares are summed.
    pub(super) power: Option<f32>,
}

impl Kernel for Deviations {
    fn name(&self) -> &'static str {
        self.layout.scheme.kernel("Deviations")
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        let power = self.power.map_or(Param::None, |power| Param::Int(i64::from(power.to_bits())));
        Some(self.layout.params().into_iter().chain([("power", power)]).collect())
    }

    fn output_avals(&self, _: &[Aval]) -> Fallible<Vec<Aval>> {
        let Layout { n, k, block, .. } = self.layout;
        Ok(vec![Aval::new(&[(n * k).div_ceil(block) as i32], Dtype::Float32); 5])
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
        let [x, more @ ..] = inputs else { return Err("an array is expected".into()) };
        let (norm, children) = match (self.power, more) {
            (None, children) => (tacit_kernels::Norm::Squares, children),
            (Some(power), [weights, children @ ..]) => {
                (tacit_kernels::Norm::Power(power, weights.elements()?), children)
            }
            (Some(_), []) => return Err("weights are expected".into()),
        };
        Ok(tacit_kernels::deviations(&self.layout.matrix(children)?, x.elements()?, norm, sums)?)
    }

    fn launch(&self, inputs: &[Aval], backend: GpuBackend) -> Option<Launch> {
        gpu::deviations(&self.layout, self.power, inputs, backend.into()).map(gpu::Parts::launch)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let [x, more @ ..] = inputs else { return Err("an array is expected".into()) };
        let (weights, children) = more.split_at(usize::from(self.power.is_some()));
        let x = blocks(x, self.layout.block)?;
        let values = blocks(&self.layout.decoded(children)?, self.layout.block)?;
        let r = x.subtract(&values)?;
        let (error, g) = if let (Some(power), [weights]) = (self.power, weights) {
            let magnitude = r.abs()?;
            let exact = magnitude.eq(number(0.0))?;
            let steep = ops::select(&exact, number(1.0), &magnitude)?.power(number(power - 1.0))?;
            let steep = ops::select(&exact, number(0.0), steep)?;
            let followed = ops::minimum(&magnitude, steep.multiply(weights.reshape(&[-1, 1])?)?)?;
            (magnitude.multiply(steep)?, ops::select(r.lt(number(0.0))?, followed.negative()?, &followed)?)
        } else {
            (r.square()?, r)
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
