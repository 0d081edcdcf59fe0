//! Scales of blocks by least errors, for every stored format.
//!
//! What a block stores stands for `u s + b`, with `u` what its codes stand for, so that the multiples of `s` and `b` that a
//! search tries are ranges around zero. Given codes, the best scale and bias are a regression on the values themselves:
//! no format is asked for more than its codes by given scales.

use mlx_rs::{Array, Dtype, ops, stop_gradient};
use tacit_core::{Aval, Result};

use super::declaration::Format;
use super::fit::{self, Fit};
use super::trained_scales::FloatScales;
use crate::kernel::{self, Encoding, Nested, Scaling, Scheme, Sums};
use crate::packed::array::PackedArray;
use crate::packed::super_blocks;

impl<F: Format> PackedArray<F> {
    /// Quantizes `x` with scales by `fit`.
    ///
    /// It is lazy, and works inside `grad` and `compile`; no gradient reaches scales that are fitted by errors.
    ///
    /// # Errors
    ///
    /// As for [`quantize`](Self::quantize), or the format has no such scales.
    pub fn fitted(x: &Array, format: impl Into<F>, fit: Fit) -> Result<Self> {
        let format = format.into();
        if fit == Fit::Reach {
            let reaching = format.scheme().reaching().ok_or_else(|| fit::unfit(&format.to_string(), fit))?;
            return Self::quantize_as(x, &format, reaching.encoding);
        }
        // What checks the format and `x`; its codes are not computed unless they are used.
        let unfitted = Self::quantize(x, format.clone())?;
        if fit == Fit::Absmax {
            return Ok(unfitted);
        }
        let x_stored = if format.by_columns() { x.t() } else { x.clone() };
        let on = format.on(x_stored.shape());
        let (scheme, block) = (on.scheme(), on.block());
        if !scheme.is_scaled() {
            return Err(fit::unfit(&format.to_string(), fit));
        }
        let fitting = Fitting::new(&x_stored, &scheme, block, unfitted.global_scale())?;
        let scales = fitting.fitted(&fitting.chosen_by_format()?, fit)?;
        Self::from_parts(scales.nested(&scheme, block, &fitting.x, x.size())?, format, Aval::from(x))
    }
}

/// Floats that are to be coded in blocks.
struct Fitting {
    /// `f32`, in the shape in which the codes lie.
    x: Array,
    scheme: Scheme,
    block: usize,
    /// What the scales are stored as, where the format has biases.
    dtype: Option<Dtype>,
    /// What NVFP4's scales are relative to.
    global: Option<Array>,
}

/// Where the search looks, as multiples of the format's own scale.
fn multiples(scheme: &Scheme, steps: u32) -> Vec<f32> {
    if scheme.scaling == Scaling::E8m0 {
        // Others are rounded to these.
        return vec![0.25, 0.5, 2.0];
    }
    let (least, most): (f32, f32) = match scheme.encoding {
        // The mean magnitude is no bound of the codes.
        Encoding::Ternary | Encoding::Binary => (0.5, 2.0),
        _ => (0.25, 1.1),
    };
    let last = steps.saturating_sub(1).max(1) as f32;
    (0..steps).map(|step| most * (least / most).powf(step as f32 / last)).collect()
}

/// Steps of least squares after a search.
const REFINED: usize = 2;

/// The power of the errors that the half-quadratic method sums.
const POWER: f32 = 0.7;

/// The method's `beta` for errors in units of their root mean square at first, and by how much it grows in a round.
const BETA: f32 = 1.0;
const KAPPA: f32 = 1.05;

/// Scales with the error of each block.
struct Best {
    scales: FloatScales,
    error: Array,
}

impl Fitting {
    /// The floats `x`, in the shape and the dtype in which they are to be coded.
    fn new(x: &Array, scheme: &Scheme, block: usize, global: Option<&Array>) -> Result<Self> {
        let dtype = scheme.biased.then(|| x.dtype());
        let mut x = stop_gradient(x)?.as_dtype(Dtype::Float32)?;
        if let Some(Nested::Integers { .. }) = scheme.nested {
            x = super_blocks::in_blocks(&x, scheme, block)?;
        }
        let global = global.map(stop_gradient).transpose()?;
        Ok(Self { x, scheme: *scheme, block, dtype, global })
    }

    /// The scales that the format itself chooses, as floats.
    fn chosen_by_format(&self) -> Result<FloatScales> {
        let numbers = if let Some(Nested::Integers { .. }) = self.scheme.nested {
            let ranges = super_blocks::ranges(&self.x, &self.scheme, 0)?;
            let flat = ranges.iter().map(|numbers| numbers.reshape(&[-1]));
            flat.collect::<std::result::Result<Vec<_>, _>>()?
        } else {
            let inputs: Vec<Array> = std::iter::once(&self.x).chain(&self.global).cloned().collect();
            kernel::quantize(self.scheme, self.block, &inputs)?.split_off(1)
        };
        let scales = kernel::float_scales(self.scheme.scaling, &numbers[0])?;
        self.stored(&stop_gradient(scales)?, numbers.get(1).map(stop_gradient).transpose()?.as_ref())
    }

