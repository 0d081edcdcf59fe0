//! Dense operands of the three float types; kernels compute in `f32`.

use std::{borrow::Cow, ops::Range};

use half::{bf16, f16, slice::HalfFloatSliceExt};

use crate::{KernelError, matrix::check_length};

/// Dense floats that a kernel reads.
#[derive(Clone, Copy, Debug)]
pub enum Floats<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Half precision.
    F16(&'a [f16]),
    /// The upper half of single precision.
    Bf16(&'a [bf16]),
}

/// Dense floats that a kernel writes: computed in `f32`, and rounded once, to nearest even.
#[derive(Debug)]
pub enum FloatsMut<'a> {
    /// Single precision.
    F32(&'a mut [f32]),
    /// Half precision.
    F16(&'a mut [f16]),
    /// The upper half of single precision.
    Bf16(&'a mut [bf16]),
}

macro_rules! conversions {
    ($($ty:ty => $variant:ident),*) => {
        $(
            impl<'a> From<&'a [$ty]> for Floats<'a> {
                fn from(values: &'a [$ty]) -> Self {
                    Self::$variant(values)
                }
            }

            impl<'a> From<&'a mut [$ty]> for FloatsMut<'a> {
                fn from(values: &'a mut [$ty]) -> Self {
                    Self::$variant(values)
                }
            }
        )*
    };
}

conversions!(f32 => F32, f16 => F16, bf16 => Bf16);

impl<'a> Floats<'a> {
    /// The values in single precision.
    pub(crate) fn widen(self) -> Cow<'a, [f32]> {
        match self {
            Self::F32(values) => Cow::Borrowed(values),
            Self::F16(values) => Cow::Owned(values.to_f32_vec()),
            Self::Bf16(values) => Cow::Owned(values.to_f32_vec()),
        }
    }
}

impl Floats<'_> {
    /// Writes the values in single precision to `out`, which is as long.
    pub(crate) fn widen_into(&self, out: &mut [f32]) {
        match self {
            Self::F32(values) => out.copy_from_slice(values),
            Self::F16(values) => values.convert_to_f32_slice(out),
            Self::Bf16(values) => values.convert_to_f32_slice(out),
        }
    }

    pub(crate) fn part(&self, range: Range<usize>) -> Self {
        match self {
            Self::F32(values) => Self::F32(&values[range]),
            Self::F16(values) => Self::F16(&values[range]),
            Self::Bf16(values) => Self::Bf16(&values[range]),
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl FloatsMut<'_> {
    /// Stores what `compute` writes, rounded to the type.
    pub(crate) fn rounded(self, compute: impl FnOnce(&mut [f32])) {
        if let Self::F32(out) = self {
            return compute(out);
        }
        let mut values = vec![0.0; self.len()];
        compute(&mut values);
        self.store(&values);
    }

    /// Stores all values, rounded to the type.
    pub(crate) fn store(self, values: &[f32]) {
        match self {
            Self::F32(out) => out.copy_from_slice(values),
            Self::F16(out) => out.convert_from_f32_slice(values),
            Self::Bf16(out) => out.convert_from_f32_slice(values),
        }
    }

    pub(crate) fn part(&mut self, range: Range<usize>) -> FloatsMut<'_> {
        match self {
            Self::F32(out) => FloatsMut::F32(&mut out[range]),
            Self::F16(out) => FloatsMut::F16(&mut out[range]),
            Self::Bf16(out) => FloatsMut::Bf16(&mut out[range]),
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn check(&self, expected: usize, help: &'static str) -> Result<(), KernelError> {
        check_length("out", self.len(), expected, help)
    }
}
