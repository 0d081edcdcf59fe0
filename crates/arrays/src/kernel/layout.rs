//! How the children of a packed array are read, by the kernels and in plain ops.

use std::sync::LazyLock;

use half::slice::HalfBitsSliceExt;
use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_core::Param;
use tacit_core::kernel::Input;
use tacit_kernels::{Codes, Floats, KernelError, Matrix, Order, Scales, dynamic8, e8m0};

use super::host::{Fallible, floats, int};
use super::scheme::E4M3;
use super::{Coding, Scaling, Scheme};

/// A matrix of `n` rows and `k` columns in a format, cut into blocks row-major.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The format.
    pub scheme: Scheme,
    /// Rows.
    pub n: usize,
    /// Columns.
    pub k: usize,
    /// Elements in a block; the last one may be short.
    pub block: usize,
}

const OF_INTEGERS: &str = "scales of integers are two arrays, and four with biases";

impl Layout {
    pub(super) fn params(self) -> Vec<(&'static str, Param)> {
        let nested = match self.scheme.scaling {
            Scaling::Nested { block } | Scaling::Integers { block } => int(block),
            _ => Param::None,
        };
        let sizes = [("n", int(self.n)), ("k", int(self.k)), ("block", int(self.block)), ("nested", nested)];
        sizes.into_iter().chain(self.scheme.params()).collect()
    }

    pub(super) fn unscaled(self) -> Self {
        Self { scheme: Scheme { scaling: Scaling::One, ..self.scheme }, ..self }
    }

