//! Codes for some inputs of a weight at a time, through what a format offers in public.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::{Aval, Error, Policy, Result, Value, tree};

use crate::families::packed::{Packed, Stored};
use crate::format::{AnyFormat, FloatScales};
use crate::kernel::{self, Scaling};
use crate::packed::array::Parts;
use crate::views::rotated::Rotated;

/// How the inputs of a weight are coded.
pub(super) enum Coder {
    /// One by one, by scales.
    Scaled(Box<Scaled>),
    /// So many together, as the format codes a block of them.
    Blocks(i32),
}

/// A weight in a format whose codes are made by scales that are there.
pub(super) struct Scaled {
    /// The weight as the format codes it.
    array: Value,
    /// What that is made of, with the scales beside it as floats.
    stored: Stored,
    whole: FloatScales,
    /// Inputs that share the scales of a row.
    pub(super) group: i32,
    /// Whether one scale is that of all rows.
    one: bool,
}

impl Coder {
    /// How `format` codes `weight`, `[.., n, k]`, for the method of this name.
    pub(super) fn new(method: &str, format: &AnyFormat, weight: &Array) -> Result<Self> {
        let (n, k) = (weight.dim(-2), weight.dim(-1));
        let array = format.quantize(weight)?;
        let none = |why: &str| {
            let message = format!("{method} does not code {} in {format}: {why}", Aval::from(weight));
            Error::invalid(message, "take a format whose blocks lie along the rows and divide them, or another method")
        };
        if array.downcast::<Rotated>().is_some() {
            return Err(none("a rotation makes each element of all inputs"));
        }
        let Some(stored) = array.family::<dyn Packed>().map(Packed::stored) else {
            return Self::tried(format, weight, &[128, 64, 32])
                .ok_or_else(|| none("it has no blocks of 128, 64 or 32"));
        };
        let block = stored.block as i32;
        if stored.transposed {
            return if block == n { Ok(Self::Blocks(1)) } else { Err(none("its blocks straddle columns")) };
        }
        let Some(whole) = stored.float_scales()? else {
            return Self::tried(format, weight, &[1]).ok_or_else(|| none("its blocks straddle rows"));
        };
        let one = whole.scales.size() == 1;
        if !one && k % block != 0 {
            return Err(none("its blocks straddle rows"));
        }
        if !one && whole.scales.size() * block as usize != weight.size() {
            return Err(none("its scales are not those of rows"));
        }
        let group = if one { k } else { block };
        Ok(Self::Scaled(Box::new(Scaled { array, stored, whole, group, one })))
    }

    /// Blocks of the first of these widths that the format takes.
    fn tried(format: &AnyFormat, weight: &Array, widths: &[i32]) -> Option<Self> {
        let (n, k) = (weight.dim(-2), weight.dim(-1));
        let fits = |width: &i32| {
            let part = ops::zeros_dtype(&[n, *width], weight.dtype());
            *width <= k && k % width == 0 && part.is_ok_and(|part| format.quantize(&part).is_ok())
        };
        widths.iter().copied().find(fits).map(Self::Blocks)
    }
}

impl Scaled {
    /// The scales of `part: f32[n, group]`, as the format chooses them for numbers of type `dtype`.
    pub(super) fn scales(format: &AnyFormat, part: &Array, dtype: Dtype) -> Result<FloatScales> {
        let codes = format.quantize(&part.as_dtype(dtype)?)?;
        let scales = codes.family::<dyn Packed>().map(|packed| packed.stored().float_scales()).transpose()?.flatten();
        let scales = scales.ok_or_else(|| {
            Error::invalid(
                format!("the format {format} makes another type of a part of a weight than of the whole"),
                "take a format that makes one type of all floats, or another method",
            )
        })?;
        scales.mapped(|scales| Ok(scales.reshape(&[-1, 1])?))
    }

    /// The scales of matrix `matrix`, of `n` rows of `k`, as the whole weight has them: `[n, groups]`, or one.
    pub(super) fn fixed_scales(&self, matrix: i32, [n, k]: [i32; 2]) -> Result<FloatScales> {
        self.whole.mapped(|scales| {
            if self.one {
                return Ok(scales.clone());
            }
            Ok(scales.reshape(&[-1, n, k / self.group])?.take_axis(Array::from_int(matrix), 0)?)
        })
    }

