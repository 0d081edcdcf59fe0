//! How a format's scales are chosen, as an option of its quantizer.

use std::fmt;
use std::str::FromStr;

use mlx_rs::Array;
use tacit_core::{Error, Result, Value};

use super::any::AnyFormat;
use super::declaration::Quantizer;
use super::trained_scales::TrainedScales;

/// How the scales of a format are chosen, and its biases where it has them.
///
/// As text it stands behind that of the format: `nf4:64+search`, `affine:4:64+hqq`; see [`Fitted`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fit {
    /// As the format is defined: by the largest magnitude of a block, its range, or its mean magnitude.
    #[default]
    Absmax,
    /// By the least sum of squared errors of each block: among the format's own scale and so many multiples of it, then by
    /// two steps of least squares from the best of them. As text `search` or `search:STEPS`.
    Search {
        /// Multiples that are tried.
        steps: u32,
    },
    /// By the least sum of the `0.7`th powers of the errors, which leaves outliers to themselves, in so many rounds of the
    /// half-quadratic method of HQQ (Badri and Shaji, 2023): outliers are taken out of what remains by a soft threshold, and
    /// scale and bias follow the rest by least squares. The paper moves the zero point alone, which formats without biases do
    /// not have. The round of the least error counts, block by block. As text `hqq` or `hqq:ROUNDS`.
    HalfQuadratic {
        /// Rounds.
        rounds: u32,
    },
}

/// Steps and rounds that more of gain little over.
const USUAL: u32 = 20;

/// The most that a text asks for: each takes longer than quantizing.
const MOST: u32 = 1000;

impl Fit {
    /// A search of the usual number of steps.
    #[must_use]
    pub const fn search() -> Self {
        Self::Search { steps: USUAL }
    }

    /// The half-quadratic method in the usual number of rounds.
    #[must_use]
    pub const fn half_quadratic() -> Self {
        Self::HalfQuadratic { rounds: USUAL }
    }

    fn read(text: &str) -> Option<Self> {
        let (name, count) = match text.split_once(':') {
            Some((name, count)) => (name, count.trim().parse().ok().filter(|count| (1..=MOST).contains(count))?),
            None => (text, USUAL),
        };
        match name.trim() {
            "search" => Some(Self::Search { steps: count }),
            "hqq" => Some(Self::HalfQuadratic { rounds: count }),
            _ => None,
        }
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, count) = match *self {
            Self::Absmax => ("absmax", USUAL),
            Self::Search { steps } => ("search", steps),
            Self::HalfQuadratic { rounds } => ("hqq", rounds),
        };
        f.write_str(name)?;
        if count == USUAL { Ok(()) } else { write!(f, ":{count}") }
    }
}

impl FromStr for Fit {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let read = if text.trim() == "absmax" { Some(Self::Absmax) } else { Self::read(text) };
        read.ok_or_else(|| Error::invalid(format!("scales are not fitted by {text}"), FITS))
    }
}

const FITS: &str = "write absmax, search, search:STEPS, hqq or hqq:ROUNDS, with a number from 1 to 1000";

/// A format whose scales are chosen by a [`Fit`]: `nf4:64+search`, `rotated:affine:4:64+hqq`.
///
/// What it makes is an array of the format itself, which is read, multiplied and saved as ever; only quantizing takes longer,
/// by some seconds for an `f32[4096,4096]`. Scales that are quantized themselves are rounded after they were fitted, and codes
/// chosen for what they became; scales that are powers of two have few neighbors, and the half-quadratic method seldom moves
/// them. No gradient reaches the scales.
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
    /// `inner` has no scales that can be chosen, or says itself how it chooses them.
    pub fn new(inner: impl Into<AnyFormat>, fit: Fit) -> Result<Self> {
        let inner = inner.into();
        if fit != Fit::Absmax && !inner.fits() {
            return Err(unfit(&inner.to_string(), fit));
        }
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

/// What is wrong with a fit of a format without scales.
pub(super) fn unfit(format: &str, fit: Fit) -> Error {
    Error::invalid(
        format!("the format {format} has no scales to choose by {fit}"),
        "leave the fit out, or take a format with scales, such as nf4:64",
    )
}

/// The text of a format and the fit behind it, if there is one.
pub(super) fn split(text: &str) -> Option<(&str, Fit)> {
    // A number of a codebook may be written with a plus.
    let (format, fit) = text.rsplit_once('+')?;
    Some((format, fit.parse().ok()?))
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
