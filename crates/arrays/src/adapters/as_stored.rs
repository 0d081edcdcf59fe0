//! An adapter that computes with its sum as a format stores it, so that a merge loses nothing.

use std::ops::Range;

use mlx_rs::{Array, ops};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value};

use crate::adapters::as_merged;
use crate::adapters::factors;
use crate::adapters::merge::rounding_as;
use crate::avals::checks::{check_children, check_transposed, checked, decline_if, stored_shape};
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
    /// The adapter, transposed if the array is.
    #[implicit(get)]
    sum: Value,
    /// The format.
    #[implicit(aux, get)]
    format: AnyFormat,
    /// Whether the array is the transpose of what the format quantizes.
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
    /// `adapter` is no adapter, the format has no such options, or it cannot hold an array of this shape.
    pub fn new(adapter: impl Into<Value>, format: impl TryInto<AnyFormat, Error: Into<Error>>) -> Result<Self> {
        let sum = adapter.into();
        let format = format.try_into().map_err(Into::into)?;
        checked(Self { aval: sum.aval()?, sum, format, transposed: false })
    }

    /// The quantized sum, without a gradient.
    ///
    /// # Errors
    ///
    /// The sum does not fit the format, or the policy forbids to build it where that is needed: see
    /// [`Quantizer::quantize_sum`](crate::format::Quantizer::quantize_sum).
    pub fn merged(&self) -> Result<Value> {
        // The format sees the rows that it has in a file, whichever way round the array is.
        let oriented = |value: &Value| -> Result<Value> {
            if self.transposed { Ok(factors::transposed(value)?.0) } else { Ok(value.clone()) }
        };
        let sum = oriented(&self.sum)?;
        let adapter = adapter(&sum)?;
        oriented(&rounding_as(adapter.base(), self.format.quantize_sum(adapter)?)?)
    }

    fn adapter(&self) -> Result<&dyn Adapter> {
        adapter(&self.sum)
    }

    /// The aval of what the format quantizes.
    fn stored(&self) -> Result<Aval> {
        Ok(Aval::new(&stored_shape(&self.aval, self.transposed)?, self.aval.dtype))
    }
}

fn adapter(sum: &Value) -> Result<&dyn Adapter> {
    sum.family::<dyn Adapter>().ok_or_else(|| {
        Error::invalid(format!("{sum} is no adapter"), "give a `Lora`, or another of the family `Adapter`")
    })
}

impl Materialize for AsStored {
    fn materialize(&self) -> Result<Value> {
        as_merged::built(&self.merged()?.opened()?, self)
    }

    fn check(&self) -> Result<()> {
        self.adapter()?;
        self.format.supported()?;
        check_transposed(&self.aval, self.transposed)?;
        check_children("an AsStored", &self.aval, &[("its sum", self.aval.clone(), self.sum.aval()?)])?;
        let stored = self.stored()?;
        // Lazy, and never evaluated.
        self.format.quantize(&ops::zeros_dtype(&stored.shape, stored.dtype)?)?;
        Ok(())
    }
}

impl Cut for AsStored {
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
        let along = if self.transposed { 1 - axis } else { axis };
        check_alike(&self.format, &self.stored()?, along, &range)?;
        let sum = cut(&self.sum, axis as i32, range)?;
        Ok(Self { aval: sum.aval()?, sum, ..self.clone() }.into())
    }
}

impl Linear for AsStored {
    fn product(&self, product: Product, x: &Value) -> Result<Value> {
        as_merged::straight_through(product, x, &self.merged()?, self)
    }

    fn gain(&self) -> Gain {
        Gain::Sum
    }

    fn transposed(&self, axes: &[i32]) -> Result<Value> {
        decline_if(axes != [1, 0], "only matrices are quantized the other way round")?;
        let (sum, aval) = factors::transposed(&self.sum)?;
        decline_if(sum.family::<dyn Adapter>().is_none(), "the transposed sum is no adapter")?;
        Ok(Self { sum, aval, transposed: !self.transposed, ..self.clone() }.into())
    }
}

impl Adapter for AsStored {
    fn base(&self) -> &Value {
        self.adapter().map_or(&self.sum, Adapter::base)
    }

    fn with_base(&self, base: Value) -> Result<Box<dyn ImplicitArray>> {
        let sum = Value::from(self.adapter()?.with_base(base)?);
        Ok(Box::new(Self { aval: sum.aval()?, sum, ..self.clone() }))
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

    fn summands(&self, transposed: bool) -> Result<Option<Summands>> {
        as_merged::summands(&self.merged()?, transposed)
    }

    fn change(&self, product: Product, x: &Array) -> Result<Array> {
        self.adapter()?.change(product, x)
    }

    fn lossless(&self) -> Result<Option<Value>> {
        Ok(Some(self.merged()?))
    }
}
