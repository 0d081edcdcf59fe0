//! Gradients that an optimizer sees in a low rank.

use std::f32::consts::SQRT_2;

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops, random};
use tacit_core::{Aval, Error, Result};

use crate::lora::seed_of;

/// How an optimizer steps by gradients of a low rank, so that its moments have that rank.
///
/// The method is APOLLO ([Zhu et al., 2024](https://arxiv.org/abs/2412.05270)). A gradient `g: [m, n]`, with `m <= n`, is projected
/// to `p @ g: [rank, n]`, where `p` is random: each step draws it from a seed, and it is never held. The optimizer steps by the
/// projected gradient. How far it would go, relative to that gradient, is how far each column of the parameter goes along `g`; with
/// rank 1 it is one number for the whole matrix. In a taller matrix rows take the place of columns. At one learning rate the norm of
/// an update grows by at most a hundredth from one step to the next.
///
/// The learning rate is the optimizer's own. So is its weight decay, which shrinks the parameter itself, as in `AdamW`, whichever
/// optimizer it is. The optimizer must treat all elements alike: each of mlx-rs does but Adafactor.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::optimizers::AdamW;
/// use mlx_rs::{module::Module, nn, ops};
/// use tacit_nn::{Apollo, Model, ParameterFilter, QuantizedState, Rules};
///
/// let mut model = Model::new(nn::Linear::new(256, 64)?)?;
/// // Without rules the moments are floats.
/// let mut optimizer = QuantizedState::new(AdamW::new(1e-3), &Rules::new())?.apollo("*", Apollo::new(8))?;
/// let x = ops::ones::<f32>(&[2, 256])?;
/// let (_loss, gradients) =
///     model.value_and_grad(ParameterFilter::default(), &x, |m, x| m.forward(x)?.square()?.mean(None))?;
/// model.update(&mut optimizer, &gradients)?;
/// assert_eq!(optimizer.values()?["weight.1"].to_string(), "f32[8,256]");
/// assert!(optimizer.nbytes() < 2 * 4 * (64 * 256 + 64) / 6);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Apollo {
    /// The rank of the projected gradients. The paper takes a quarter of `m`, or 1.
    pub rank: usize,
    /// What an update is multiplied by. At 1 it is shorter than that of the optimizer itself, by about `sqrt(rank / m)`, and a few
    /// times that length trains well where the learning rate falls.
    pub scale: f32,
    /// The number of steps with one projection, after which there is another one.
    pub period: u32,
    /// The seed of the projections, which also depend on the path of the parameter.
    pub seed: u64,
}

/// By how much the norm of an update may grow from one step to the next, as in the paper.
const GROWTH: f32 = 1.01;

impl Apollo {
    /// Projections to this rank, each for 200 steps, with a scale of 1.
    #[must_use]
    pub const fn new(rank: usize) -> Self {
        Self { rank, scale: 1.0, period: 200, seed: 0 }
    }

    /// APOLLO-Mini: rank 1 and a scale of `sqrt(128)`.
    #[must_use]
    pub const fn mini() -> Self {
        Self { scale: 8.0 * SQRT_2, ..Self::new(1) }
    }

    /// Refuses fields with which there is no step.
    pub(crate) fn check(&self) -> Result<()> {
        let (what, help) = match *self {
            Self { rank: 0, .. } => ("projected to rank 0".to_owned(), "give at least 1, which `Apollo::mini` has"),
            Self { period: 0, .. } => ("projected anew after 0 steps".to_owned(), "give at least 1, such as 200"),
            Self { scale, .. } if !scale.is_finite() || scale <= 0.0 => {
                (format!("scaled by {scale}"), "give a number above 0, such as 1")
            }
            _ => return Ok(()),
        };
        Err(Error::invalid(format!("gradients are not {what}"), help))
    }

    /// Whether this gradient is of a greater rank: of one or more matrices, no side of which is within it.
    pub(crate) fn reduces(&self, gradient: &Aval) -> bool {
        let [.., rows, columns] = gradient.shape[..] else { return false };
        gradient.dtype.is_float() && rows.min(columns) as usize > self.rank
    }

