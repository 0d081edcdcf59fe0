//! An adapter that is trained as it will be stored.

use std::ops::Range;

use mlx_rs::{Array, ops};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, implicit};

use crate::adapters::as_merged;
use crate::adapters::merge::rounding_as;
use crate::avals::checks::check_children;
use crate::families::adapter::Adapter;
use crate::families::cut::{Cut, cut};
use crate::families::linear::{Gain, Linear, Product};
use crate::format::AnyFormat;
use crate::kernel::Summands;
use crate::packed::alike::check_alike;

/// The sum that an adapter is, as a format stores it: `quantize(base + B A)`, with the gradient passed straight through to
/// the factors.
///
/// A merge into a coarse format rounds away much of a small change, and the model was never trained with what is left.
/// Here each product is with the quantized sum, so that [`merged`](Self::merged) loses nothing: it is what the products
/// were with, bit for bit. The codes are made anew for each product, block by block from the codes of the base and the
/// thin factors; the gradients of these are those of the product with the sum. Neither pass builds a dense matrix.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::format::Nf4;
/// use tacit_arrays::{AsStored, Lora, Nf4Array};
/// use tacit_core::implicit;
///
/// let base = Nf4Array::quantize(&ops::ones::<f32>(&[8, 32])?, 64)?;
/// let sum = Lora::new(base, ops::ones::<f32>(&[2, 32])?, ops::ones::<f32>(&[8, 2])?, 1.0)?;
/// let w = AsStored::new(sum, Nf4::from(64))?;
/// let merged = w.merged()?;
/// let x = ops::ones::<f32>(&[2, 32])?;
/// let trained = implicit((&x, w), |(x, w)| x.matmul(w.t()))?;
/// let stored = implicit((&x, merged), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(trained.dense()?.as_slice::<f32>(), stored.dense()?.as_slice::<f32>());
/// # Ok(())
/// # }
/// ```
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.AsStored", family(Linear, Adapter, Cut))]
pub struct AsStored {
    /// An [`Adapter`].
    sum: Value,
    #[implicit(aux)]
    format: AnyFormat,
    /// Whether the quantized sum is transposed.
    #[implicit(aux)]
    transposed: bool,
    #[implicit(aux)]
    aval: Aval,
}

impl AsStored {
    /// The sum that `adapter` is, as `format` stores it.
    ///
    /// # Errors
    ///
    /// `adapter` is none, the format has no such options, or it cannot hold an array of this shape.
    pub fn new(adapter: impl Into<Value>, format: impl TryInto<AnyFormat, Error: Into<Error>>) -> Result<Self> {
        let sum = adapter.into();
        let format = format.try_into().map_err(Into::into)?;
        let array = Self { aval: sum.aval()?, sum, format, transposed: false };
        array.check()?;
        // Lazy, and never evaluated.
        array.format.quantize(&ops::zeros_dtype(&array.aval.shape, array.aval.dtype)?)?;
        Ok(array)
    }

    /// The adapter.
    #[must_use]
    pub fn sum(&self) -> &Value {
        &self.sum
    }

    /// The format.
    #[must_use]
    pub fn format(&self) -> &AnyFormat {
        &self.format
    }

    /// The quantized sum, without a gradient.
    ///
    /// # Errors
    ///
    /// The sum does not fit the format, or the policy forbids to build it where that is needed: see
    /// [`Quantizer::quantize_sum`](crate::format::Quantizer::quantize_sum).
    pub fn merged(&self) -> Result<Value> {
        let adapter = self.adapter()?;
        let stored = rounding_as(adapter.base(), self.format.quantize_sum(adapter)?)?;
        if self.transposed { implicit(stored, |stored| Ok::<_, Error>(stored.t())) } else { Ok(stored) }
    }

    fn adapter(&self) -> Result<&dyn Adapter> {
        self.sum.family::<dyn Adapter>().ok_or_else(|| {
            Error::invalid(format!("{} is no adapter", self.sum), "give a `Lora`, or another of the family `Adapter`")
        })
    }

    /// The sum, transposed if the array is.
    fn transposed_sum(&self) -> Result<Value> {
        let sum = self.sum.clone();
        if self.transposed { implicit(sum, |sum| Ok::<_, Error>(sum.t())) } else { Ok(sum) }
    }
}

impl Materialize for AsStored {
    fn materialize(&self) -> Result<Value> {
        as_merged::built(&self.merged()?.opened()?, self)
    }

    fn check(&self) -> Result<()> {
        self.adapter()?;
        self.format.supported()?;
        let mut own = self.sum.aval()?;
        if self.transposed {
            own.shape.reverse();
        }
        check_children("an AsStored", &self.aval, &[("its sum", self.aval.clone(), own)])
    }
}

impl Cut for AsStored {
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
        let along = if self.transposed { 1 - axis } else { axis };
        check_alike(&self.format, &self.sum.aval()?, along, &range)?;
        let sum = cut(&self.sum, along as i32, range)?;
        let mut aval = sum.aval()?;
        if self.transposed {
            aval.shape.reverse();
        }
        Ok(Self { sum, aval, ..self.clone() }.into())
    }
}

impl Linear for AsStored {
    fn product(&self, product: Product, x: &Value) -> Result<Value> {
        as_merged::straight_through(product, x, &self.merged()?, self)
    }

    fn gain(&self) -> Gain {
        Gain::Sum
    }

    fn transposed(&self, _axes: &[i32]) -> Result<Value> {
        // The sum is quantized as it was.
        let mut transposed = Self { transposed: !self.transposed, ..self.clone() };
        transposed.aval.shape.reverse();
        Ok(transposed.into())
    }
}

impl Adapter for AsStored {
    fn base(&self) -> &Value {
        self.adapter().map_or(&self.sum, Adapter::base)
    }

    fn with_base(&self, base: Value) -> Result<Box<dyn ImplicitArray>> {
        let sum = Value::from(self.adapter()?.with_base(base)?);
        let mut aval = sum.aval()?;
        if self.transposed {
            aval.shape.reverse();
        }
        Ok(Box::new(Self { sum, aval, ..self.clone() }))
    }

    /// None of its own: those of the sum.
    fn trained(&self) -> &'static [&'static str] {
        &[]
    }

    fn dropout(&self) -> f32 {
        self.adapter().map_or(0.0, Adapter::dropout)
    }

    fn with_key(&self, key: Option<Array>) -> Result<Box<dyn ImplicitArray>> {
        Ok(Box::new(Self { sum: self.adapter()?.with_key(key)?.into(), ..self.clone() }))
    }

    /// What is quantized, before it is.
    fn summands(&self, transposed: bool) -> Result<Option<Summands>> {
        self.adapter()?.summands(transposed != self.transposed)
    }

    fn change(&self, product: Product, x: &Array) -> Result<Array> {
        let sum = self.transposed_sum()?;
        let sum = sum.family::<dyn Adapter>();
        sum.ok_or_else(|| Error::decline("the transposed sum is no adapter"))?.change(product, x)
    }

    fn lossless(&self) -> Result<Option<Value>> {
        Ok(Some(self.merged()?))
    }
}
