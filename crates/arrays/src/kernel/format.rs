//! How the children of a packed type are read, by the kernels and in plain ops.

use std::sync::LazyLock;

use mlx_rs::error::Exception;
use mlx_rs::ops::{self, indexing::TryIndexOp};
use mlx_rs::{Array, Dtype};
use tacit_core::Param;
use tacit_core::kernel::Input;
use tacit_kernels::{Codes, E2M1, Floats, Matrix, Order, Scales, binary, dynamic8, e4m3, e8m0, fp4, nf4, ternary};

use super::{Fallible, floats, int};

/// A stored format: how many bits a code has, what it stands for, and what scales it.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// The format's name in messages, such as `nf4`.
    pub label: &'static str,
    pub(super) dequantize: &'static str,
    pub(super) gather: &'static str,
    pub(super) matmul: &'static str,
    pub(super) int8_matmul: &'static str,
    /// What the codes are.
    pub coding: Coding,
    /// What they are scaled by.
    pub scaling: Scaling,
    /// The dtype of the array of codes: `u32` in MLX's layout, whose children have the axes of the array itself; `u8`
    /// for a flat one; `i8` for one code an element.
    pub storage: Dtype,
}

/// What a code stands for.
#[derive(Clone, Copy, Debug)]
pub enum Coding {
    /// An entry of a table.
    Table {
        /// Bits of a code.
        bits: u32,
        /// Which end of a byte is filled first.
        order: Order,
        /// The values; a code of fewer than 4 bits uses the first of them.
        values: &'static [f32; 16],
    },
    /// Itself, as one stream of bits.
    Unsigned {
        /// Bits of a code.
        bits: u32,
    },
    /// Itself, signed.
    Signed,
    /// OCP's E4M3.
    E4m3,
}

/// What the codes of a block are scaled by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// A float, and a bias if there is a second child.
    Float,
    /// bitsandbytes' 8-bit codes of floats, with the scales of those and an offset: three children.
    Nested {
        /// Scales of one block.
        block: usize,
    },
    /// A power of two.
    E8m0,
    /// OCP's E4M3, times the second child if there is one.
    E4m3,
}

macro_rules! format {
    ($label:literal, $name:literal, $coding:expr, $scaling:expr, $storage:ident) => {
        Self {
            label: $label,
            dequantize: concat!($name, "Dequantize"),
            gather: concat!($name, "GatherRows"),
            matmul: concat!($name, "Matmul"),
            int8_matmul: concat!($name, "Int8Matmul"),
            coding: $coding,
            scaling: $scaling,
            storage: Dtype::$storage,
        }
    };
}

const fn table(bits: u32, order: Order, values: &'static [f32; 16]) -> Coding {
    Coding::Table { bits, order, values }
}

impl Format {
    /// bitsandbytes' NF4.
    pub const NF4: Self = format!("nf4", "Nf4", table(4, Order::HighFirst, &nf4::CODEBOOK), Scaling::Float, Uint8);
    /// bitsandbytes' FP4.
    pub const FP4: Self = format!("fp4", "Fp4", table(4, Order::HighFirst, &fp4::CODEBOOK), Scaling::Float, Uint8);
    /// Signed bytes.
    pub const INT8: Self = format!("int8", "Int8", Coding::Signed, Scaling::Float, Int8);
    /// OCP's MXFP4.
    pub const MXFP4: Self = format!("mxfp4", "Mxfp4", table(4, Order::LowFirst, &E2M1), Scaling::E8m0, Uint32);
    /// OCP's MXFP8 of E4M3 elements.
    pub const MXFP8: Self = format!("mxfp8", "Mxfp8", Coding::E4m3, Scaling::E8m0, Uint32);
    /// NVIDIA's NVFP4.
    pub const NVFP4: Self = format!("nvfp4", "Nvfp4", table(4, Order::LowFirst, &E2M1), Scaling::E4m3, Uint32);
    /// -1, 0 and 1.
    pub const TERNARY: Self =
        format!("ternary", "Ternary", table(2, Order::LowFirst, &ternary::VALUES), Scaling::Float, Uint8);
    /// -1 and 1.
    pub const BINARY: Self =
        format!("binary", "Binary", table(1, Order::LowFirst, &binary::VALUES), Scaling::Float, Uint8);

