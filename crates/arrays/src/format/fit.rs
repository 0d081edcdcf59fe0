//! How a format's scales are chosen, as an option of its quantizer.

use std::fmt;
use std::str::FromStr;

use tacit_core::{Error, Result};

/// How the scales of a format are chosen, and its biases where it has them.
///
/// As text it stands behind that of the format: `nf4:64+search`, `affine:4:64+hqq`; see [`Fitted`](super::Fitted).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fit {
    /// As the format is defined: by the largest magnitude of a block, its range, or its mean magnitude.
    #[default]
    Absmax,
    /// By the least scale with which the outermost values of a table reach both ends of a block: one end is as it was, and nothing is
    /// cut off. By absmax elements are cut off on the side on which a table ends nearer to zero, as those of
    /// [`Dynamic`](super::Dynamic) do below it, and what is coded again and again loses that much each time. Blocks of which
    /// absmax cuts nothing off are the same, and so are all of a table that ends as far from zero on both sides, or has values on
    /// one alone. What is [rounded at random](super::quantize_by_key) reaches both ends by itself. As text `reach`.
    Reach,
    /// By the least sum of squared errors of each block: among the format's own scale and so many multiples of it, then by
    /// two steps of least squares from the best of them. Where scales are powers of two, three multiples are tried, however many
    /// are asked for. As text `search` or `search:STEPS`.
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

/// The most that a text asks for, and so a format, which is saved by its text: each takes longer than quantizing.
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

    /// Checks that a text says it: a format with a fit is saved by its text, and read again.
    pub(super) fn check(self) -> Result<()> {
        match self {
            Self::Search { steps: count } | Self::HalfQuadratic { rounds: count } if !(1..=MOST).contains(&count) => {
                Err(Error::invalid(format!("scales are not fitted by {self}"), FITS))
            }
            _ => Ok(()),
        }
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
            Self::Reach => ("reach", USUAL),
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
        let read = match text.trim() {
            "absmax" => Some(Self::Absmax),
            "reach" => Some(Self::Reach),
            text => Self::read(text),
        };
        read.ok_or_else(|| Error::invalid(format!("scales are not fitted by {text}"), FITS))
    }
}

const FITS: &str = "write absmax, reach, search, search:STEPS, hqq or hqq:ROUNDS, with a number from 1 to 1000";

pub(super) fn unfit(format: &str, fit: Fit) -> Error {
    let other = if fit == Fit::Reach { "of a table, such as dynamic:8:256" } else { "with scales, such as nf4:64" };
    Error::invalid(
        format!("the format {format} has no scales to choose by {fit}"),
        format!("leave the fit out, or take a format {other}"),
    )
}

pub(super) fn split(text: &str) -> Option<(&str, Fit)> {
    // A number of a codebook may be written with a plus.
    let (format, fit) = text.rsplit_once('+')?;
    Some((format, fit.parse().ok()?))
}
