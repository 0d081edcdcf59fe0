//! Several adapters on one base; an array selects the one in use.

use std::ops::Range;

use mlx_rs::{Array, Dtype, ops};
use tacit_core::transform::{Differentiable, apply};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, implicit};

use crate::adapters::factors;
use crate::adapters::lora::Lora;
use crate::avals::axes::with_last;
use crate::avals::checks::{check_children, check_float, checked, stored_shape};
use crate::avals::dtypes::accumulator_dtype;
use crate::families::adapter::Adapter;
use crate::families::cut::{Cut, cut};
use crate::families::linear::{Gain, Linear, Product, dense_operand};
use crate::kernel::Summands;
use crate::kernel::derivatives::gradients;

/// The sum of a base and one of several adapters, which an index chooses: the same graph for all of them.
///
/// `index: u32[]` chooses one for whole products; `index: u32[n]` one for each of `n` parts of the rows of `x W^T`, in
/// their order, such as the sequences of a batch. One that is not below the number of adapters chooses none, and the
/// product is that with the base. The index is a child like any other, so that under `compile` another one takes no
/// retrace.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops};
/// use tacit_arrays::{Lora, LoraSet, Nf4Array};
/// use tacit_core::implicit;
///
/// let base = Nf4Array::quantize(&ops::ones::<f32>(&[1, 32])?, 64)?;
/// let lora = |b: f32| Lora::new(base.clone(), ops::ones::<f32>(&[1, 32])?, Array::from_slice(&[b], &[1, 1]), 1.0);
/// let each_row = Array::from_slice(&[1u32, 0, 2], &[3]);
/// let w = LoraSet::new(&[lora(1.0)?, lora(2.0)?], each_row)?;
/// let x = ops::ones::<f32>(&[3, 32])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [96.0, 64.0, 32.0]);
/// # Ok(())
/// # }
/// ```
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.LoraSet", family(Linear, Adapter, Cut))]
pub struct LoraSet {
    /// `[out, in]`, or `[in, out]` where `transposed`.
    base: Value,
    /// `[count, r, in]`.
    a: Array,
    /// `[count, out, r]`.
    b: Array,
    /// Which of them is in use. It is `u32[]` or `u32[n]`.
    #[implicit(get)]
    index: Array,
    /// The factor of each product, as the bits of an `f32`.
    #[implicit(aux)]
    scales: Vec<u32>,
    #[implicit(aux)]
    transposed: bool,
    #[implicit(aux)]
    aval: Aval,
}

impl LoraSet {
    /// These adapters on the base of the first; a rank below the greatest is filled up with zeros, and dropout is left out.
    ///
    /// # Errors
    ///
    /// There are none, they are of different shapes or float types or transposed, or the index is neither `u32[]` nor
    /// `u32[n]`.
    pub fn new(loras: &[Lora], index: Array) -> Result<Self> {
        let Some(first) = loras.first() else {
            return Err(Error::invalid("there are no adapters in the set", "give at least one"));
        };
        let fits = |lora: &Lora| {
            lora.aval == first.aval
                && !lora.transposed
                && [lora.a.dtype(), lora.b.dtype()] == [first.a.dtype(), first.b.dtype()]
        };
        if let Some(other) = loras.iter().find(|lora| !fits(lora)) {
            return Err(Error::invalid(
                format!("adapters of {} and {} are in no set", first.aval, other.aval),
                "give adapters of one shape, in one float type, that are not transposed",
            ));
        }
        let rank = loras.iter().map(|lora| lora.a.dim(0)).max().unwrap_or(1);
        let filled = |array: &Array, axis: usize| {
            let mut widths = [(0, 0); 2];
            widths[axis].1 = rank - array.dim(axis as i32);
            ops::pad(array, &widths[..], None, None)
        };
        let a: Vec<Array> = loras.iter().map(|lora| filled(&lora.a, 0)).collect::<Result<_, _>>()?;
        let b: Vec<Array> = loras.iter().map(|lora| filled(&lora.b, 1)).collect::<Result<_, _>>()?;
        checked(Self {
            base: first.base.clone(),
            a: ops::stack(&a, 0)?,
            b: ops::stack(&b, 0)?,
            index,
            scales: loras.iter().map(|lora| lora.scale().to_bits()).collect(),
            transposed: false,
            aval: first.aval.clone(),
        })
    }

