//! Quantizing an array as the format's declaration says.

use mlx_rs::{Array, Dtype, stop_gradient};
use tacit_core::{Aval, Error, Result, Value};

use crate::avals::checks::stored_shape;
use crate::families::adapter::Adapter;
use crate::families::structural::itself;
use crate::format::declaration::{Format, Quantizer};
use crate::format::fit::Fit;
use crate::format::pieces::RowPieces;
use crate::format::trained_scales::TrainedScales;
use crate::kernel::{self, Encoding, Measure, Nested, Scheme, Summands};
use crate::packed::array::{PackedArray, Parts, checked};
use crate::packed::dynamic8::Dynamic8Array;
use crate::packed::in_pieces::quantized;
use crate::packed::super_blocks;

impl<F: Format> PackedArray<F> {
    /// Quantizes `x`.
    ///
    /// It is lazy, and works inside `grad` and `compile`.
    ///
    /// # Errors
    ///
    /// `x` is not `f32`, `f16` or `bf16`, or has no elements; the format has no such options, or its blocks do not divide
    /// the last axis of `x`, or are columns, and `x` is no matrix. A NaN or an infinity in `x` is an error of the eval on a CPU; a
    /// GPU, which has no error to give, codes it as MLX's ops would.
    pub fn quantize(x: &Array, format: impl Into<F>) -> Result<Self> {
        let format = format.into();
        let encoding = format.scheme().encoding;
        Self::quantize_as(x, &format, encoding)
    }

    /// The same, coded as the format is not by itself.
    pub(crate) fn quantize_as(x: &Array, format: &F, encoding: Encoding) -> Result<Self> {
        let global = || kernel::global_scale(&x.as_dtype(Dtype::Float32)?.abs()?.max(None)?);
        let global = format.scheme().is_relative().then(global).transpose()?;
        if !format.by_columns() {
            return Self::coded_as(x, format, encoding, global);
        }
        if x.ndim() != 2 {
            let message = format!("{} is not a matrix, which alone has columns", Aval::from(x));
            return Err(Error::invalid(message, "quantize rows or blocks"));
        }
        let mut array = Self::coded_as(&x.t(), format, encoding, global)?;
        (array.transposed, array.aval) = (true, Aval::from(x));
        Ok(array)
    }

    /// Quantizes `x` in blocks of its rows, relative to `global` where that is given.
    pub(crate) fn coded(x: &Array, format: &F, global_scale: Option<Array>) -> Result<Self> {
        Self::coded_as(x, format, format.scheme().encoding, global_scale)
    }

    fn coded_as(x: &Array, format: &F, encoding: Encoding, global_scale: Option<Array>) -> Result<Self> {
        let format = format.on(x.shape());
        let aval = checked(Aval::from(x), &format)?;
        let scheme = Scheme { encoding, ..format.scheme() };
        if scheme.half() == Some(x.dtype()) {
            let codes = stop_gradient(x)?.view_dtype(scheme.storage)?;
            return Ok(Self::unchecked(Parts::unscaled(codes), format, aval));
        }
        let mut inputs = vec![x.as_dtype(Dtype::Float32)?];
        if matches!(scheme.nested, Some(Nested::Integers { .. })) {
            let (codes, scales) = super_blocks::encoded(&inputs[0], &scheme, format.block(), 0)?;
            return Ok(Self::unchecked(Parts::new(codes, scales), format, aval));
        }
        inputs.extend(global_scale.clone());
        let results = kernel::quantize(scheme, format.block(), &inputs)?;
        Self::of_codes(results, format, global_scale, aval)
    }

    /// Quantizes the rows of a sum that is not built, or, of a format by columns, those of its transpose.
    fn of_sum(sum: &Summands, format: &F, dtype: Dtype) -> Result<Self> {
        let (shape, by_columns) = ([sum.left.dim(0), sum.right.dim(1)], format.by_columns());
        let format = format.on(&shape);
        let aval = checked(Aval::new(&shape, dtype), &format)?;
        let scheme = format.scheme();
        let global = || kernel::global_scale(&sum.measure(Measure::Absmax)?.max(None)?);
        let global = scheme.is_relative().then(global).transpose()?;
        let results = sum.quantize(scheme, format.block(), global.as_ref())?;
        let mut array = Self::of_codes(results, format, global, aval)?;
        if by_columns {
            array.transposed = true;
            array.aval.shape.reverse();
        }
        Ok(array)
    }

    pub(crate) fn of_codes(results: Vec<Array>, format: F, global_scale: Option<Array>, aval: Aval) -> Result<Self> {
        let scheme = format.scheme();
        let mut results = results.into_iter();
        let mut next = || results.next().unwrap_or_else(|| unreachable!("codes, scales, and biases if it has them"));
        let codes = next();
        if !scheme.is_scaled() {
            return Ok(Self::unchecked(Parts::unscaled(codes), format, aval));
        }
        let mut scales = next();
        let biases = scheme.biased.then(next);
        if biases.is_some() {
            scales = scales.as_dtype(aval.dtype)?;
        }
        let biases = biases.map(|biases| biases.as_dtype(aval.dtype)).transpose()?;
        let scales = match scheme.nested {
            Some(Nested::Dynamic8 { block }) => Dynamic8Array::quantize(&scales, block)?.into(),
            _ => Value::from(scales),
        };
        Ok(Self::unchecked(Parts { codes, scales: Some(scales), biases, global_scale }, format, aval))
    }
}

impl<F: Format> Quantizer for F {
    fn quantize(&self, x: &Array) -> Result<Value> {
        Ok(PackedArray::<F>::quantize(x, self.clone())?.into())
    }

    fn quantize_pieces(&self, pieces: &RowPieces) -> Result<Option<Value>> {
        quantized(self, pieces)
    }

    fn quantize_sum(&self, sum: &dyn Adapter) -> Result<Value> {
        // The kernel makes no integers for scales.
        let coded = !matches!(self.scheme().nested, Some(Nested::Integers { .. }));
        match sum.summands(self.by_columns())? {
            Some(summands) if coded => Ok(PackedArray::of_sum(&summands, self, sum.aval()?.dtype)?.into()),
            _ => self.quantize(&itself(sum).dense()?),
        }
    }

    fn quantize_by_fit(&self, x: &Array, fit: Fit) -> Result<Value> {
        Ok(PackedArray::<F>::fitted(x, self.clone(), fit)?.into())
    }

    fn fits(&self, fit: Fit) -> bool {
        let scheme = self.scheme();
        if fit == Fit::Reach { scheme.reaching().is_some() } else { scheme.is_scaled() }
    }

    fn stores(&self, value: &Value) -> bool {
        value.downcast::<PackedArray<F>>().is_some_and(|array| {
            let shape = stored_shape(&array.aval, array.transposed);
            array.transposed == self.by_columns() && shape.is_ok_and(|shape| self.on(&shape) == array.format)
        })
    }

    fn trained_scales(&self) -> Option<&dyn TrainedScales> {
        let scheme = self.scheme();
        (scheme.is_scaled() && scheme.nested.is_none()).then_some(self as &dyn TrainedScales)
    }

    fn supported(&self) -> Result<()> {
        self.on(&[1]).check()
    }
}
