//! GPTQ: each input's rounding error is made up for by the inputs that are rounded after it.

use mlx_rs::{Array, Dtype, ops, transforms};
use tacit_core::{Aval, Error, Result, Value, tree};

use crate::format::{AnyFormat, FloatScales};
use crate::training::calibration::best::Best;
use crate::training::calibration::calibrate::{Calibrate, errors, matrices};
use crate::training::calibration::coder::{Coder, Scaled, dense};
use crate::training::calibration::hessian::Hessian;
use crate::training::calibration::refit::refitted;
use crate::training::calibration::weighted::Search;
use crate::training::observation::Observation;

/// Inputs whose errors are spread over the others together: only the order of sums depends on it.
const TOGETHER: i32 = 128;

/// The method GPTQ (Frantar et al., 2022): codes for which the layer's outputs, not its weights, are changed least.
///
/// The columns of a weight `W: [n, k]` are rounded one after the other, and the error of each is spread over those that
/// follow, `W[:, j] -= (W[:, i] - Q[:, i]) U[i, j] / U[i, i]`, with `U` the Cholesky factor of the inverse of the damped
/// `x^T x`. A group gets its scales when it is reached. Inputs that were always zero get codes of zero.
///
/// It takes whatever format makes codes by scales that are there, as every declared one does. Scales that are quantized themselves
/// are those of the weight as it was, because a super-block may hold numbers of several rows. A stranger's format that only quantizes
/// is coded a block of columns at a time, with the error of the whole block spread over the others: it gains less. One of rotated
/// rows is refused, and one whose blocks straddle rows.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops, random};
/// use tacit_arrays::format::{Affine, AnyFormat};
/// use tacit_arrays::{Calibrate, Gptq, Observation};
///
/// let normal = |seed, shape: &[i32]| random::normal::<f32>(shape, None, None, &random::key(seed)?);
/// // 256 inputs that are mixtures of 16.
/// let x = normal(0, &[512, 16])?.matmul(normal(1, &[16, 256])?)?.add(normal(2, &[512, 256])?)?;
/// let (w, format) = (normal(3, &[32, 256])?, AnyFormat::from(Affine { bits: 3, group: 64 }));
/// let error = |codes: tacit_core::Value| -> tacit_core::Result<f32> {
///     Ok(x.matmul(w.subtract(codes.dense()?)?.t())?.square()?.sum(None)?.item_exact::<f32>())
/// };
/// let calibrated = Gptq::default().quantize(&format, &w, &Observation::from_inputs(&x)?)?;
/// assert!(error(calibrated)? < 0.5 * error(format.quantize(&w)?)?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gptq {
    damping: f32,
    act_order: bool,
    refits: u32,
}

impl Default for Gptq {
    /// A damping of 0.01, inputs in their own order: what the paper uses.
    fn default() -> Self {
        Self { damping: 0.01, act_order: false, refits: 0 }
    }
}

impl Gptq {
    /// The same with this damping: what is added to the diagonal of `x^T x`, in units of its mean.
    ///
    /// # Errors
    ///
    /// It is not from 0.001 to 1: below, rounding could make the matrix indefinite.
    pub fn with_damping(self, damping: f32) -> Result<Self> {
        if !(0.001..=1.0).contains(&damping) {
            return Err(Error::invalid(
                format!("a damping of {damping} is not from 0.001 to 1"),
                "use 0.01, the usual choice, or more where few rows were observed",
            ));
        }
        Ok(Self { damping, ..self })
    }

    /// The same with the inputs of the largest squares first (`act_order`), and scales of the weight as it was.
    ///
    /// Formats that are coded a block at a time keep their order.
    #[must_use]
    pub fn act_order(self) -> Self {
        Self { act_order: true, ..self }
    }

