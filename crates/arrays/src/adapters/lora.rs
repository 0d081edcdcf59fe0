//! Low-rank adaptation: a frozen matrix and the product of two thin ones that are trained.

use std::ops::Range;

use mlx_rs::{Array, Dtype, random};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, implicit};

use crate::adapters::factors;
use crate::avals::checks::{check_children, check_float, check_key, checked, decline_if, stored_shape};
use crate::avals::dtypes::{accumulator_dtype, narrowing};
use crate::families::adapter::Adapter;
use crate::families::cut::{Cut, cut};
use crate::families::linear::{Factor, Gain, Linear, Product};
use crate::kernel::Summands;

/// The sum `base + alpha / r * B A`, of which no part is built: a product with it is one with each.
///
/// The base is any value; one that has handlers of its own, such as a 4-bit weight, keeps them. The factors are PEFT's:
/// `a: [r, in]`, `b: [out, r]` for a base `[out, in]`. Beside a base of a half type they are multiplied in `f32`, and their
/// product is rounded with the sum.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::{Lora, Nf4Array};
/// use tacit_core::implicit;
///
/// let base = Nf4Array::quantize(&ops::ones::<f32>(&[8, 32])?, 64)?;
/// let w = Lora::new(base, ops::ones::<f32>(&[2, 32])?, ops::zeros::<f32>(&[8, 2])?, 16.0)?;
/// let x = ops::ones::<f32>(&[2, 32])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [32.0; 16]);
/// # Ok(())
/// # }
/// ```
///
/// The method is that of `LoRA` (Hu et al., 2021), the convention that of the library PEFT.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Lora", family(Linear, Adapter, Cut))]
pub struct Lora {
    /// The frozen matrix, transposed if the sum is. It is `[out, in]`, or `[in, out]` where it is transposed.
    #[implicit(get)]
    pub(crate) base: Value,
    /// PEFT's `lora_A`, `[r, in]`.
    #[implicit(get)]
    pub(crate) a: Array,
    /// PEFT's `lora_B`, `[out, r]`.
    #[implicit(get)]
    pub(crate) b: Array,
    /// Which input features are dropped: `u32[2]`.
    pub(crate) key: Option<Array>,
    /// The bits of an `f32`.
    #[implicit(aux)]
    pub(crate) alpha: u32,
    /// The bits of the probability, an `f32`.
    #[implicit(aux)]
    pub(crate) dropout: u32,
    #[implicit(aux)]
    pub(crate) transposed: bool,
    #[implicit(aux)]
    pub(crate) aval: Aval,
}

impl Lora {
    /// `base + alpha / r * b a`, for `base: [out, in]`, `a: [r, in]`, `b: [out, r]`.
    ///
    /// # Errors
    ///
    /// An array is not float or has no elements, the shapes do not go together, or `alpha` is not finite.
    pub fn new(base: impl Into<Value>, a: Array, b: Array, alpha: f32) -> Result<Self> {
        let base = base.into();
        let aval = base.aval()?;
        checked(Self { base, a, b, key: None, alpha: alpha.to_bits(), dropout: 0, transposed: false, aval })
    }

    /// The same sum with input features of `a` dropped with probability `p`, the others scaled by `1 / (1 - p)`.
    ///
    /// The key, `u32[2]`, chooses the features. They are the same for all rows of a product, where PEFT drops elements
    /// of each row by themselves: only so is there one matrix that the product is with.
    ///
    /// # Errors
    ///
    /// `p` is not at least 0 and below 1, or the key is not `u32[2]`.
    pub fn with_dropout(self, p: f32, key: Array) -> Result<Self> {
        checked(Self { key: Some(key), dropout: p.to_bits(), ..self })
    }

    /// The factor `alpha / r` of the product of `b` and `a`.
    #[must_use]
    pub fn scale(&self) -> f32 {
        f32::from_bits(self.alpha) / self.a.dim(0) as f32
    }

    /// The sum as a dense array, without dropout.
    ///
    /// # Errors
    ///
    /// The policy forbids to build it, or the base refuses.
    pub fn merge(&self) -> Result<Value> {
        Ok(Value::from(Self { key: None, ..self.clone() }).dense()?.into())
    }

    /// Left and right factor of the product; the left one is scaled.
    pub(crate) fn factors(&self, dtype: Dtype) -> Result<[Array; 2]> {
        let number = |number: f32| Array::from_f32(number).as_dtype(dtype);
        let mut a = self.a.as_dtype(dtype)?;
        if let Some(key) = &self.key {
            let keep = 1.0 - f32::from_bits(self.dropout);
            let mask = random::bernoulli(&Array::from_f32(keep), &[self.a.dim(1)][..], key)?;
            a = a.multiply(mask.as_dtype(dtype)?.multiply(number(keep.recip())?)?)?;
        }
        let (scale, b) = (number(self.scale())?, self.b.as_dtype(dtype)?);
        let (left, right) = if self.transposed { (a.t(), b.t()) } else { (b, a) };
        Ok([left.multiply(scale)?, right])
    }

    /// The dense sum, in the type in which it is summed.
    pub(crate) fn built(&self) -> Result<Array> {
        factors::dense_sum(&self.base, |dtype| self.factors(dtype))
    }
}

impl Materialize for Lora {
    fn materialize(&self) -> Result<Value> {
        Ok(self.built()?.as_dtype(self.base.aval()?.dtype)?.into())
    }

