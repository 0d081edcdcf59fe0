//! Floats as 8-bit integers with a unit for each row, as products of integers take them.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops, random};
use tacit_core::kernel::{Input, Kernel, Mapped, Output, apply};
use tacit_core::{Aval, Error, Param, Result};
use tacit_kernels::{Int8Rounding, Orientation};

use super::host::{Fallible, floats, rows_of, several};

/// Rows of integers from -127 to 127: those of a matrix of floats, or of its transpose.
#[derive(Clone, Debug)]
pub(crate) struct Int8Rows {
    /// `i8[.., k]`; of a transpose `i8[k, m]`, for `x: [.., k]` of `m` rows.
    pub(crate) codes: Array,
    /// What an integer of each row is worth: `f32[..]`, or `f32[k]`. It is NaN where a float of the row is not finite.
    pub(crate) units: Array,
}

impl Int8Rows {
    /// The rows of `x: [.., k]`, or the columns of all its rows, rounded to the nearest integers; an element of such a row is
    /// multiplied by the factor in its place first.
    pub(crate) fn nearest(x: &Array, orientation: Orientation, factors: Option<&Array>) -> Result<Self> {
        let inputs: Vec<Array> = [x].into_iter().chain(factors).cloned().collect();
        let [codes, units] = several(apply(Int8Round { orientation }, &inputs)?);
        Ok(Self { codes, units })
    }

    /// The same, each to one of the two integers around it, so that its mean over all keys is what it was.
    ///
    /// The random numbers are those of `key: u32[2]` and of the rows' units: other rows have other numbers by the same key.
    pub(crate) fn drawn(x: &Array, orientation: Orientation, factors: Option<&Array>, key: &Array) -> Result<Self> {
        if x.size() == 0 {
            return Self::nearest(x, orientation, factors);
        }
        let (multiples, units) = in_units(&multiplied(x, orientation, factors)?)?;
        let key = key.add(units.view_dtype(Dtype::Uint32)?.sum(None)?)?;
        let uniform = random::uniform::<_, f32>(0.0, 1.0, multiples.shape(), &key)?;
        let drawn = ops::clip(multiples.add(uniform)?.floor()?, (-127.0, 127.0))?;
        Ok(Self { codes: drawn.as_dtype(Dtype::Int8)?, units: units.squeeze_axes(&[-1])? })
    }
}

/// Why gradients of products of integers have no derivatives: integers change in steps.
pub(crate) fn no_int8_derivative() -> Error {
    Error::invalid(
        "the gradients of products in 8 bits have no derivatives themselves",
        "take derivatives of gradients with the weights in floats",
    )
}

pub(super) struct Int8Round {
    pub(super) orientation: Orientation,
}

impl Kernel for Int8Round {
    fn name(&self) -> &'static str {
        "Int8Round"
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        Some(vec![("transpose", Param::Bool(self.orientation == Orientation::Transposed))])
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        let x = &inputs[0];
        let ([before @ .., columns], Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16) = (&x.shape[..], x.dtype)
        else {
            return Err(format!("{x} is no f32, f16 or bf16 array of rows").into());
        };
        let (codes, units) = match self.orientation {
            Orientation::Plain => (x.shape.clone(), before.to_vec()),
            Orientation::Transposed => (vec![*columns, rows_of(&x.shape) as i32], vec![*columns]),
        };
        Ok(vec![Aval::new(&codes, Dtype::Int8), Aval::new(&units, Dtype::Float32)])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let ([x, factors @ ..], [codes, units]) = (inputs, outputs) else {
            return Err("floats are expected, and perhaps factors".into());
        };
        let columns = x.aval().shape.last().copied().unwrap_or(1) as usize;
        let factors = factors.first().map(Input::elements).transpose()?;
        let rounding = Int8Rounding { columns, orientation: self.orientation, factors };
        Ok(rounding.round(floats(x)?, codes.elements()?, units.elements()?)?)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        if inputs[0].size() == 0 {
            let zeros = |aval: &Aval| Ok(ops::zeros_dtype(&aval.shape, aval.dtype)?);
            return self.output_avals(&[Aval::from(&inputs[0])])?.iter().map(zeros).collect();
        }
        let (multiples, units) = in_units(&multiplied(&inputs[0], self.orientation, inputs.get(1))?)?;
        let codes = ops::clip(multiples.round(None)?, (-127.0, 127.0))?;
        Ok(vec![codes.as_dtype(Dtype::Int8)?, units.squeeze_axes(&[-1])?])
    }

    fn vjp(&self, _: &[Array], _: &[Array], _: &[usize]) -> Option<Fallible<Vec<Array>>> {
        Some(Err(no_int8_derivative().into()))
    }

    fn jvp(&self, _: &[Array], _: &[Array], _: &[usize]) -> Option<Fallible<Vec<Array>>> {
        Some(Err(no_int8_derivative().into()))
    }

    /// Rows of all examples, if they share the factors; columns go through the rows of an example alone.
    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Fallible<Mapped>> {
        let shared = axes[1..].iter().all(Option::is_none) && self.orientation == Orientation::Plain;
        let axis = axes[0].filter(|_| shared)?;
        let mapped = || -> Fallible<Mapped> {
            let mut inputs = inputs.to_vec();
            inputs[0] = inputs[0].move_axis(axis as i32, 0)?;
            Ok((apply(Self { orientation: self.orientation }, &inputs)?, vec![0, 0]))
        };
        Some(mapped())
    }
}

/// The rows that are rounded, as `f32`.
fn multiplied(x: &Array, orientation: Orientation, factors: Option<&Array>) -> std::result::Result<Array, Exception> {
    let x = x.as_dtype(Dtype::Float32)?;
    let rows = match orientation {
        Orientation::Plain => x,
        Orientation::Transposed => x.reshape(&[-1, x.dim(-1)])?.swap_axes(0, 1)?,
    };
    factors.map_or(Ok(rows.clone()), |factors| rows.multiply(factors.reshape(&[-1])?))
}

/// Rows in units of their largest magnitude over 127, and these units; a row that is not finite is zeros, in units of NaN.
fn in_units(rows: &Array) -> std::result::Result<(Array, Array), Exception> {
    let number = Array::from_f32;
    let absmax = rows.abs()?.max_axis(-1, true)?;
    // 127 over a tiny magnitude is no float: such rows are rounded as 2^64 times as large.
    let tiny = absmax.lt(number(2.0_f32.powi(-110)))?;
    let grown = ops::select(tiny, number(2.0_f32.powi(64)), number(1.0))?;
    let large = absmax.multiply(&grown)?;
    let factor = ops::minimum(number(127.0).divide(&large)?, number(f32::MAX))?;
    let factor = ops::select(absmax.eq(number(0.0))?, number(0.0), factor)?;
    let multiples = rows.multiply(&grown)?.multiply(factor)?;
    let finite = absmax.lt(number(f32::INFINITY))?;
    let units = ops::select(&finite, large.divide(number(127.0))?.divide(grown)?, number(f32::NAN))?;
    let finite = ops::broadcast_to(finite, rows.shape())?;
    Ok((ops::select(finite, multiples, number(0.0))?, units))
}