    /// The same set with another choice.
    ///
    /// # Errors
    ///
    /// The index is neither `u32[]` nor `u32[n]`.
    pub fn with_index(&self, index: Array) -> Result<Self> {
        checked(Self { index, ..self.clone() })
    }

    /// The number of adapters.
    #[must_use]
    pub fn count(&self) -> usize {
        self.scales.len()
    }

    /// Left and right factors of those in use, the left ones scaled: `[n, .., r]` and `[n, r, ..]`. Those of none are zeros.
    fn factors(&self, dtype: Dtype) -> Result<[Array; 2]> {
        let index = self.index.reshape(&[-1])?;
        let number = |number: usize| Array::from_slice(&[number as u32], &[]);
        let used = index.lt(number(self.count()))?.reshape(&[-1, 1, 1])?;
        let indices = ops::minimum(&index, number(self.count() - 1))?;
        let zero = Array::from_f32(0.0).as_dtype(dtype)?;
        // Both factors: zero times an infinity or a NaN of an adapter that is not in use is a NaN.
        let in_use =
            |stack: &Array| -> Result<Array> { Ok(ops::select(&used, widened(stack, &indices, dtype)?, &zero)?) };
        let (a, b) = (in_use(&self.a)?, in_use(&self.b)?);
        let scales: Vec<f32> = self.scales.iter().map(|scale| f32::from_bits(*scale)).collect();
        let scales = Array::from_slice(&scales, &[scales.len() as i32]).take_axis(&indices, 0)?;
        let scales = scales.as_dtype(dtype)?.reshape(&[-1, 1, 1])?;
        let (left, right) = if self.transposed { (a.swap_axes(-1, -2)?, b.swap_axes(-1, -2)?) } else { (b, a) };
        Ok([left.multiply(scales)?, right])
    }

    /// The factors of the one in use.
    fn single(&self, dtype: Dtype) -> Result<[Array; 2]> {
        if self.index.ndim() > 0 {
            return Err(Error::decline(format!("{} adapters are in use at a time", self.index.dim(0))));
        }
        let [left, right] = self.factors(dtype)?;
        Ok([left.squeeze_axes(&[0])?, right.squeeze_axes(&[0])?])
    }
}

/// The chosen matrices of a stack in a wider type; no other one is widened.
fn widened(stack: &Array, indices: &Array, dtype: Dtype) -> Result<Array> {
    if stack.dtype() == dtype {
        return Ok(stack.take_axis(indices, 0)?);
    }
    Ok(apply(&[stack.clone(), indices.clone()], Widened { dtype })?.swap_remove(0))
}

/// Matrices of a stack by index, in a wider type. Their gradient is summed over all rows that chose a matrix in the wider type: bf16
/// counts to 256.
struct Widened {
    dtype: Dtype,
}

impl Differentiable for Widened {
    fn name(&self) -> &'static str {
        "chosen adapters"
    }

    fn forward(&self, args: &[Array]) -> Result<Vec<Array>> {
        Ok(vec![args[0].take_axis(&args[1], 0)?.as_dtype(self.dtype)?])
    }

    fn backward(&self, primals: &[Array], cotangents: &[Array], _: &[Array]) -> Result<Vec<Array>> {
        let indices = &primals[1];
        let of_wide = |stack: Vec<Array>| -> Result<Vec<Array>> {
            Ok(vec![stack[0].as_dtype(self.dtype)?.take_axis(indices, 0)?])
        };
        let mut results = gradients(&primals[..1], cotangents, &of_wide)?;
        results.push(ops::zeros_like(indices)?);
        Ok(results)
    }
}

impl Materialize for LoraSet {
    fn materialize(&self) -> Result<Value> {
        if self.index.ndim() > 0 {
            return Err(Error::refuse(
                "each part of the rows has an adapter of its own, so that there is no one matrix",
            ));
        }
        Ok(factors::dense_sum(&self.base, |dtype| self.single(dtype))?.as_dtype(self.aval.dtype)?.into())
    }

