//! Codes for some inputs of a weight at a time, through what a format offers in public.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::{Aval, Error, Policy, Result, Value, tree};

use crate::families::packed::{Packed, read_in};
use crate::format::{AnyFormat, FloatScales, TrainedScales};
use crate::kernel::{self, Scaling, Scheme};
use crate::views::rotated::Rotated;

/// How the inputs of a weight are coded.
pub(super) enum Coder<'f> {
    /// One by one, by scales.
    Scaled(Scaled<'f>),
    /// So many together, as the format codes a block of them.
    Blocks(i32),
}

/// A format whose codes are made by scales that are there.
pub(super) struct Scaled<'f> {
    trained: &'f dyn TrainedScales,
    /// Inputs that share the scales of a row.
    pub(super) group: i32,
    /// Whether scales are those of the weight as it was, and not of a group when it is reached.
    pub(super) fixed: bool,
    /// The scales of the weight.
    whole: FloatScales,
    /// Whether one scale is that of all rows.
    one: bool,
    /// How an element is coded by its scale.
    scheme: Scheme,
}

impl<'f> Coder<'f> {
    /// How `format` codes `weight`, `[.., n, k]`, for the method of this name.
    pub(super) fn new(method: &str, format: &'f AnyFormat, weight: &Array) -> Result<Self> {
        let (n, k) = (weight.dim(-2), weight.dim(-1));
        let whole = format.quantize(weight)?;
        let none = |why: &str| {
            let message = format!("{method} does not code {} in {format}: {why}", Aval::from(weight));
            Error::invalid(message, "take a format whose blocks lie along the rows and divide them, or another method")
        };
        if whole.downcast::<Rotated>().is_some() {
            return Err(none("a rotation makes each element of all inputs"));
        }
        let Some(stored) = whole.family::<dyn Packed>().map(Packed::stored) else {
            return Self::tried(format, weight, &[128, 64, 32])
                .ok_or_else(|| none("it has no blocks of 128, 64 or 32"));
        };
        let block = stored.block as i32;
        if stored.transposed {
            return if block == n { Ok(Self::Blocks(1)) } else { Err(none("its blocks straddle columns")) };
        }
        let scales = format.trained_scales().and_then(|trained| Some((trained, trained.scales_of(&whole)?)));
        let Some((trained, whole)) = scales else {
            let widths = if stored.scales.is_none() { vec![1] } else { vec![stored.unit() as i32, block] };
            return Self::tried(format, weight, &widths).ok_or_else(|| none("its blocks straddle rows"));
        };
        let one = whole.scales.size() == 1;
        if !one && k % block != 0 {
            return Err(none("its blocks straddle rows"));
        }
        if !one && whole.scales.size() * block as usize != weight.size() {
            return Err(none("its scales are not those of rows"));
        }
        let group = if one { k } else { block };
        let fixed = one || whole.global_scale.is_some();
        Ok(Self::Scaled(Scaled { trained, group, fixed, whole, one, scheme: stored.scheme }))
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

/// A format of another crate that makes arrays of one type of a weight, and of another one of a part of it.
fn of_another_type(format: &AnyFormat) -> Error {
    Error::invalid(
        format!("the format {format} makes another type of a part of a weight than of the whole"),
        "take a format that makes one type of all floats, or another method",
    )
}

impl Scaled<'_> {
    /// The scales of `part: f32[n, group]`, as the format chooses them for numbers of type `dtype`.
    pub(super) fn scales(&self, format: &AnyFormat, part: &Array, dtype: Dtype) -> Result<FloatScales> {
        let codes = format.quantize(&part.as_dtype(dtype)?)?;
        let scales = self.trained.scales_of(&codes).ok_or_else(|| of_another_type(format))?;
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
        let (scheme, stored) = scales.stored(&self.scheme)?;
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
        let scales = along_axis(&|scales| Some(scales.scales.clone()))?;
        let scales = scales.ok_or_else(|| Error::decline("there are no scales"))?;
        Ok(FloatScales { scales, biases: along_axis(&|scales| scales.biases.clone())?, global_scale: None })
    }

    /// Whether scales may be any others: not where they are fixed, nor where they are powers of two.
    pub(super) fn has_free_scales(&self) -> bool {
        !self.fixed && self.scheme.scaling != Scaling::E8m0
    }

    /// `numbers: f32[n, k]`, coded by the scales of a matrix and read again.
    pub(super) fn read(&self, format: &AnyFormat, numbers: &Array, scales: &FloatScales) -> Result<Array> {
        let like = format.quantize(&ops::zeros_like(numbers)?)?;
        let like = self.trained.scales_of(&like).ok_or_else(|| of_another_type(format))?;
        let scales = scales.mapped(|scales| Ok(scales.reshape(like.scales.shape())?))?;
        dense(&self.trained.quantize_by(numbers, &scales)?.0)
    }

    /// The array of `codes: f32[e, n, k]`, which are numbers that the scales of each matrix have codes for.
    pub(super) fn put_together(&self, codes: &[Array], scales: &[FloatScales], weight: &Aval) -> Result<Value> {
        let scales = if self.fixed {
            self.whole.clone()
        } else {
            Self::joined(scales, 0)?.mapped(|scales| Ok(scales.reshape(self.whole.scales.shape())?))?
        };
        let numbers = ops::concatenate(codes, 0)?.reshape(&weight.shape)?;
        let result = self.trained.quantize_by(&numbers, &scales)?.0;
        let result = match result.family::<dyn Packed>() {
            Some(packed) => read_in(packed, weight.dtype),
            None => result,
        };
        tree::eval(&result)?;
        Ok(result)
    }
}

/// What a value of some columns stands for, in `f32`.
pub(super) fn dense(value: &Value) -> Result<Array> {
    // It is asked for, and lives for the length of this call.
    let _allow = Policy::Allow.scope();
    Ok(value.dense()?.as_dtype(Dtype::Float32)?)
}