    /// The children as the kernels take them.
    pub(super) fn matrix<'a>(&'a self, children: &'a [Input<'_>]) -> Fallible<Matrix<'a>> {
        let [codes, numbers @ ..] = children else { return Err("codes are expected".into()) };
        let codes = match self.scheme.coding {
            Coding::Signed => Codes::Signed { codes: codes.elements()? },
            Coding::F16 => Codes::F16 { codes: codes.elements::<u16>()?.reinterpret_cast() },
            Coding::Bf16 => Codes::Bf16 { codes: codes.elements::<u16>()?.reinterpret_cast() },
            _ => self.scheme.codes(codes.bytes()).ok_or("codes of bytes are expected")?,
        };
        let (scales, biases) = match (self.scheme.scaling, numbers) {
            (Scaling::One, []) => (Scales::One, None),
            (Scaling::One, _) => return Err("there are no scales".into()),
            (_, []) => return Err("scales are expected".into()),
            (Scaling::Float, [scales, more @ ..]) => {
                (float_scales(scales)?, more.first().map(float_scales).transpose()?)
            }
            (Scaling::E8m0, [scales, ..]) => (Scales::E8m0(scales.elements()?), None),
            (Scaling::E4m3, [scales, more @ ..]) => {
                let factor = more.first().map_or(Ok(1.0), scalar)?;
                (Scales::E4m3 { bytes: scales.elements()?, factor }, None)
            }
            (Scaling::Nested { block }, [scales, absmax, offset]) => {
                let (codes, absmax, offset) = (scales.elements()?, absmax.elements()?, scalar(offset)?);
                (Scales::Nested { codes, map: dynamic8::map(), absmax, block, offset }, None)
            }
            (Scaling::Nested { .. }, _) => return Err("nested scales are three arrays".into()),
            (Scaling::Integers { block }, [scales, factors, rest @ ..]) => {
                let numbers = |codes: &'a Input<'_>, factors: &'a Input<'_>| -> Fallible<Scales<'a>> {
                    Ok(Scales::Integers { codes: codes.elements()?, units: factors.elements()?, block })
                };
                let biases = match rest {
                    [] => None,
                    [codes, factors] => Some(numbers(codes, factors)?),
                    _ => return Err(OF_INTEGERS.into()),
                };
                (numbers(scales, factors)?, biases)
            }
            (Scaling::Integers { .. }, _) => return Err(OF_INTEGERS.into()),
        };
        // Where no scale is stored, all elements are as good as one block, which is the fastest to read.
        let block = if self.scheme.is_scaled() { self.block } else { (self.n * self.k).max(1) };
        Ok(Matrix { n: self.n, k: self.k, codes, scales, biases, block })
    }

    /// The values in plain ops: `f32[n, k]`.
    pub(super) fn decoded(&self, children: &[Array]) -> Result<Array, Exception> {
        let [codes, numbers @ ..] = children else { return Err(Exception::custom("codes are expected")) };
        let size = self.n * self.k;
        let mut values = first("codes", &self.units(codes)?, size)?;
        if !numbers.is_empty() || self.scheme.is_scaled() {
            let numbers = self.numbers(numbers)?;
            values = values.multiply(repeated(&numbers[0], self.block, size)?)?;
            if let Some(biases) = numbers.get(1) {
                values = values.add(repeated(biases, self.block, size)?)?;
            }
        }
        values.reshape(&[self.n as i32, self.k as i32])
    }

    /// The scales of the blocks, and their biases if there are any, as `f32`: `numbers` are the children behind the codes.
    pub(crate) fn numbers(&self, numbers: &[Array]) -> Result<Vec<Array>, Exception> {
        let [scales, more @ ..] = numbers else { return Err(Exception::custom("scales are expected")) };
        let wide = |array: &Array| array.as_dtype(Dtype::Float32);
        let (scales, biases) = match (self.scheme.scaling, more) {
            (Scaling::One, _) => return Err(Exception::custom("there are no scales")),
            (Scaling::Float, more) => (wide(scales)?, more.first().map(wide).transpose()?),
            (Scaling::E8m0, _) => (looked_up(&*E8M0, scales)?, None),
            (Scaling::E4m3, [factor, ..]) => (looked_up(&*E4M3, scales)?.multiply(factor)?, None),
            (Scaling::E4m3, []) => (looked_up(&*E4M3, scales)?, None),
            (Scaling::Nested { block }, [absmax, offset, ..]) => (nested(scales, absmax, offset, block)?, None),
            (Scaling::Nested { .. }, _) => return Err(Exception::custom("nested scales are three arrays")),
            (Scaling::Integers { block }, [factors]) => (integers(scales, factors, block)?, None),
            (Scaling::Integers { block }, [factors, bias_codes, bias_factors]) => {
                (integers(scales, factors, block)?, Some(integers(bias_codes, bias_factors, block)?))
            }
            (Scaling::Integers { .. }, _) => return Err(Exception::custom(OF_INTEGERS)),
        };
        Ok(std::iter::once(scales).chain(biases).collect())
    }

    /// What all codes stand for, those that pad included.
    fn units(&self, codes: &Array) -> Result<Array, Exception> {
        let flat = codes.reshape(&[-1])?;
        match self.scheme.coding {
            Coding::Table { bits: 3, values, .. } => looked_up(&values[..8], &stream(&flat, 3)?),
            Coding::Table { bits, order, values } => {
                let mut shifts: Vec<u32> = (0..8).step_by(bits as usize).collect();
                if order == Order::HighFirst {
                    shifts.reverse();
                }
                let codes = digits(&flat.view_dtype(Dtype::Uint8)?, &shifts, 1 << bits)?;
                looked_up(&values[..1 << bits], &codes)
            }
            Coding::Bytes { values } => looked_up(values, &flat),
            Coding::Unsigned { bits } => stream(&flat, bits)?.as_dtype(Dtype::Float32),
            Coding::Offset { bits } => stream(&flat, bits)?.as_dtype(Dtype::Float32)?.add(self.scheme.center()),
            Coding::Signed => flat.as_dtype(Dtype::Float32),
            Coding::E4m3 => looked_up(&*E4M3, &flat.view_dtype(Dtype::Uint8)?),
            Coding::F16 => flat.view_dtype(Dtype::Float16)?.as_dtype(Dtype::Float32),
            Coding::Bf16 => flat.view_dtype(Dtype::Bfloat16)?.as_dtype(Dtype::Float32),
        }
    }
}

impl Scheme {
    /// Codes of at most a byte each as the kernels take them; none of half floats.
    pub(super) fn codes<'a>(&'a self, bytes: &'a [u8]) -> Option<Codes<'a>> {
        Some(match &self.coding {
            Coding::Table { bits, values, .. } => Codes::Table { bytes, bits: *bits, order: self.order(), values },
            Coding::Bytes { values } => Codes::Bytes { bytes, values },
            &Coding::Unsigned { bits } => Codes::Unsigned { bytes, bits },
            &Coding::Offset { bits } => Codes::Offset { bytes, bits },
            Coding::Signed => Codes::Bytes { bytes, values: &SIGNED },
            Coding::E4m3 => Codes::E4m3 { bytes },
            Coding::F16 | Coding::Bf16 => return None,
        })
    }
}