    /// The same, then codes by the scales of a [`WeightedSearch`](crate::WeightedSearch), and then so many times scales that fit the
    /// codes, by least squares of all groups of a row, and codes by these scales.
    ///
    /// Of each row the best that was found is kept, so that none loses more than without. Scales that are quantized themselves are
    /// rounded together afterwards, and codes chosen once more: a row may lose a little by that.
    ///
    /// Each refit takes as long as the codes themselves, and the search as long as one. Formats that are coded a block at a time, those
    /// of one scale for all rows, and those whose scales are powers of two, or relative to one of the whole array, have no scales to
    /// fit.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::{Array, random};
    /// use tacit_arrays::format::Affine;
    /// use tacit_arrays::{Calibrate, Gptq, Observation};
    ///
    /// let normal = |seed, shape: &[i32]| random::normal::<f32>(shape, None, None, &random::key(seed)?);
    /// let (w, x) = (normal(0, &[32, 128])?, normal(1, &[512, 128])?);
    /// let format = Affine { bits: 3, group: 64 }.into();
    /// let error = |method: Gptq| -> tacit_core::Result<f32> {
    ///     let codes = method.quantize(&format, &w, &Observation::from_inputs(&x)?)?;
    ///     Ok(x.matmul(w.subtract(codes.dense()?)?.t())?.square()?.sum(None)?.item_exact::<f32>())
    /// };
    /// assert!(error(Gptq::default().with_refits(2)?)? < 0.95 * error(Gptq::default())?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// More than 100 refits are asked for.
    pub fn with_refits(self, refits: u32) -> Result<Self> {
        if refits > 100 {
            return Err(Error::invalid(
                format!("scales are not fitted {refits} times"),
                "fit them 2 or 3 times, after which little is gained",
            ));
        }
        Ok(Self { refits, ..self })
    }
}

impl Calibrate for Gptq {
    fn quantize(&self, format: &AnyFormat, weight: &Array, seen: &Observation) -> Result<Value> {
        let (stack, grams) = matrices(weight, seen)?;
        let coder = Coder::new("GPTQ", format, weight)?;
        let act_order = self.act_order && matches!(coder, Coder::Scaled(_));
        let runs = || {
            (0..stack.dim(0)).map(|matrix| {
                let of_matrix = |array: &Array| array.take_axis(Array::from_int(matrix), 0);
                let gram = of_matrix(&grams)?;
                let hessian = Hessian::new(&gram, self.damping, act_order)?;
                let w = of_matrix(&stack)?.as_dtype(Dtype::Float32)?.multiply(&hessian.alive)?;
                Ok(Run { format, hessian, gram, w, matrix, dtype: weight.dtype() })
            })
        };
        match coder {
            Coder::Scaled(mut coder) => {
                let fitted = |run: Result<Run<'_>>| run?.fitted(&coder, self.refits);
                let (mut codes, scales): (Vec<_>, Vec<_>) =
                    runs().map(fitted).collect::<Result<Vec<_>>>()?.into_iter().unzip();
                let anew = coder.is_nested() && self.refits > 0;
                if anew || !coder.is_fixed() {
                    *coder = coder.with_scales(&scales)?;
                }
                if anew {
                    // Scales that were fitted are rounded together.
                    codes = runs().map(|run| Ok(run?.scaled(&coder, None)?.0)).collect::<Result<_>>()?;
                }
                coder.put_together(&codes)
            }
            Coder::Blocks(width) => {
                let adjusted = runs().map(|run| run?.blocks(width)).collect::<Result<Vec<_>>>()?;
                let adjusted = ops::concatenate(&adjusted, 0)?.reshape(weight.shape())?;
                let value = format.quantize(&adjusted.as_dtype(weight.dtype())?)?;
                tree::eval(&value)?;
                Ok(value)
            }
        }
    }
}

/// One matrix, `w: f32[n, k]`.
struct Run<'r> {
    format: &'r AnyFormat,
    hessian: Hessian,
    gram: Array,
    w: Array,
    matrix: i32,
    dtype: Dtype,
}

