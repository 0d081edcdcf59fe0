//! What a program reads and writes.

use half::{bf16, f16, slice::HalfFloatSliceExt};

/// The element type of an input or of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// The upper half of single precision.
    Bf16,
    /// A byte that is 0 or 1.
    Bool,
    /// A signed integer; only read.
    I32,
    /// An unsigned integer; only read.
    U32,
}

/// Numbers that a program reads.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Of [`Kind::F32`].
    F32(&'a [f32]),
    /// Of [`Kind::F16`].
    F16(&'a [f16]),
    /// Of [`Kind::Bf16`].
    Bf16(&'a [bf16]),
    /// Of [`Kind::Bool`].
    Bool(&'a [u8]),
    /// Of [`Kind::I32`].
    I32(&'a [i32]),
    /// Of [`Kind::U32`].
    U32(&'a [u32]),
    /// What the result of this number holds before the program writes it: one of [`Program::in_place`](super::Program::in_place).
    Result(usize),
}

impl Data<'_> {
    /// The kind and the number of what there is; none where it is in a result.
    pub(super) fn shape(&self) -> Option<(Kind, usize)> {
        Some(match self {
            Self::F32(values) => (Kind::F32, values.len()),
            Self::F16(values) => (Kind::F16, values.len()),
            Self::Bf16(values) => (Kind::Bf16, values.len()),
            Self::Bool(values) => (Kind::Bool, values.len()),
            Self::I32(values) => (Kind::I32, values.len()),
            Self::U32(values) => (Kind::U32, values.len()),
            Self::Result(_) => return None,
        })
    }

    /// The numbers from `start` on, as many as `out` holds.
    #[inline(always)]
    pub(super) fn load(&self, start: usize, out: &mut [f32]) {
        let range = start..start + out.len();
        match self {
            Self::F32(values) => out.copy_from_slice(&values[range]),
            Self::F16(values) => values[range].convert_to_f32_slice(out),
            Self::Bf16(values) => {
                for (out, value) in out.iter_mut().zip(&values[range]) {
                    *out = f32::from_bits(u32::from(value.to_bits()) << 16);
                }
            }
            Self::Bool(values) => {
                for (out, value) in out.iter_mut().zip(&values[range]) {
                    *out = if *value == 0 { 0.0 } else { 1.0 };
                }
            }
            Self::I32(values) => {
                for (out, value) in out.iter_mut().zip(&values[range]) {
                    *out = *value as f32;
                }
            }
            Self::U32(values) => {
                for (out, value) in out.iter_mut().zip(&values[range]) {
                    *out = *value as f32;
                }
            }
            Self::Result(_) => unreachable!("it is read where it is"),
        }
    }
}

/// Memory for numbers that a program writes, rounded to nearest even once.
#[derive(Debug)]
pub enum DataMut<'a> {
    /// Of [`Kind::F32`].
    F32(&'a mut [f32]),
    /// Of [`Kind::F16`].
    F16(&'a mut [f16]),
    /// Of [`Kind::Bf16`].
    Bf16(&'a mut [bf16]),
    /// Of [`Kind::Bool`]: 1 for every number but 0.
    Bool(&'a mut [u8]),
}

impl DataMut<'_> {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::F32(_) => Kind::F32,
            Self::F16(_) => Kind::F16,
            Self::Bf16(_) => Kind::Bf16,
            Self::Bool(_) => Kind::Bool,
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Bf16(values) => values.len(),
            Self::Bool(values) => values.len(),
        }
    }

    /// What is there now.
    #[inline(always)]
    pub(super) fn data(&self) -> Data<'_> {
        match self {
            Self::F32(values) => Data::F32(values),
            Self::F16(values) => Data::F16(values),
            Self::Bf16(values) => Data::Bf16(values),
            Self::Bool(values) => Data::Bool(values),
        }
    }

    /// Takes so many numbers off the front; none where there are not as many.
    pub(super) fn split_off(&mut self, count: usize) -> Self {
        match self {
            Self::F32(values) => Self::F32(values.split_off_mut(..count).unwrap_or_default()),
            Self::F16(values) => Self::F16(values.split_off_mut(..count).unwrap_or_default()),
            Self::Bf16(values) => Self::Bf16(values.split_off_mut(..count).unwrap_or_default()),
            Self::Bool(values) => Self::Bool(values.split_off_mut(..count).unwrap_or_default()),
        }
    }

    #[inline(always)]
    pub(super) fn store(&mut self, start: usize, values: &[f32]) {
        let range = start..start + values.len();
        match self {
            Self::F32(out) => out[range].copy_from_slice(values),
            Self::F16(out) => out[range].convert_from_f32_slice(values),
            Self::Bf16(out) => {
                for (out, value) in out[range].iter_mut().zip(values) {
                    *out = bf16::from_bits((super::math::bf16(*value).to_bits() >> 16) as u16);
                }
            }
            Self::Bool(out) => {
                for (out, value) in out[range].iter_mut().zip(values) {
                    *out = u8::from(*value != 0.0);
                }
            }
        }
    }
}