    fn check(&self) -> Result<()> {
        let [base, a, b, index] =
            [self.base.aval()?, Aval::from(&self.a), Aval::from(&self.b), Aval::from(&self.index)];
        for (what, aval) in [("the base", &base), ("a", &a), ("b", &b)] {
            check_float(what, aval)?;
        }
        let shape = stored_shape(&base, self.transposed)?;
        let count = self.scales.len() as i32;
        let fits = match (shape.as_slice(), a.shape.as_slice(), b.shape.as_slice()) {
            (&[out, inputs], &[a_count, rank, a_inputs], &[b_count, b_out, b_rank]) => {
                [a_count, b_count, rank, a_inputs, b_out] == [count, count, b_rank, inputs, out]
            }
            _ => false,
        };
        if !fits {
            return Err(Error::invalid(
                format!("a is {a} and b is {b}, which are not {count} adapters of a base of {base}"),
                "give a: [count, r, in] and b: [count, out, r] for a base [out, in]",
            ));
        }
        if index.dtype != Dtype::Uint32 || index.shape.len() > 1 || index.shape == [0] {
            return Err(Error::invalid(
                format!("the index is {index}, which chooses no adapters"),
                "give u32[] for all rows, or u32[n] for n parts of them",
            ));
        }
        if let Some(scale) = self.scales.iter().map(|&bits| f32::from_bits(bits)).find(|scale| !scale.is_finite()) {
            return Err(Error::invalid(format!("the factor of an adapter is {scale}"), "give a finite one"));
        }
        check_children("a LoraSet", &self.aval, &[("its base", self.aval.clone(), base)])
    }
}

impl Cut for LoraSet {
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
        let base = cut(&self.base, axis as i32, range.clone())?;
        let mut part = Self { aval: base.aval()?, base, ..self.clone() };
        if factors::is_output(axis, self.transposed) {
            part.b = factors::factor(&self.b, 1, &range)?;
        } else {
            part.a = factors::factor(&self.a, 2, &range)?;
        }
        Ok(part.into())
    }
}

impl Linear for LoraSet {
    fn product(&self, product: Product, x: &Value) -> Result<Value> {
        implicit(self.product_widely(product, x)?, |result| result.as_dtype(self.aval.dtype))
    }

    fn product_widely(&self, product: Product, x: &Value) -> Result<Value> {
        let x = dense_operand(x)?;
        let changed = self.change(product, x)?;
        implicit((factors::in_room_of(&self.base, x)?, &self.base), |(x, base)| {
            let of_base = product.apply(&x, &base)?.as_dtype(changed.dtype())?;
            Ok::<_, Error>(of_base.add(&changed)?)
        })
    }

    fn gain(&self) -> Gain {
        Gain::Sum
    }

    fn transposed(&self, _axes: &[i32]) -> Result<Value> {
        let (base, aval) = factors::transposed(&self.base)?;
        Ok(Self { base, aval, transposed: !self.transposed, ..self.clone() }.into())
    }
}

impl Adapter for LoraSet {
    fn base(&self) -> &Value {
        &self.base
    }

    fn with_base(&self, base: Value) -> Result<Box<dyn ImplicitArray>> {
        Ok(Box::new(checked(Self { aval: base.aval()?, base, ..self.clone() })?))
    }

    fn trained(&self) -> &'static [&'static str] {
        &["a", "b"]
    }

    fn summands(&self, transposed: bool) -> Result<Option<Summands>> {
        if self.index.ndim() > 0 {
            return Ok(None);
        }
        factors::summands(&self.base, self.single(Dtype::Float32)?, None, transposed)
    }

    fn change(&self, product: Product, x: &Array) -> Result<Array> {
        let accumulator = accumulator_dtype(self.aval.dtype);
        if product != Product::Right || self.index.ndim() == 0 {
            return product.of_factors(x, &self.single(accumulator)?);
        }
        let x = x.as_dtype(accumulator)?;
        let [left, right] = self.factors(accumulator)?;
        let parts = left.dim(0);
        let rows: i32 = x.shape().iter().rev().skip(1).product();
        if rows % parts != 0 {
            return Err(Error::invalid(
                format!("{rows} rows are not {parts} parts of one length, each with an adapter of its own"),
                "give an index for each sequence of the batch",
            ));
        }
        let result = x.reshape(&[parts, rows / parts, x.dim(-1)])?.matmul(left)?.matmul(&right)?;
        Ok(result.reshape(&with_last(x.shape(), &[right.dim(-1)]))?)
    }
}