    /// MLX's affine format of 2 to 8 bits.
    #[must_use]
    pub const fn affine(bits: u32) -> Self {
        format!("affine", "Affine", Coding::Unsigned { bits }, Scaling::Float, Uint32)
    }

    /// Bits of one code.
    #[must_use]
    pub const fn bits(&self) -> usize {
        match self.coding {
            Coding::Table { bits, .. } | Coding::Unsigned { bits } => bits as usize,
            Coding::Signed | Coding::E4m3 => 8,
        }
    }

    /// Bits of one element of the array of codes.
    #[must_use]
    pub const fn width(&self) -> usize {
        if matches!(self.storage, Dtype::Uint32) { 32 } else { 8 }
    }

    /// Whether the children have the axes of the array itself, so that blocks lie along its last one.
    #[must_use]
    pub const fn is_grouped(&self) -> bool {
        matches!(self.storage, Dtype::Uint32)
    }

    /// The shapes of the codes and of the scales of an array of this shape.
    #[must_use]
    pub fn children(&self, shape: &[i32], block: usize) -> (Vec<i32>, Vec<i32>) {
        let size: usize = shape.iter().map(|&extent| extent as usize).product();
        let scales = vec![size.div_ceil(block) as i32];
        match self.storage {
            Dtype::Uint32 => {
                let along = |last: usize| {
                    let outer = shape.split_last().map_or(&[][..], |(_, outer)| outer);
                    [outer, &[last as i32]].concat()
                };
                let last = shape.last().map_or(1, |&last| last as usize);
                (along(last * self.bits() / 32), along(last / block))
            }
            Dtype::Int8 => (shape.to_vec(), scales),
            _ => (vec![(size * self.bits()).div_ceil(8) as i32], scales),
        }
    }
}

/// A matrix of `n` rows and `k` columns in a format, cut into blocks row-major.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The format.
    pub format: Format,
    /// Rows.
    pub n: usize,
    /// Columns.
    pub k: usize,
    /// Elements in a block; the last one may be short.
    pub block: usize,
}

impl Layout {
    pub(super) fn params(self) -> Vec<(&'static str, Param)> {
        let nested = if let Scaling::Nested { block } = self.format.scaling { int(block) } else { Param::None };
        vec![
            ("n", int(self.n)),
            ("k", int(self.k)),
            ("block", int(self.block)),
            ("bits", int(self.format.bits())),
            ("nested", nested),
        ]
    }