/// The codes of a stream of bits, the lowest first, as many as are whole.
fn stream(codes: &Array, bits: u32) -> Result<Array, Exception> {
    let bytes = codes.view_dtype(Dtype::Uint8)?;
    match bits {
        8 => return Ok(bytes),
        1 | 2 | 4 => return digits(&bytes, &(0..8).step_by(bits as usize).collect::<Vec<_>>(), 1 << bits),
        // Codes that lie across two bytes are read eight at a time.
        _ => {}
    }
    let (bits, size) = (bits as usize, bytes.size());
    let missing = size.next_multiple_of(bits) - size;
    let bytes = ops::pad(&bytes, &[(0, missing as i32)][..], Array::from_slice(&[0_u8], &[]), None)?;
    let places: Vec<usize> = (0..bits).map(|byte| 8 * byte).collect();
    let codes = regrouped(&bytes.reshape(&[-1, bits as i32])?, &places, [8, bits])?.reshape(&[-1])?;
    codes.try_index(..(8 * size / bits) as i32)
}

/// Rows of digits, each of which begins at one of these bits, as `count` digits of `bits` bits, the lowest first: `u8[rows, count]`.
/// A row has at most 64 bits.
///
/// There is no array of the bits themselves: of a large matrix it would have more than MLX counts.
pub(super) fn regrouped(digits: &Array, places: &[usize], [count, bits]: [usize; 2]) -> Result<Array, Exception> {
    let powers = |places: &[usize]| {
        let powers: Vec<u64> = places.iter().map(|place| 1 << place).collect();
        Array::from_slice(&powers, &[powers.len() as i32])
    };
    let numbers = digits.as_dtype(Dtype::Uint64)?.multiply(powers(places))?.sum_axis(-1, true)?;
    let moved = numbers.floor_divide(powers(&(0..count).map(|digit| digit * bits).collect::<Vec<_>>()))?;
    moved.remainder(Array::from_slice(&[1_u64 << bits], &[]))?.as_dtype(Dtype::Uint8)
}

/// The values of bitsandbytes' nested scales: `f32[n]`.
pub(crate) fn nested(codes: &Array, absmax: &Array, offset: &Array, block: usize) -> Result<Array, Exception> {
    looked_up(dynamic8::map(), codes)?.multiply(repeated(absmax, block, codes.size())?)?.add(offset)
}

/// The values of integers with a factor for each block: `f32[n]`.
pub(super) fn integers(codes: &Array, factors: &Array, block: usize) -> Result<Array, Exception> {
    codes.as_dtype(Dtype::Float32)?.multiply(repeated(factors, block, codes.size())?)
}

/// The digits of bytes, `byte / 2^shift % base` for each shift, flat.
fn digits(bytes: &Array, shifts: &[u32], base: u32) -> Result<Array, Exception> {
    let divisors: Vec<u8> = shifts.iter().map(|shift| 1 << shift).collect();
    let moved = bytes.expand_dims(-1)?.floor_divide(Array::from_slice(&divisors, &[divisors.len() as i32]))?;
    moved.remainder(Array::from_slice(&[base as u8], &[]))?.reshape(&[-1])
}

pub(super) fn looked_up(values: &[f32], codes: &Array) -> Result<Array, Exception> {
    Array::from_slice(values, &[values.len() as i32]).take_axis(codes, 0)
}

/// Each number `block` times, as many as there are elements.
fn repeated(numbers: &Array, block: usize, size: usize) -> Result<Array, Exception> {
    // The only block of a small array may be far longer than it.
    let block = block.min(size);
    let rows = ops::broadcast_to(numbers.reshape(&[-1, 1])?, &[numbers.size() as i32, block as i32])?;
    first("scales", &rows.reshape(&[-1])?, size)
}

/// The first of these numbers, as many as there are elements. Where they are fewer, ops would repeat a single one.
fn first(name: &'static str, numbers: &Array, size: usize) -> Result<Array, Exception> {
    if numbers.size() < size {
        let help = "as many as the matrix has elements, those of a block counted for each";
        let error = KernelError::Length { name, expected: size, actual: numbers.size(), help };
        return Err(Exception::custom(error.to_string()));
    }
    numbers.try_index(..size as i32)
}

pub(super) fn scalar(input: &Input<'_>) -> Fallible<f32> {
    Ok(*input.elements()?.first().ok_or("a scalar is expected")?)
}

fn float_scales<'a>(input: &'a Input<'_>) -> Fallible<Scales<'a>> {
    Ok(match floats(input)? {
        Floats::F32(values) => Scales::F32(values),
        Floats::F16(values) => Scales::F16(values),
        Floats::Bf16(values) => Scales::Bf16(values),
    })
}

pub(super) static E8M0: LazyLock<[f32; 256]> = LazyLock::new(|| std::array::from_fn(|byte| e8m0(byte as u8)));

static SIGNED: LazyLock<[f32; 256]> =
    LazyLock::new(|| std::array::from_fn(|byte| f32::from((byte as u8).cast_signed())));
