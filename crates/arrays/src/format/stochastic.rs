//! A format with stochastic rounding: its codes are drawn at random.

use std::fmt;

use mlx_rs::Array;
use tacit_core::{Error, Result, Value};

use super::any::AnyFormat;
use super::declaration::Quantizer;

/// A format to which elements are rounded at random, so that the mean of what they become is what they were:
/// `dynamic:8:256+stochastic`, `nf4:64+search+stochastic`.
///
/// An element takes one of the two values around it, the nearer one more often; the scales are those of the format. A number that is
/// coded anew in each step, such as a moment of an optimizer, so follows changes that are far smaller than the distance of two
/// codes: the nearest code would stay the same. [`quantize_by_key`](super::quantize_by_key) takes the random key; for moments the
/// `QuantizedState` of `tacit::model` holds it.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops, random};
/// use tacit_arrays::format::{AnyFormat, Nf4, Stochastic, quantize_by_key};
///
/// let format = Stochastic::new(Nf4 { block: 64, double: false })?;
/// let x = ops::eye::<f32>(64, None, None)?.add(Array::from_f32(0.01))?;
/// let nearest = format.inner().quantize(&x)?.dense()?.mean(None)?.item_exact::<f32>();
/// let drawn = quantize_by_key(format.clone(), &x, &random::key(1)?)?.dense()?.mean(None)?.item_exact::<f32>();
/// assert!((nearest - 0.0256).abs() > 9e-3);
/// assert!((drawn - 0.0256).abs() < 3e-3);
/// assert_eq!(AnyFormat::from(format), "nf4:64+stochastic".parse()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stochastic {
    inner: AnyFormat,
}

impl Stochastic {
    /// `inner`, whose codes are drawn.
    ///
    /// # Errors
    ///
    /// Those of `inner` are already.
    pub fn new(inner: impl TryInto<AnyFormat, Error: Into<Error>>) -> Result<Self> {
        let inner = inner.try_into().map_err(Into::into)?;
        refuse_within(&inner)?;
        Ok(Self { inner })
    }

    /// The format.
    #[must_use]
    pub fn inner(&self) -> &AnyFormat {
        &self.inner
    }
}

impl Quantizer for Stochastic {
    fn quantize(&self, _: &Array) -> Result<Value> {
        Err(Error::invalid(
            format!("the format {self} rounds by a random key, and there is none here"),
            format!("give one to `format::quantize_by_key`, or round to the nearest codes by {}", self.inner),
        ))
    }

    fn stores(&self, value: &Value) -> bool {
        self.inner.stores(value)
    }

    fn stochastic(&self) -> Option<&dyn Quantizer> {
        Some(&*self.inner)
    }

    fn supported(&self) -> Result<()> {
        self.inner.supported()
    }
}

impl fmt::Display for Stochastic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{STOCHASTIC}", self.inner)
    }
}

const STOCHASTIC: &str = "stochastic";

/// The text of the format whose codes are drawn, where this is the text of one.
pub(super) fn split(text: &str) -> Option<&str> {
    text.rsplit_once('+').filter(|(_, property)| property.trim() == STOCHASTIC).map(|(format, _)| format)
}

/// Refuses a format whose codes are drawn as a part of another one.
pub(super) fn refuse_within(inner: &AnyFormat) -> Result<()> {
    if inner.stochastic().is_none() {
        return Ok(());
    }
    Err(Error::invalid(
        format!("the format {inner} rounds at random, and cannot be part of another format"),
        "say `+stochastic` once, behind the text of the whole format",
    ))
}