    fn check(&self) -> Result<()> {
        let avals = [self.base.aval()?, Aval::from(&self.a), Aval::from(&self.b)];
        for (what, aval) in ["the base", "a", "b"].into_iter().zip(&avals) {
            check_float(what, aval)?;
        }
        let [aval, a_aval, b_aval] = avals;
        let shape = stored_shape(&aval, self.transposed)?;
        let fits = match (shape.as_slice(), self.a.shape(), self.b.shape()) {
            (&[out, inputs], &[rank, a_inputs], &[b_out, b_rank]) => (out, inputs, rank) == (b_out, a_inputs, b_rank),
            _ => false,
        };
        if !fits {
            return Err(Error::invalid(
                format!("a is {a_aval} and b is {b_aval}, which do not fit a base of {aval}"),
                "give a: [r, in] and b: [out, r] for a base [out, in]",
            ));
        }
        check_alpha(self.alpha)?;
        let p = f32::from_bits(self.dropout);
        if !(0.0..1.0).contains(&p) {
            return Err(Error::invalid(
                format!("the dropout probability is {p}"),
                "give one that is at least 0 and below 1",
            ));
        }
        if let Some(key) = &self.key {
            check_key("dropout key", key)?;
        }
        check_children("a Lora", &self.aval, &[("its base", self.aval.clone(), aval)])
    }
}

impl Cut for Lora {
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
        let base = cut(&self.base, axis as i32, range.clone())?;
        let mut part = Self { aval: base.aval()?, base, ..self.clone() };
        if factors::is_output(axis, self.transposed) {
            part.b = factors::factor(&self.b, 0, &range)?;
        } else if self.key.is_none() {
            part.a = factors::factor(&self.a, 1, &range)?;
        } else {
            return Err(Error::invalid(
                format!("a Lora of {} that drops inputs is not cut along them", self.aval),
                "cut it along its outputs, or train without dropout",
            ));
        }
        Ok(part.into())
    }
}

impl Linear for Lora {
    fn product(&self, product: Product, x: &Value) -> Result<Value> {
        implicit(self.product_widely(product, x)?, |result| result.as_dtype(self.aval.dtype))
    }

    /// In the type in which it is summed: rounded by whoever has done what is left to do.
    fn product_widely(&self, product: Product, x: &Value) -> Result<Value> {
        let dtype = self.aval.dtype;
        let (x, accumulator) = match x {
            Value::Dense(x) => (Value::from(factors::in_room_of(&self.base, x)?), accumulator_dtype(dtype)),
            // It may have no wider form.
            Value::Implicit(_) => (x.clone(), dtype),
        };
        let factors = self.factors(accumulator)?;
        implicit((x, &self.base), |(x, base)| {
            let of_base = product.apply(&x, &base)?.as_dtype(accumulator)?;
            Ok::<_, Error>(of_base.add(product.of_factors(&x, &factors)?)?)
        })
    }

    fn gain(&self) -> Gain {
        Gain::Sum
    }

    fn transposed(&self, _axes: &[i32]) -> Result<Value> {
        let (base, aval) = factors::transposed(&self.base)?;
        Ok(Self { base, aval, transposed: !self.transposed, ..self.clone() }.into())
    }

    /// The base in a narrower float type, whose range it has; the factors follow it where they are used.
    fn cast(&self, dtype: Dtype) -> Result<Value> {
        narrowing(&self.aval, dtype)?;
        let narrows = dtype == Dtype::Float16 && self.aval.dtype != dtype;
        decline_if(narrows, "the base may be beyond the range of f16 where the sum is not")?;
        let base = implicit(&self.base, |base| base.as_dtype(dtype))?;
        Ok(Self { aval: base.aval()?, base, ..self.clone() }.into())
    }

    /// The number goes to the base and to `b`, which must hold it as the base does. A divisor does not: `b` begins with zeros,
    /// and 0/0 is NaN. Nor does `b` of `f16`, which may be beyond the range that the sum is in.
    fn scaled(&self, by: &Factor) -> Result<Value> {
        let loses = by.divides() || self.b.dtype() != self.aval.dtype || self.aval.dtype == Dtype::Float16;
        decline_if(loses, "the factors do not hold the number as the sum does")?;
        let base = implicit(&self.base, |base| by.on(&base))?;
        Ok(Self { base, b: by.on(&self.b)?, ..self.clone() }.into())
    }
}

impl Adapter for Lora {
    fn base(&self) -> &Value {
        &self.base
    }

    fn with_base(&self, base: Value) -> Result<Box<dyn ImplicitArray>> {
        Ok(Box::new(checked(Self { aval: base.aval()?, base, ..self.clone() })?))
    }

    fn trained(&self) -> &'static [&'static str] {
        &["a", "b"]
    }

    fn dropout(&self) -> f32 {
        f32::from_bits(self.dropout)
    }

    fn with_key(&self, key: Option<Array>) -> Result<Box<dyn ImplicitArray>> {
        Ok(Box::new(checked(Self { key, ..self.clone() })?))
    }

    fn summands(&self, transposed: bool) -> Result<Option<Summands>> {
        factors::summands(&self.base, self.factors(Dtype::Float32)?, None, transposed)
    }

    fn change(&self, product: Product, x: &Array) -> Result<Array> {
        product.of_factors(x, &self.factors(accumulator_dtype(self.aval.dtype))?)
    }
}

pub(crate) fn check_alpha(alpha: u32) -> Result<()> {
    let alpha = f32::from_bits(alpha);
    if alpha.is_finite() {
        return Ok(());
    }
    Err(Error::invalid(format!("alpha is {alpha}"), "give a finite one; the rank is the usual choice"))
}