impl Run<'_> {
    /// The numbers that are coded, and their scales: of each row the best that was found.
    fn fitted(&self, coder: &Scaled, refits: u32) -> Result<(Array, FloatScales)> {
        let (numbers, scales) = self.scaled(coder, None)?;
        if refits == 0 || !coder.has_free_scales() {
            return Ok((numbers, scales));
        }
        let lost = |numbers: &Array| Ok::<_, Error>(errors(&self.w.subtract(numbers)?, &self.gram)?.sum_axis(1, true)?);
        let mut best = Best { lost: lost(&numbers)?, numbers, scales };
        let own = coder.fixed_scales(self.matrix, [self.w.dim(0), self.w.dim(1)])?;
        let squares = self.gram.diagonal(None, None, None)?;
        let searched = Search { coder, w: self.w.clone(), squares }.run(&own)?.scales;
        let numbers = self.scaled(coder, Some(&searched))?.0;
        best.keep(&numbers, &searched, &lost(&numbers)?)?;
        for _ in 0..refits {
            let (fitted, numbers) = refitted(&self.w, &best.numbers, &best.scales, &self.gram)?;
            // The same codes, and then codes anew.
            let reread = coder.read(&numbers, &fitted)?;
            let again = self.scaled(coder, Some(&fitted))?.0;
            for numbers in [reread, again] {
                best.keep(&numbers, &fitted, &lost(&numbers)?)?;
            }
        }
        Ok((best.numbers, best.scales))
    }

    /// The numbers that are coded, column by column, and their scales: those that are given, if they are.
    fn scaled(&self, coder: &Scaled, chosen: Option<&FloatScales>) -> Result<(Array, FloatScales)> {
        let (order, mut w) = (&self.hessian.order, self.w.clone());
        let (n, k) = (w.dim(0), w.dim(1));
        let natural = order.is_sorted();
        let fixed = match chosen {
            Some(chosen) => Some(chosen.clone()),
            None if coder.is_fixed() || !natural || coder.group == k => Some(coder.fixed_scales(self.matrix, [n, k])?),
            None => None,
        };
        if !natural {
            w = w.take_axis(Array::from_slice(order, &[k]), 1)?;
        }
        // A group that begins needs all errors before it.
        let together = if fixed.is_some() { TOGETHER } else { coder.group };
        let (mut coded, mut by_group) = (Vec::new(), Vec::new());
        let mut start = 0;
        while start < k {
            let end = (start + together).min(k);
            let ([part, rest], triangle) = (split(&w, end - start)?, self.triangle(start, end)?);
            let [corner, others] = split(&triangle, end - start)?;
            let (scales, first) = if let Some(fixed) = &fixed {
                (fixed, 0)
            } else {
                by_group.push(Scaled::scales(self.format, &part, self.dtype)?);
                (&by_group[by_group.len() - 1], start / coder.group)
            };
            let columns = &order[start as usize..end as usize];
            let groups: Vec<i32> = columns.iter().map(|input| input / coder.group - first).collect();
            let [rounded, errors] = coder.rounded(&part, &corner, scales, &groups)?;
            w = rest.subtract(errors.matmul(others)?)?;
            transforms::eval([&w, &rounded])?;
            coded.push(rounded);
            start = end;
        }
        let mut coded = ops::concatenate(&coded, 1)?;
        if !natural {
            coded = coded.take_axis(ops::argsort_axis(Array::from_slice(order, &[k]), 0)?, 1)?;
        }
        let scales = fixed.map_or_else(|| Scaled::joined(&by_group, 1), Ok)?;
        Ok((coded, scales))
    }

    /// The weight whose blocks of columns the format is to code: each with the errors of those before it.
    fn blocks(&self, width: i32) -> Result<Array> {
        let mut w = self.w.clone();
        let k = w.dim(1);
        let mut adjusted = Vec::new();
        for start in (0..k).step_by(width as usize) {
            let [part, rest] = split(&w, width)?;
            let error = part.subtract(dense(&self.format.quantize(&part.as_dtype(self.dtype)?)?)?)?;
            let [corner, others] = split(&self.triangle(start, start + width)?, width)?;
            w = rest.subtract(error.matmul(Hessian::inverse(&corner)?)?.matmul(others)?)?;
            transforms::eval([&w])?;
            adjusted.push(part);
        }
        Ok(ops::concatenate(&adjusted, 1)?)
    }

    /// The rows `start..end` of the triangle from their diagonal on.
    fn triangle(&self, start: i32, end: i32) -> Result<Array> {
        let rows = self.hessian.upper.split_at_indices(&[start, end], 0)?.swap_remove(1);
        Ok(rows.split_at_indices(&[start], 1)?.swap_remove(1))
    }
}

fn split(x: &Array, width: i32) -> Result<[Array; 2]> {
    let parts = x.split_at_indices(&[width], 1)?;
    <[Array; 2]>::try_from(parts).map_err(|_| Error::decline(format!("{} is not split", Aval::from(x))))
}