    /// The children as the kernels take them.
    pub(super) fn matrix<'a>(&self, children: &'a [Input<'_>]) -> Fallible<Matrix<'a>> {
        let [codes, scales, more @ ..] = children else { return Err("codes and scales are expected".into()) };
        let codes = match self.format.coding {
            Coding::Table { bits, order, values } => Codes::Table { bytes: codes.bytes(), bits, order, values },
            Coding::Unsigned { bits } => Codes::Unsigned { bytes: codes.bytes(), bits },
            Coding::Signed => Codes::Signed { codes: codes.elements()? },
            Coding::E4m3 => Codes::E4m3 { bytes: codes.bytes() },
        };
        let (scales, biases) = match (self.format.scaling, more) {
            (Scaling::Float, more) => (float_scales(scales)?, more.first().map(float_scales).transpose()?),
            (Scaling::E8m0, _) => (Scales::E8m0(scales.elements()?), None),
            (Scaling::E4m3, more) => {
                let factor = more.first().map_or(Ok(1.0), scalar)?;
                (Scales::E4m3 { bytes: scales.elements()?, factor }, None)
            }
            (Scaling::Nested { block }, [absmax, offset]) => {
                let (codes, absmax, offset) = (scales.elements()?, absmax.elements()?, scalar(offset)?);
                (Scales::Nested { codes, map: dynamic8::map(), absmax, block, offset }, None)
            }
            (Scaling::Nested { .. }, _) => return Err("nested scales are three arrays".into()),
        };
        Ok(Matrix { n: self.n, k: self.k, codes, scales, biases, block: self.block })
    }

    /// The values in plain ops: `f32[n, k]`.
    pub(super) fn decoded(&self, children: &[Array]) -> Result<Array, Exception> {
        self.decoded_by(children, |values| *values)
    }

    /// The same with other values in the place of a table's.
    pub(super) fn decoded_by(
        &self,
        children: &[Array],
        table: fn(&[f32; 16]) -> [f32; 16],
    ) -> Result<Array, Exception> {
        let [codes, scales, more @ ..] = children else {
            return Err(Exception::custom("codes and scales are expected"));
        };
        let size = self.n * self.k;
        let values = self.units(codes, table)?.try_index(..size as i32)?;
        let (scales, biases) = match (self.format.scaling, more) {
            (Scaling::Float, more) => (scales.as_dtype(Dtype::Float32)?, more.first()),
            (Scaling::E8m0, _) => (looked_up(&*E8M0, scales)?, None),
            (Scaling::E4m3, [factor, ..]) => (looked_up(&*E4M3, scales)?.multiply(factor)?, None),
            (Scaling::E4m3, []) => (looked_up(&*E4M3, scales)?, None),
            (Scaling::Nested { block }, [absmax, offset, ..]) => (nested(scales, absmax, offset, block)?, None),
            (Scaling::Nested { .. }, _) => return Err(Exception::custom("nested scales are three arrays")),
        };
        let mut values = values.multiply(repeated(&scales, self.block, size)?)?;
        if let Some(biases) = biases {
            values = values.add(repeated(&biases.as_dtype(Dtype::Float32)?, self.block, size)?)?;
        }
        values.reshape(&[self.n as i32, self.k as i32])
    }

    /// What all codes stand for, those that pad included.
    fn units(&self, codes: &Array, table: fn(&[f32; 16]) -> [f32; 16]) -> Result<Array, Exception> {
        let flat = codes.reshape(&[-1])?;
        match self.format.coding {
            Coding::Table { bits, order, values } => {
                let mut shifts: Vec<u32> = (0..8).step_by(bits as usize).collect();
                if order == Order::HighFirst {
                    shifts.reverse();
                }
                let codes = digits(&flat.view_dtype(Dtype::Uint8)?, &shifts, 1 << bits)?;
                looked_up(&table(values)[..1 << bits], &codes)
            }
            Coding::Unsigned { bits } => {
                let ones = digits(&flat.view_dtype(Dtype::Uint8)?, &[0, 1, 2, 3, 4, 5, 6, 7], 2)?;
                let ones = ones.reshape(&[-1, bits as i32])?.as_dtype(Dtype::Float32)?;
                let places: Vec<f32> = (0..bits).map(|bit| (1u32 << bit) as f32).collect();
                ones.multiply(Array::from_slice(&places, &[bits as i32]))?.sum_axis(-1, None)
            }
            Coding::Signed => flat.as_dtype(Dtype::Float32),
            Coding::E4m3 => looked_up(&*E4M3, &flat.view_dtype(Dtype::Uint8)?),
        }
    }
}

/// The values of bitsandbytes' nested scales: `f32[n]`.
pub(crate) fn nested(codes: &Array, absmax: &Array, offset: &Array, block: usize) -> Result<Array, Exception> {
    looked_up(dynamic8::map(), codes)?.multiply(repeated(absmax, block, codes.size())?)?.add(offset)
}

/// The digits of bytes, `byte / 2^shift % base` for each shift, flat.
pub(super) fn digits(bytes: &Array, shifts: &[u32], base: u32) -> Result<Array, Exception> {
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
    rows.reshape(&[-1])?.try_index(..size as i32)
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

pub(super) static E4M3: LazyLock<[f32; 256]> = LazyLock::new(|| std::array::from_fn(|byte| e4m3(byte as u8)));
pub(super) static E8M0: LazyLock<[f32; 256]> = LazyLock::new(|| std::array::from_fn(|byte| e8m0(byte as u8)));