    /// Projects the gradient of the parameter at `path`; `kept` is what its latest step left.
    pub(crate) fn project(&self, path: &str, gradient: &Array, kept: Option<Kept>) -> Result<Projected> {
        let is_tall = gradient.dim(-2) > gradient.dim(-1);
        let wide = transposed_if(&gradient.as_dtype(Dtype::Float32)?, is_tall)?;
        let (seed, steps, norm) = match kept {
            Some(Kept { draw, norm }) => (draw.try_index(0)?, draw.try_index(1)?, norm),
            // Any first update is within this.
            None => (number(seed_of(self.seed, path) as u32), number(0), Array::from_f32(f32::MAX)),
        };
        let key = ops::stack(&[&seed, &steps.floor_divide(number(self.period))?], 0)?;
        let rank = self.rank as i32;
        let projection = random::normal::<f32>(&[rank, wide.dim(-2)], None, 1.0 / (rank as f32).sqrt(), &key)?;
        let draw = ops::stack(&[&seed, &steps.add(number(1))?], 0)?;
        Ok(Projected { apollo: *self, gradient: projection.matmul(&wide)?, wide, is_tall, draw, norm })
    }
}

/// What a step leaves of a parameter for the next one.
pub(crate) struct Kept {
    /// The seed of its projections with the steps that were made, `u32[2]`.
    pub(crate) draw: Array,
    /// The norm of the latest update for a learning rate of 1, `f32[]`.
    pub(crate) norm: Array,
}

/// A projected gradient, and what makes an update of it.
pub(crate) struct Projected {
    apollo: Apollo,
    /// What the optimizer is given.
    pub(crate) gradient: Array,
    /// The whole gradient as `f32`, the longer of its last axes last.
    wide: Array,
    is_tall: bool,
    draw: Array,
    /// The norm of the latest update.
    norm: Array,
}

impl Projected {
    /// What is subtracted from the parameter where the optimizer changes one of the projected gradient's shape by `change` at a
    /// learning rate of `rate`, and what the next step needs.
    pub(crate) fn update(self, change: &Array, rate: &Array) -> Result<(Array, Kept)> {
        let axes: &[i32] = if self.apollo.rank == 1 { &[-2, -1] } else { &[-2] };
        let norms = |matrices: &Array| matrices.square()?.sum_axes(axes, true)?.sqrt();
        let (projected, zero) = (norms(&self.gradient)?, Array::from_f32(0.0));
        // Where there is no gradient nothing moves; a NaN stays one.
        let ratios = ops::select(projected.eq(&zero)?, &zero, norms(change)?.divide(&projected)?)?;
        let update = self.wide.multiply(ratios)?;
        let norm = update.square()?.sum(None)?.sqrt()?;
        // For a learning rate of 1: a schedule may let the rate rise as it likes.
        let bound = self.norm.multiply(rate)?.multiply(Array::from_f32(GROWTH))?;
        let limit = ops::select(norm.gt(&bound)?, bound.divide(&norm)?, Array::from_f32(1.0))?;
        // A step that moves nothing, such as the first of a warm-up, says nothing of the next one.
        let norm = ops::select(norm.gt(&zero)?, ops::minimum(&norm, &bound)?.divide(rate)?, &self.norm)?;
        let update = update.multiply(limit.multiply(Array::from_f32(self.apollo.scale))?)?;
        Ok((transposed_if(&update, self.is_tall)?, Kept { draw: self.draw, norm }))
    }
}

fn transposed_if(matrices: &Array, is_tall: bool) -> Result<Array> {
    if is_tall { Ok(matrices.swap_axes(-1, -2)?) } else { Ok(matrices.clone()) }
}

/// No array of two: a compiled function takes one that it holds for a key, and for random numbers what is drawn from it.
fn number(number: u32) -> Array {
    Array::from_slice(&[number], &[])
}