    /// The columns of `part: f32[n, width]` as the numbers that they are coded as, by the scales of the group that each is in, and
    /// what each spread over those behind it by `triangle: f32[width, width]`.
    pub(super) fn rounded(
        &self,
        part: &Array,
        triangle: &Array,
        scales: &FloatScales,
        groups: &[i32],
    ) -> Result<[Array; 2]> {
        let (scheme, stored) = scales.stored(&self.stored.scheme)?;
        let by_group = stored.mapped(|numbers| {
            if self.one {
                Ok(ops::broadcast_to(numbers.reshape(&[1, 1])?, &[1, part.dim(0)])?)
            } else {
                Ok(numbers.t())
            }
        });
        kernel::round_columns(scheme, [part, triangle], groups, &by_group?.numbers()?)
    }

    /// Scales along an axis: those of groups side by side, or of matrices one below the other.
    pub(super) fn joined(parts: &[FloatScales], axis: i32) -> Result<FloatScales> {
        let along_axis = |of: &dyn Fn(&FloatScales) -> Option<Array>| {
            let parts: Option<Vec<Array>> = parts.iter().map(of).collect();
            parts.map(|parts| ops::concatenate(&parts, axis)).transpose()
        };
        let scales = along_axis(&|scales| Some(scales.scales.clone()))?.ok_or_else(no_scales)?;
        Ok(FloatScales { scales, biases: along_axis(&|scales| scales.biases.clone())?, global_scale: None })
    }

    /// Whether scales are those of the weight as it was, and not of a group when it is reached.
    pub(super) fn is_fixed(&self) -> bool {
        self.is_relative() || self.is_nested()
    }

    /// Whether scales are quantized themselves, all of them together.
    pub(super) fn is_nested(&self) -> bool {
        self.stored.scheme.nested.is_some()
    }

    /// Whether scales may be any others: not where one is that of all rows or all are relative to one, nor where they are powers of two.
    pub(super) fn has_free_scales(&self) -> bool {
        !self.is_relative() && self.stored.scheme.scaling != Scaling::E8m0
    }

    /// Whether one scale is that of all rows, or all are relative to one.
    fn is_relative(&self) -> bool {
        self.one || self.whole.global_scale.is_some()
    }

    /// `numbers: f32[n, k]`, coded by the scales of a matrix, as floats, and read again.
    pub(super) fn read(&self, numbers: &Array, scales: &FloatScales) -> Result<Array> {
        let (scheme, block) = (&self.stored.scheme, self.stored.block);
        let stored = self.shaped(scales, numbers)?.stored_array(scheme, block, numbers)?;
        let (layout, children) = stored.kernel(numbers.dim(0))?;
        kernel::dequantize(layout, &children, Dtype::Float32)
    }

    /// The scales of all matrices, as floats, in the shape in which those of `numbers` are stored.
    fn shaped(&self, scales: &FloatScales, numbers: &Array) -> Result<FloatScales> {
        let Stored { scheme, block, .. } = &self.stored;
        let (_, shape) = scheme.children(numbers.shape(), *block);
        scales.mapped(|scales| Ok(scales.reshape(&shape)?))
    }

    /// The same weight with these scales of its matrices, as they are stored where scales are quantized themselves.
    pub(super) fn with_scales(self, scales: &[FloatScales]) -> Result<Self> {
        let Stored { scheme, block, aval, .. } = &self.stored;
        // Scales alone are asked for.
        let zeros = ops::zeros::<f32>(&aval.shape)?;
        let scales = self.shaped(&Self::joined(scales, 0)?, &zeros)?;
        let Parts { scales, biases, .. } = scales.nested(scheme, *block, &zeros, aval.size())?;
        let stored = Stored { scales, biases, ..self.stored };
        let whole = stored.float_scales()?.ok_or_else(no_scales)?;
        Ok(Self { stored, whole, ..self })
    }

    /// The array of `codes: f32[e, n, k]`, which are numbers that the scales have codes for.
    pub(super) fn put_together(&self, codes: &[Array]) -> Result<Value> {
        let numbers = ops::concatenate(codes, 0)?.reshape(&self.stored.aval.shape)?;
        let scales = self.shaped(&self.whole, &numbers)?;
        let Parts { codes, .. } = scales.coded(&self.stored.scheme, self.stored.block, &numbers)?;
        let packed = self.array.family::<dyn Packed>().ok_or_else(no_scales)?;
        let result = Value::from(packed.restored(Stored { codes, ..self.stored.clone() }));
        tree::eval(&result)?;
        Ok(result)
    }
}

fn no_scales() -> Error {
    Error::decline("there are no scales")
}

/// What a value of some columns stands for, in `f32`.
pub(super) fn dense(value: &Value) -> Result<Array> {
    // It is asked for, and lives for the length of this call.
    let _allow = Policy::Allow.scope();
    Ok(value.dense()?.as_dtype(Dtype::Float32)?)
}
