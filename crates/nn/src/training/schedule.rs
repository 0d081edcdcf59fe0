//! Learning rates that change with the step.

use std::f64::consts::PI;

use mlx_rs::Array;

/// A learning rate for each step: it rises in a warm-up, and then falls or stays.
///
/// An optimizer's rate is a field. In a compiled step a field is a constant of the graph, so the rate is an argument there:
/// [`array`](Self::array) makes it, and the step assigns it. The call that makes the moments of an optimizer leaves the rate of
/// its trace in the field: whoever updates without the compiled step assigns a rate as well.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::optimizers::Adam;
/// use mlx_rs::{Array, module::Module, nn, ops};
/// use tacit_core::compile::{CompileOptions, compile_with_state};
/// use tacit_nn::training::Schedule;
/// use tacit_nn::{Model, Stateful, ParameterFilter};
///
/// let schedule = Schedule::cosine(1e-2, 100).with_warmup(10);
/// assert_eq!([0, 5, 10, 100].map(|step| schedule.at(step)), [0.0, 5e-3, 1e-2, 0.0]);
///
/// let mut step = compile_with_state(
///     CompileOptions::default(),
///     |(model, adam): &mut (Model<nn::Linear>, Stateful<Adam>), (x, rate): (Array, Array)| {
///         adam.lr = rate;
///         let (loss, gradients) =
///             model.value_and_grad(ParameterFilter::default(), x, |m, x| m.forward(&x)?.square()?.mean(None))?;
///         model.update(adam, &gradients)?;
///         Ok::<_, tacit_core::Error>(loss)
///     },
/// );
/// let mut state = (Model::new(nn::Linear::new(4, 4)?)?, Stateful(Adam::new(0.0)));
/// let x = ops::ones::<f32>(&[2, 4])?;
/// for number in 0..20 {
///     step.call(&mut state, (&x, schedule.array(number)))?;
/// }
/// // One trace makes the moments of the optimizer, and one serves all other steps and rates.
/// assert_eq!(step.stats().traces, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    shape: Shape,
    peak: f32,
    end: f32,
    steps: u64,
    warmup: u64,
}

/// How a rate falls after its warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Constant,
    Cosine,
    Linear,
}

impl Schedule {
    /// The same rate in each step.
    #[must_use]
    pub const fn constant(rate: f32) -> Self {
        Self { shape: Shape::Constant, peak: rate, end: rate, steps: 0, warmup: 0 }
    }

    /// A rate that falls from `peak` to 0 along half a cosine, and is 0 from step `steps` on.
    #[must_use]
    pub const fn cosine(peak: f32, steps: u64) -> Self {
        Self { shape: Shape::Cosine, peak, end: 0.0, steps, warmup: 0 }
    }

    /// A rate that falls from `peak` to 0 along a line, and is 0 from step `steps` on.
    #[must_use]
    pub const fn linear(peak: f32, steps: u64) -> Self {
        Self { shape: Shape::Linear, peak, end: 0.0, steps, warmup: 0 }
    }

    /// The same with a rise from 0 along a line in the first `steps` steps.
    ///
    /// A rate that falls does so in the steps after these, and is at its end from the same step on as without them.
    #[must_use]
    pub const fn with_warmup(self, steps: u64) -> Self {
        Self { warmup: steps, ..self }
    }

    /// The same with a rate that falls to `end` in place of 0.
    #[must_use]
    pub const fn with_end(self, end: f32) -> Self {
        match self.shape {
            Shape::Constant => self,
            Shape::Cosine | Shape::Linear => Self { end, ..self },
        }
    }

    /// The rate of a step, counted from 0.
    #[must_use]
    pub fn at(&self, step: u64) -> f32 {
        let (peak, end) = (f64::from(self.peak), f64::from(self.end));
        if step < self.warmup {
            return (peak * step as f64 / self.warmup as f64) as f32;
        }
        if step >= self.steps {
            return self.end;
        }
        let part = (step - self.warmup) as f64 / (self.steps - self.warmup) as f64;
        let decay = match self.shape {
            Shape::Constant | Shape::Linear => 1.0 - part,
            Shape::Cosine => 0.5 * (1.0 + (PI * part).cos()),
        };
        (end + (peak - end) * decay) as f32
    }

    /// The rate of a step as an array `f32[]`, which a compiled step takes as an argument.
    #[must_use]
    pub fn array(&self, step: u64) -> Array {
        Array::from_f32(self.at(step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_rises_and_falls() {
        let near = |schedule: Schedule, expected: &[(u64, f32)]| {
            for &(step, rate) in expected {
                assert!((schedule.at(step) - rate).abs() < 1e-6, "{schedule:?} at {step}: {}", schedule.at(step));
            }
        };
        near(Schedule::constant(0.5), &[(0, 0.5), (1_000_000, 0.5)]);
        near(Schedule::constant(0.5).with_warmup(4).with_end(0.1), &[(0, 0.0), (1, 0.125), (4, 0.5), (99, 0.5)]);
        near(Schedule::linear(1.0, 10).with_end(0.5), &[(0, 1.0), (5, 0.75), (10, 0.5), (11, 0.5)]);
        near(Schedule::cosine(1.0, 12).with_warmup(2), &[(1, 0.5), (2, 1.0), (7, 0.5), (12, 0.0), (40, 0.0)]);
        // A warm-up that is longer than the schedule, and no step at all.
        near(Schedule::cosine(1.0, 3).with_warmup(4), &[(3, 0.75), (4, 0.0)]);
        near(Schedule::linear(1.0, 0), &[(0, 0.0)]);
    }
}
