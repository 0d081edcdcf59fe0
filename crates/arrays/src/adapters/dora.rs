//! Weight-decomposed low-rank adaptation: direction and magnitude of each row, adapted apart.

use std::ops::Range;

use mlx_rs::{Array, Dtype, ops, stop_gradient};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, implicit};

use crate::adapters::factors;
use crate::adapters::lora::Lora;
use crate::avals::checks::{check_children, check_float, checked, stored_shape};
use crate::avals::dtypes::accumulator_dtype;
use crate::families::adapter::Adapter;
use crate::families::cut::{Cut, cut};
use crate::families::linear::{Gain, Linear, Product, dense_operand};
use crate::families::structural;
use crate::kernel::{Measure, Summands};

/// `m / |base + alpha / r * B A| * (base + alpha / r * B A)`, where `| |` is the length of each row, of which no part is
/// built.
///
/// The factors are those of a [`Lora`], and `m: [out]` is mlx-lm's `m` and PEFT's `lora_magnitude_vector`. The lengths
/// count as constants in the gradient, as in both libraries. They are measured in each product, which over a packed base
/// reads its codes once more.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::{Dora, Nf4Array};
/// use tacit_core::implicit;
///
/// let base = Nf4Array::quantize(&ops::ones::<f32>(&[8, 32])?, 64)?;
/// let w = Dora::new(base, ops::ones::<f32>(&[2, 32])?, ops::zeros::<f32>(&[8, 2])?, 16.0)?;
/// let x = ops::ones::<f32>(&[2, 32])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [32.0; 16]);
/// # Ok(())
/// # }
/// ```
///
/// The method is that of `DoRA` (Liu et al., 2024); dropout, as in PEFT, does not change the lengths.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Dora", family(Linear, Adapter, Cut))]
pub struct Dora {
    /// `[out, in]`, or `[in, out]` where `transposed`.
    base: Value,
    /// PEFT's `lora_A`, `[r, in]`.
    #[implicit(get)]
    a: Array,
    /// PEFT's `lora_B`, `[out, r]`.
    #[implicit(get)]
    b: Array,
    /// The magnitude of each row, `[out]`.
    #[implicit(get)]
    m: Array,
    /// Which input features are dropped: `u32[2]`.
    key: Option<Array>,
    /// The bits of an `f32`.
    #[implicit(aux)]
    alpha: u32,
    /// The bits of the probability, an `f32`.
    #[implicit(aux)]
    dropout: u32,
    #[implicit(aux)]
    transposed: bool,
    #[implicit(aux)]
    aval: Aval,
}

impl Dora {
    /// Magnitudes that are the lengths of the rows of `base: [out, in]`, so that the array is the base as long as the
    /// product of `b: [out, r]` and `a: [r, in]` is zero.
    ///
    /// # Errors
    ///
    /// As for [`Lora::new`]; or the base is neither dense nor packed, and the policy forbids to build it.
    pub fn new(base: impl Into<Value>, a: Array, b: Array, alpha: f32) -> Result<Self> {
        let still = Lora::new(base, a.clone(), ops::zeros_like(&b)?, alpha)?;
        let m = norms(&still, || still.built())?;
        Self::with_magnitudes(still.base, a, b, m, alpha)
    }

    /// The same with magnitudes `m: [out]` of their own.
    ///
    /// # Errors
    ///
    /// As for [`Lora::new`], or `m` is not float or not `[out]`.
    pub fn with_magnitudes(base: impl Into<Value>, a: Array, b: Array, m: Array, alpha: f32) -> Result<Self> {
        let base = base.into();
        let aval = base.aval()?;
        checked(Self { base, a, b, m, key: None, alpha: alpha.to_bits(), dropout: 0, transposed: false, aval })
    }

    /// The same with input features of `a` dropped, as [`Lora::with_dropout`] has it.
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
        self.direction(None).scale()
    }

    /// The sum of which each row has the direction.
    fn direction(&self, key: Option<Array>) -> Lora {
        let Self { base, a, b, alpha, dropout, transposed, aval, .. } = self.clone();
        Lora { base, a, b, key, alpha, dropout, transposed, aval }
    }

    /// What each row of the sum is multiplied by, in the type in which that is summed.
    fn factors(&self) -> Result<Array> {
        let sum = self.direction(None);
        self.factors_by(norms(&sum, || sum.built())?)
    }

    /// The same where the length of each row is known.
    fn factors_by(&self, norms: Array) -> Result<Array> {
        // A row of zeros has no direction, and stays one whatever its magnitude.
        let zero = Array::from_f32(0.0);
        let none = norms.eq(&zero)?;
        let norms = ops::select(&none, Array::from_f32(1.0), norms)?;
        let factors = self.m.as_dtype(Dtype::Float32)?.divide(norms)?;
        Ok(ops::select(none, zero, factors)?.as_dtype(accumulator_dtype(self.aval.dtype))?)
    }
}

