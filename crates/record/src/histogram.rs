//! Histograms of many numbers.

use mlx_rs::{Array, Dtype};
use serde::{Deserialize, Serialize};
use tacit_core::{Error, Result};

/// How many numbers lie in each of some bins of equal width.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_record::Histogram;
///
/// let histogram = Histogram::from_array(&Array::from_slice(&[0.0f32, 1.0, 1.0, 4.0], &[2, 2]))?;
/// assert_eq!((histogram.from, histogram.to, histogram.len()), (0.0, 4.0, 4));
/// assert!((0.9..1.1).contains(&histogram.quantile(0.5).unwrap()));
/// # Ok(())
/// # }
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Histogram {
    /// The least number, where the first bin begins.
    pub from: f64,
    /// The largest number, where the last bin ends.
    pub to: f64,
    /// How many numbers are in each bin.
    pub counts: Vec<u64>,
    /// How many were infinite or NaN, and are in no bin.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub not_finite: u64,
}

const BINS: usize = 32;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Histogram {
    /// The histogram of an array's elements, in 32 bins; of an empty array it is empty.
    ///
    /// # Errors
    ///
    /// The array cannot be evaluated, as in a trace, or its elements are no real numbers.
    pub fn from_array(array: &Array) -> Result<Self> {
        if array.dtype() == Dtype::Complex64 {
            return Err(Error::invalid("complex numbers have no histogram", "record their magnitudes: `array.abs()`"));
        }
        if array.size() == 0 {
            return Ok(Self::from_numbers(&[]));
        }
        // As it is: one axis of all elements may be longer than MLX counts.
        let floats = array.as_dtype(Dtype::Float32)?.contiguous()?;
        Ok(Self::from_numbers(floats.try_as_slice()?))
    }

    fn from_numbers(numbers: &[f32]) -> Self {
        let finite = || numbers.iter().filter(|number| number.is_finite()).map(|&number| f64::from(number));
        let (from, to) = finite().fold((f64::INFINITY, f64::NEG_INFINITY), |(from, to), x| (from.min(x), to.max(x)));
        let mut counts = vec![0; BINS];
        for number in finite() {
            // A number where all are equal is in the first bin, and the largest in the last.
            let part = if to > from { (number - from) / (to - from) } else { 0.0 };
            counts[((part * BINS as f64) as usize).min(BINS - 1)] += 1;
        }
        let not_finite = numbers.len() as u64 - counts.iter().sum::<u64>();
        let (from, to) = if from <= to { (from, to) } else { (0.0, 0.0) };
        Self { from, to, counts, not_finite }
    }

    /// How many numbers are in the bins.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.counts.iter().fold(0, |sum: u64, &count| sum.saturating_add(count))
    }

    /// Whether no number is in a bin.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number below which this share of all lies, as if those of a bin lay evenly in it; `None` where no number is in a bin.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = share.clamp(0.0, 1.0) * self.len() as f64;
        let width = (self.to - self.from) / self.counts.len().max(1) as f64;
        let mut below = 0.0;
        for (bin, &count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = count as f64;
            if below + count >= wanted {
                return Some(self.from + width * (bin as f64 + (wanted - below) / count));
            }
            below += count;
        }
        None
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        if self.from.is_finite() && self.to.is_finite() && self.from <= self.to && !self.counts.is_empty() {
            return Ok(());
        }
        Err(format!("a histogram of {} bins from {} to {}", self.counts.len(), self.from, self.to))
    }
}