    fn fitted(&self, start: &FloatScales, fit: Fit) -> Result<FloatScales> {
        match fit {
            Fit::Absmax | Fit::Reach => Ok(start.clone()),
            Fit::Search { steps } => self.searched(start, steps),
            Fit::HalfQuadratic { rounds } => self.half_quadratic(start, rounds),
        }
    }

    fn searched(&self, start: &FloatScales, steps: u32) -> Result<FloatScales> {
        let error = self.measured(start, None)?.error;
        let mut best = Best { scales: start.clone(), error };
        for multiple in multiples(&self.scheme, steps) {
            let times = |numbers: &Array| numbers.multiply(Array::from_f32(multiple));
            let scales = self.stored(&times(&start.scales)?, start.biases.as_ref().map(times).transpose()?.as_ref())?;
            let error = self.measured(&scales, None)?.error;
            best = best.or(&Best { scales, error })?;
        }
        for _ in 0..REFINED {
            let sums = self.measured(&best.scales, None)?;
            let scales = self.followed(&best.scales, &sums)?;
            let error = self.measured(&scales, None)?.error;
            best = best.or(&Best { scales, error })?;
        }
        Ok(best.scales)
    }

    fn half_quadratic(&self, start: &FloatScales, rounds: u32) -> Result<FloatScales> {
        let squares = self.measured(start, None)?.error;
        // Of a whole block, so that a last one that is short has a smaller unit.
        let unit = squares.divide(Array::from_f32(self.block.min(self.x.size()) as f32))?.sqrt()?;
        let unit = ops::maximum(unit.power(Array::from_f32(2.0 - POWER))?, Array::from_f32(f32::MIN_POSITIVE))?;
        let mut now = start.clone();
        let mut best: Option<Best> = None;
        let mut beta = BETA;
        for _ in 0..=rounds {
            let weights = unit.divide(Array::from_f32(beta))?;
            let sums = self.measured(&now, Some((POWER, &weights)))?;
            let next = self.followed(&now, &sums)?;
            let candidate = Best { scales: now, error: sums.error };
            best = Some(match best {
                Some(best) => best.or(&candidate)?,
                None => candidate,
            });
            (now, beta) = (next, beta * KAPPA);
        }
        Ok(best.map_or_else(|| start.clone(), |best| best.scales))
    }

    /// Scales as they will be stored, but for those that are quantized themselves.
    fn stored(&self, scales: &Array, biases: Option<&Array>) -> Result<FloatScales> {
        let rounded = kernel::rounded_scales(self.scheme.scaling, scales)?;
        let scales = kernel::float_scales(self.scheme.scaling, &rounded)?;
        let stored = FloatScales { scales, biases: biases.cloned(), global_scale: self.global.clone() };
        match self.dtype {
            Some(dtype) => stored.mapped(|numbers| Ok(numbers.as_dtype(dtype)?)),
            None => Ok(stored),
        }
    }

    /// The sums of each block coded by these scales, as [`kernel::deviations`] has them.
    fn measured(&self, scales: &FloatScales, power: Option<(f32, &Array)>) -> Result<Sums> {
        let stored = scales.stored_array(&self.scheme, self.block, &self.x)?;
        let (layout, children) = stored.kernel(self.x.shape().first().copied().unwrap_or(1))?;
        kernel::deviations(layout, power, &self.x, &children)
    }

    /// The scales that follow what the sums are of, by least squares.
    fn followed(&self, scales: &FloatScales, sums: &Sums) -> Result<FloatScales> {
        let number = Array::from_f32;
        let Sums { value, square, slope, shift, .. } = sums;
        let shape = scales.scales.shape();
        let wide = |numbers: &Array| numbers.as_dtype(Dtype::Float32);
        // The quotient where the divisor is above zero and the multiple no other range.
        let multiple = |slope: &Array, square: &Array| -> Result<Array> {
            let some = square.gt(number(0.0))?;
            let quotient = slope.divide(ops::select(&some, square, number(1.0))?)?.add(number(1.0))?;
            let near = quotient.gt(number(0.25))?.logical_and(quotient.lt(number(4.0))?)?;
            Ok(ops::select(some.logical_and(near)?, quotient, number(1.0))?)
        };
        let Some(biases) = &scales.biases else {
            return self.stored(&wide(&scales.scales)?.multiply(multiple(slope, square)?.reshape(shape)?)?, None);
        };
        // Only the last block may have fewer elements, and no format with biases has such a one.
        let count = number(self.block as f32);
        let mean = value.divide(&count)?;
        let along = multiple(&slope.subtract(mean.multiply(shift)?)?, &square.subtract(mean.multiply(value)?)?)?;
        let offset = shift.divide(&count)?.subtract(along.subtract(number(1.0))?.multiply(&mean)?)?;
        let (along, offset) = (along.reshape(shape)?, offset.reshape(shape)?);
        let moved = wide(&scales.scales)?.multiply(&along)?;
        let biases = wide(biases)?.multiply(&along)?.add(offset)?;
        self.stored(&moved, Some(&biases))
    }
}

impl Best {
    /// Of each block the scales of the lesser error, of two the same those that were there before.
    fn or(self, other: &Self) -> Result<Self> {
        let less = other.error.lt(&self.error)?;
        let error = ops::select(&less, &other.error, &self.error)?;
        let less = less.reshape(self.scales.scales.shape())?;
        Ok(Self { scales: other.scales.where_better(&less, &self.scales)?, error })
    }
}