/// The length of each row of a sum as it is before it is transposed: `f32[out]`, a constant in gradients. `built` gives the
/// dense sum where it is measured of that.
fn norms(sum: &Lora, built: impl FnOnce() -> Result<Array>) -> Result<Array> {
    if let Some(summands) = sum.summands(sum.transposed)? {
        return summands.measure(Measure::Norm);
    }
    let squares = stop_gradient(built()?)?.as_dtype(Dtype::Float32)?.square()?;
    Ok(squares.sum_axis(i32::from(!sum.transposed), None)?.sqrt()?)
}

impl Materialize for Dora {
    fn materialize(&self) -> Result<Value> {
        // Both sums are of one dense base, which is built once.
        let on_dense = Self { base: self.base.dense()?.into(), ..self.clone() };
        let sum = on_dense.direction(self.key.clone()).built()?;
        // Measured as for a product, so that both have the same rows.
        let norms = norms(&self.direction(None), || match &self.key {
            None => Ok(sum.clone()),
            Some(_) => on_dense.direction(None).built(),
        })?;
        let factors = self.factors_by(norms)?.expand_dims(i32::from(!self.transposed))?;
        Ok(sum.multiply(factors)?.as_dtype(self.aval.dtype)?.into())
    }

    fn check(&self) -> Result<()> {
        self.direction(self.key.clone()).check()?;
        let aval = self.base.aval()?;
        let out = stored_shape(&aval, self.transposed)?[0];
        check_float("m", &Aval::from(&self.m))?;
        let m = Aval::new(&[out], self.m.dtype());
        check_children("a Dora", &self.aval, &[("m", m, Aval::from(&self.m)), ("its base", self.aval.clone(), aval)])
    }
}

impl Cut for Dora {
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
        let base = cut(&self.base, axis as i32, range.clone())?;
        if !factors::is_output(axis, self.transposed) {
            return Err(Error::invalid(
                format!(
                    "a Dora of {} is not cut along its inputs: the length of a row is that of all of it",
                    self.aval
                ),
                "cut it along its outputs, or merge it first",
            ));
        }
        let (b, m) = (factors::factor(&self.b, 0, &range)?, factors::factor(&self.m, 0, &range)?);
        Ok(Self { aval: base.aval()?, base, b, m, ..self.clone() }.into())
    }
}

impl Linear for Dora {
    fn product(&self, product: Product, x: &Value) -> Result<Value> {
        implicit(self.product_widely(product, x)?, |result| result.as_dtype(self.aval.dtype))
    }

    fn product_widely(&self, product: Product, x: &Value) -> Result<Value> {
        let x = dense_operand(x)?;
        let x = if x.dtype().is_float() { &x.as_dtype(accumulator_dtype(self.aval.dtype))? } else { x };
        let (factors, sum) = (self.factors()?, self.direction(self.key.clone()));
        let multiply = |x: &Array| sum.product_widely(product, &x.into())?.dense();
        Ok(product.of_multiplied(x, &factors, self.transposed, multiply)?.into())
    }

    fn gain(&self) -> Gain {
        Gain::Sum
    }

    fn transposed(&self, _axes: &[i32]) -> Result<Value> {
        let (base, aval) = factors::transposed(&self.base)?;
        Ok(Self { base, aval, transposed: !self.transposed, ..self.clone() }.into())
    }
}

impl Adapter for Dora {
    fn base(&self) -> &Value {
        &self.base
    }

    fn with_base(&self, base: Value) -> Result<Box<dyn ImplicitArray>> {
        Ok(Box::new(checked(Self { aval: base.aval()?, base, ..self.clone() })?))
    }

    fn trained(&self) -> &'static [&'static str] {
        &["a", "b", "m"]
    }

    fn dropout(&self) -> f32 {
        f32::from_bits(self.dropout)
    }

    fn with_key(&self, key: Option<Array>) -> Result<Box<dyn ImplicitArray>> {
        Ok(Box::new(checked(Self { key, ..self.clone() })?))
    }

    fn summands(&self, transposed: bool) -> Result<Option<Summands>> {
        if transposed || self.transposed {
            return Ok(None);
        }
        let factors = self.direction(self.key.clone()).factors(Dtype::Float32)?;
        factors::summands(&self.base, factors, Some(self.factors()?), transposed)
    }

    /// The whole product: each magnitude multiplies all of a row.
    fn change(&self, product: Product, x: &Array) -> Result<Array> {
        let base = structural::stopped(&self.base)?;
        Self { base, ..self.clone() }.product(product, &x.into())?.dense()
    }
}
