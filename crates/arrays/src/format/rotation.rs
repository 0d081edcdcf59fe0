//! A stored format of rotated rows.

use mlx_rs::{Array, Dtype};
use tacit_core::{Aval, Error, Result, Value, implicit};

use super::any::AnyFormat;
use super::declaration::{Quantizer, TextForm};
use super::fit::Fit;
use super::pieces::RowPieces;
use super::stochastic::refuse_within;
use super::text::parse;
use super::trained_scales::{FloatScales, TrainedScales};
use crate::kernel::hadamard;
use crate::register_format;
use crate::views::rotated::{Rotated, check};

/// Any format of rows that are rotated by a Hadamard matrix along the last axis: `rotated:affine:4:64`, `rotated:nf4:64`.
///
/// It makes a [`Rotated`]. Its text is that of the format behind a word.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rotation {
    inner: AnyFormat,
}

impl Rotation {
    /// `inner` of rotated rows.
    ///
    /// # Errors
    ///
    /// `inner` is a rotation, after which a second one would be none, or its codes are [drawn](super::Stochastic), which is said of
    /// the whole.
    pub fn new(inner: impl TryInto<AnyFormat, Error: Into<Error>>) -> Result<Self> {
        let inner = inner.try_into().map_err(Into::into)?;
        refuse_within(&inner)?;
        if inner.to_string().split(':').next() == Some(Self::NAME) {
            return Err(Error::invalid(
                format!("the format {inner} is a rotation itself, and two rotations cancel each other"),
                "name a format that does not rotate",
            ));
        }
        Ok(Self { inner })
    }

    /// The format of the rotated rows.
    #[must_use]
    pub fn inner(&self) -> &AnyFormat {
        &self.inner
    }
}

/// The rotated array, if `value` is rotated along the last axis.
pub(super) fn behind(value: &Value) -> Option<&Value> {
    let array = value.downcast::<Rotated>()?;
    (array.axis() + 1 == value.aval().ok()?.shape.len()).then(|| array.inner())
}

/// `x`, rotated; an array without a rotation is an error that says so.
///
/// What is rotated may be beyond the range of `f16`: that is `f32`.
pub(super) fn rotated(x: &Array) -> Result<Array> {
    let aval = Aval::from(x);
    let last = aval.shape.len().checked_sub(1);
    check(&aval, last.ok_or_else(|| Error::invalid(format!("{aval} has no axis to rotate"), "keep a scalar dense"))?)?;
    if aval.dtype == Dtype::Float16 { hadamard(&x.as_dtype(Dtype::Float32)?) } else { hadamard(x) }
}

/// What `inner`, made of the rotated `x`, stands for: in the type of `x`.
fn read(inner: Value, x: &Aval) -> Result<Value> {
    let inner =
        if x.dtype == Dtype::Float16 { implicit(inner, |inner| inner.as_dtype(Dtype::Float16))? } else { inner };
    Rotated::view(inner, x.shape.len().saturating_sub(1))
}

impl Quantizer for Rotation {
    fn quantize(&self, x: &Array) -> Result<Value> {
        read(self.inner.quantize(&rotated(x)?)?, &x.into())
    }

    fn quantize_pieces(&self, pieces: &RowPieces) -> Result<Option<Value>> {
        let dtype = pieces.aval().dtype;
        let rotated_pieces = pieces.mapped(rotated, if dtype == Dtype::Float16 { Dtype::Float32 } else { dtype });
        self.inner.quantize_pieces(&rotated_pieces)?.map(|inner| read(inner, pieces.aval())).transpose()
    }

    fn quantize_by_fit(&self, x: &Array, fit: Fit) -> Result<Value> {
        read(self.inner.quantize_by_fit(&rotated(x)?, fit)?, &x.into())
    }

    fn fits(&self, fit: Fit) -> bool {
        self.inner.fits(fit)
    }

    fn stores(&self, value: &Value) -> bool {
        behind(value).is_some_and(|inner| self.inner.stores(inner))
    }

    fn trained_scales(&self) -> Option<&dyn TrainedScales> {
        self.inner.trained_scales().map(|_| self as &dyn TrainedScales)
    }

    fn supported(&self) -> Result<()> {
        self.inner.supported()
    }
}

impl TrainedScales for Rotation {
    fn scales_of(&self, value: &Value) -> Option<FloatScales> {
        self.inner.trained_scales()?.scales_of(behind(value)?)
    }

    fn quantize_by(&self, x: &Array, scales: &FloatScales) -> Result<(Value, Array)> {
        let trained = self.inner.trained_scales().ok_or_else(|| {
            Error::invalid(format!("the format {self} has no scales that can be trained"), "train the master alone")
        })?;
        let (inner, derivative) = trained.quantize_by(&rotated(x)?, scales)?;
        // The rotation is linear, and so that of the derivative.
        Ok((read(inner, &x.into())?, hadamard(&derivative)?.as_dtype(x.dtype())?))
    }
}

impl TextForm for Rotation {
    const NAME: &'static str = "rotated";
    const FORMS: &'static str = "rotated:FORMAT with the options of that format behind it, such as rotated:nf4:64";

    fn options(&self) -> String {
        format!(":{}", self.inner)
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        // Two rotations cancel each other, and a text of a thousand would be read on as many frames of the stack.
        if options.first().is_none_or(|&name| name == Self::NAME) {
            return None;
        }
        Self::new(parse(&options.join(":")).ok()?).ok()
    }
}

register_format!(Rotation);
