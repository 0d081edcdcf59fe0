//! A format whose scales are fitted.

use std::fmt;

use mlx_rs::Array;
use tacit_core::{Error, Result, Value};

use super::any::AnyFormat;
use super::declaration::Quantizer;
use super::fit::{Fit, unfit};
use super::stochastic::refuse_within;
use super::trained_scales::TrainedScales;

/// A format whose scales are chosen by a [`Fit`]: `nf4:64+search`, `rotated:affine:4:64+hqq`, `dynamic:8:256+reach`.
///
/// What it makes is an array of the format itself, which is read, multiplied and saved as ever; only quantizing takes longer,
/// by some seconds for an `f32[4096,4096]`, but for `+reach`. Scales that are quantized themselves are rounded after they were fitted,
/// and codes chosen for what they became; scales that are powers of two have few neighbors, and the half-quadratic method seldom
/// moves them. No gradient reaches scales that are fitted by errors.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, random};
/// use tacit_arrays::format::{AnyFormat, Fit, Fitted, Nf4, Quantizer};
///
/// let w = random::normal::<f32>(&[64, 256], None, None, &random::key(0)?)?;
/// let error = |format: &dyn Quantizer| -> tacit_core::Result<f32> {
///     let lost = format.quantize(&w)?.dense()?.subtract(&w)?;
///     Ok(lost.square()?.mean(None)?.sqrt()?.item_exact::<f32>())
/// };
/// let own = Nf4 { block: 64, double: false };
/// let fitted = Fitted::new(own, Fit::search())?;
/// assert!(error(&fitted)? < 0.97 * error(&own)?);
/// assert_eq!(fitted.quantize(&w)?.to_string(), "Nf4(f32[64,256])");
/// assert_eq!(fitted.to_string(), "nf4:64+search");
/// assert_eq!(AnyFormat::from(fitted), "nf4:64+search".parse()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fitted {
    inner: AnyFormat,
    fit: Fit,
}

impl Fitted {
    /// `inner` with scales by `fit`.
    ///
    /// # Errors
    ///
    /// `inner` has no scales that can be chosen, or says itself how it chooses them, or that its codes are
    /// [drawn](super::Stochastic); or the number of steps or rounds is not one from 1 to 1000.
    pub fn new(inner: impl TryInto<AnyFormat, Error: Into<Error>>, fit: Fit) -> Result<Self> {
        let inner = inner.try_into().map_err(Into::into)?;
        refuse_within(&inner)?;
        if fit != Fit::Absmax && !inner.fits(fit) {
            return Err(unfit(&inner.to_string(), fit));
        }
        fit.check()?;
        Ok(Self { inner, fit })
    }

    /// The format.
    #[must_use]
    pub fn inner(&self) -> &AnyFormat {
        &self.inner
    }

    /// How its scales are chosen.
    #[must_use]
    pub fn fit(&self) -> Fit {
        self.fit
    }
}

impl Quantizer for Fitted {
    fn quantize(&self, x: &Array) -> Result<Value> {
        self.inner.quantize_by_fit(x, self.fit)
    }

    fn stores(&self, value: &Value) -> bool {
        self.inner.stores(value)
    }

    fn trained_scales(&self) -> Option<&dyn TrainedScales> {
        self.inner.trained_scales()
    }

    fn supported(&self) -> Result<()> {
        self.inner.supported()
    }
}

impl fmt::Display for Fitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fit {
            Fit::Absmax => self.inner.fmt(f),
            fit => write!(f, "{}+{fit}", self.inner),
        }
    }
}
