//! How a stored format is made, laid out and read: all that the kernels and the plain ops know of it.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use mlx_rs::{Array, Dtype};
use tacit_core::{Aval, Error, Param, Result};
use tacit_kernels::{
    Encoder, KernelError, Order, ScaleRule, affine, binary, e4m3, fp4, int8, mx, nearest, nf4, nvfp4,
    stochastic::Levels, symmetric, ternary,
};

/// A stored format: how many bits a code has, what it stands for, what scales it, and how floats are coded.
///
/// One with a table of your own is a [`codebook`](Self::codebook).
#[derive(Clone, Copy, Debug)]
pub struct Scheme {
    /// The format's name in messages and in the names of its kernels, such as `nf4`.
    pub label: &'static str,
    /// How floats are coded.
    pub encoding: Encoding,
    /// What the codes are.
    pub coding: Coding,
    /// What they are scaled by.
    pub scaling: Scaling,
    /// Whether each block has a bias as well, of the dtype that was quantized, as its scale then is.
    pub biased: bool,
    /// What the scales themselves are quantized to, if they are.
    pub nested: Option<Nested>,
    /// The dtype of the array of codes: `u32` in MLX's layout, whose children have the axes of the array itself; `u8`
    /// for a flat one; `i8` and `u16` for one code an element.
    pub storage: Dtype,
}

/// How a block of floats is coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// The nearest value of the table, whose largest magnitude is the block's.
    Nearest,
    /// The same with the least scale by which the outermost values reach both ends of the block.
    Reaching,
    /// As bitsandbytes codes NF4.
    Nf4,
    /// As bitsandbytes codes FP4.
    Fp4,
    /// As MLX codes its affine format.
    Affine,
    /// To the nearest integer in units that give the largest element the least one.
    Symmetric,
    /// To the nearest of the integers from -127 to 127.
    Int8,
    /// As OCP's MXFP4, with the powers of two by this rule.
    Mxfp4(ScaleRule),
    /// As OCP's MXFP8 of E4M3 elements.
    Mxfp8(ScaleRule),
    /// As NVIDIA's NVFP4.
    Nvfp4 {
        /// Whether the scales are relative to the largest magnitude of the array, a second input.
        global: bool,
    },
    /// By the mean magnitude, to -1, 0 and 1.
    Ternary,
    /// By the mean magnitude, to -1 and 1.
    Binary,
    /// To the nearest half float, ties to even.
    Rounded,
}

/// What a code stands for.
#[derive(Clone, Copy, Debug)]
pub enum Coding {
    /// An entry of a table.
    Table {
        /// Bits of a code, 1 to 4.
        bits: u32,
        /// Which end of a byte is filled first; codes of 3 bits are one stream of bits, the lowest first.
        order: Order,
        /// The values; a code of fewer than 4 bits uses the first of them.
        values: [f32; 16],
    },
    /// An entry of a table, for each byte.
    Bytes {
        /// The values.
        values: &'static [f32; 256],
    },
    /// Itself, as one stream of bits.
    Unsigned {
        /// Bits of a code.
        bits: u32,
    },
    /// Itself less `2^(bits - 1)`, as one stream of bits: offset binary.
    Offset {
        /// Bits of a code.
        bits: u32,
    },
    /// Itself, signed.
    Signed,
    /// OCP's E4M3.
    E4m3,
    /// An `f16`.
    F16,
    /// A `bf16`.
    Bf16,
}

/// What the codes of a block are scaled by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// Nothing: the codes are the values, and there are no scales.
    One,
    /// A float, and a bias if there is a second child.
    Float,
    /// bitsandbytes' 8-bit codes of floats, with the scales of those and an offset: three children.
    Nested {
        /// Scales of one block.
        block: usize,
    },
    /// 8-bit integers times a float of their block, once for the scales and once for the biases: four children.
    Integers {
        /// Scales of one block.
        block: usize,
    },
    /// A power of two.
    E8m0,
    /// OCP's E4M3, times the second child if there is one.
    E4m3,
}

/// What scales are quantized to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nested {
    /// bitsandbytes' 8-bit floats: a [`Dynamic8Array`](crate::Dynamic8Array).
    Dynamic8 {
        /// Scales that share a scale.
        block: usize,
    },
    /// Integers, of the biases as well: an [`Int8Array`](crate::Int8Array).
    Integers {
        /// Scales that share a scale.
        block: usize,
    },
}

const fn are_finite(values: &[f32; 16]) -> bool {
    let mut at = 0;
    while at < values.len() {
        if !values[at].is_finite() {
            return false;
        }
        at += 1;
    }
    true
}

impl Scheme {
    /// Whether the scales are relative to the largest magnitude of the array.
    pub(crate) fn is_relative(&self) -> bool {
        matches!(self.encoding, Encoding::Nvfp4 { global: true })
    }

    /// The same with scales that a factor of the whole array multiplies, where there may be one.
    pub(crate) fn relative(self) -> Self {
        match self.encoding {
            Encoding::Nvfp4 { .. } => Self { encoding: Encoding::Nvfp4 { global: true }, ..self },
            _ => self,
        }
    }

    /// Codes of the values of a table of 2, 4, 8, 16 or 256, of 1, 2, 3, 4 or 8 bits, with a float scale for each block
    /// counted row-major.
    ///
    /// An element takes the nearest value in units of the scale, which is the block's largest magnitude over the table's.
    /// Values that are not finite are read and never chosen; so is -0 beside 0.
    #[must_use]
    pub const fn codebook<const N: usize>(label: &'static str, values: &'static [f32; N]) -> Self {
        const { assert!(matches!(N, 2 | 4 | 8 | 16 | 256), "a codebook has 2, 4, 8, 16 or 256 values") };
        let coding = if let Some(values) = values.first_chunk::<256>() {
            Coding::Bytes { values }
        } else {
            let mut table = [0.0; 16];
            let mut code = 0;
            while code < N {
                table[code] = values[code];
                code += 1;
            }
            Coding::Table { bits: N.ilog2(), order: Order::LowFirst, values: table }
        };
        Self::flat(label, Encoding::Nearest, coding)
    }

    /// Flat codes with a float scale for each block.
    pub(crate) const fn flat(label: &'static str, encoding: Encoding, coding: Coding) -> Self {
        let storage = if matches!(coding, Coding::Signed) { Dtype::Int8 } else { Dtype::Uint8 };
        Self { label, encoding, coding, scaling: Scaling::Float, biased: false, nested: None, storage }
    }

    /// Codes in MLX's layout.
    pub(crate) const fn grouped(label: &'static str, encoding: Encoding, coding: Coding, scaling: Scaling) -> Self {
        Self { label, encoding, coding, scaling, biased: false, nested: None, storage: Dtype::Uint32 }
    }

    /// Codes that are the values, in half floats.
    pub(crate) const fn halves(label: &'static str, coding: Coding) -> Self {
        let (scaling, storage) = (Scaling::One, Dtype::Uint16);
        Self { label, encoding: Encoding::Rounded, coding, scaling, biased: false, nested: None, storage }
    }

    /// Whether there are scales.
    #[must_use]
    pub const fn is_scaled(&self) -> bool {
        !matches!(self.scaling, Scaling::One)
    }

    /// The dtype that all values have whatever the array's is, where the codes are the values.
    pub(crate) const fn half(&self) -> Option<Dtype> {
        match (self.coding, self.scaling) {
            (Coding::F16, Scaling::One) => Some(Dtype::Float16),
            (Coding::Bf16, Scaling::One) => Some(Dtype::Bfloat16),
            _ => None,
        }
    }

    /// Whether its codes are multiplied with activations in 8 bits: integers of 2 to 8 bits, with biases too, or a table of sixteen
    /// finite values that is rounded to such.
    pub(crate) const fn takes_int8_activations(&self) -> bool {
        self.has_integers() && matches!(self.scaling, Scaling::Float)
    }

    /// The same whatever the codes are scaled by.
    pub(super) const fn has_integers(&self) -> bool {
        match self.coding {
            Coding::Signed | Coding::Unsigned { bits: 2..=8 } | Coding::Offset { bits: 2..=8 } => true,
            Coding::Table { bits: 4, ref values, .. } => !self.biased && are_finite(values),
            _ => false,
        }
    }

    /// Bits of one code.
    #[must_use]
    pub const fn bits(&self) -> usize {
        match self.coding {
            Coding::Table { bits, .. } | Coding::Unsigned { bits } | Coding::Offset { bits } => bits as usize,
            Coding::Bytes { .. } | Coding::Signed | Coding::E4m3 => 8,
            Coding::F16 | Coding::Bf16 => 16,
        }
    }

    /// Bits of one element of the array of codes.
    #[must_use]
    pub const fn width(&self) -> usize {
        match self.storage {
            Dtype::Uint32 => 32,
            Dtype::Uint16 => 16,
            _ => 8,
        }
    }

    /// Whether the children have the axes of the array itself, so that blocks lie along its last one.
    #[must_use]
    pub const fn is_grouped(&self) -> bool {
        matches!(self.storage, Dtype::Uint32)
    }

    /// Whether scales may be of any float type: beside biases, and those of integers around zero.
    ///
    /// Others that are floats are `f32`.
    #[must_use]
    pub const fn takes_half_scales(&self) -> bool {
        self.biased || self.nested.is_none() && self.is_centered()
    }

    /// The same with codes in bytes, which an array of any shape has.
    pub(super) fn in_bytes(self) -> Self {
        Self { storage: if self.is_grouped() { Dtype::Uint8 } else { self.storage }, ..self }
    }

    /// The shapes of the codes and of the scales, if there are any, of an array of this shape.
    #[must_use]
    pub fn children(&self, shape: &[i32], block: usize) -> (Vec<i32>, Vec<i32>) {
        let size: usize = shape.iter().map(|&extent| extent as usize).product();
        // A block of nothing is an error where options are checked, which need not be before shapes are asked for.
        let block = block.max(1);
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
            Dtype::Int8 | Dtype::Uint16 => (shape.to_vec(), scales),
            _ => (vec![(size * self.bits()).div_ceil(8) as i32], scales),
        }
    }

    /// The shape of the scales of so many blocks, where these are quantized themselves.
    pub(crate) fn nested_shape(&self, blocks: usize) -> Vec<i32> {
        match self.nested {
            Some(Nested::Integers { block }) => {
                vec![if self.is_centered() { 1 } else { 2 }, blocks.div_ceil(block) as i32, block as i32]
            }
            _ => vec![blocks as i32],
        }
    }

    /// What quantizing an array of this shape makes: codes, scales and biases, as far as there are any.
    pub(crate) fn output_avals(&self, shape: &[i32], block: usize) -> Vec<Aval> {
        let (codes, scales) = self.children(shape, block);
        let bytes = matches!(self.scaling, Scaling::E8m0 | Scaling::E4m3);
        let scales = Aval::new(&scales, if bytes { Dtype::Uint8 } else { Dtype::Float32 });
        let mut avals = vec![Aval::new(&codes, self.storage)];
        avals.extend(self.is_scaled().then(|| scales.clone()));
        avals.extend(self.biased.then_some(scales));
        avals
    }

    /// The value of each code, by code; `None` where a code is a number itself.
    #[must_use]
    pub fn table(&self) -> Option<&[f32]> {
        match &self.coding {
            Coding::Table { bits, values, .. } => Some(&values[..1 << bits]),
            Coding::Bytes { values } => Some(&values[..]),
            Coding::E4m3 => Some(&E4M3[..]),
            Coding::Unsigned { .. } | Coding::Offset { .. } | Coding::Signed | Coding::F16 | Coding::Bf16 => None,
        }
    }

    /// The table whose nearest values elements take.
    pub(super) fn nearest(&self) -> std::result::Result<nearest::Table<'_>, KernelError> {
        let table = nearest::Table::new(self.table().unwrap_or_default())?;
        Ok(if self.encoding == Encoding::Reaching { table.reaching() } else { table })
    }

    /// The kernels' encoder of blocks of so many elements, relative to `global_scale` if the format has that; none where codes
    /// are the values.
    pub(super) fn encoder(
        &self,
        block: usize,
        global_scale: Option<f32>,
    ) -> std::result::Result<Option<Encoder>, KernelError> {
        let encoder = match self.encoding {
            Encoding::Nearest | Encoding::Reaching => self.nearest()?.encoder(block),
            Encoding::Nf4 => nf4::encoder(block),
            Encoding::Fp4 => fp4::encoder(block),
            Encoding::Affine => affine::encoder(block, self.bits() as u32),
            Encoding::Symmetric => symmetric::encoder(block, self.bits() as u32),
            Encoding::Int8 => int8::encoder(block),
            Encoding::Mxfp4(rule) => mx::mxfp4(rule),
            Encoding::Mxfp8(rule) => mx::mxfp8(rule),
            Encoding::Nvfp4 { .. } => nvfp4::encoder(global_scale),
            Encoding::Ternary => ternary::encoder(block),
            Encoding::Binary => binary::encoder(block),
            Encoding::Rounded => return Ok(None),
        };
        Ok(Some(encoder.with_order(self.order())))
    }

    /// The number that each code is, by code, and NaN for one that no element gets; none where codes are half floats.
    pub(super) fn values(&self) -> Option<Vec<f32>> {
        let integers = |bits: u32, least: f32| (0..1_u32 << bits).map(|code| code as f32 + least).collect();
        match self.coding {
            Coding::Unsigned { bits } => Some(integers(bits, 0.0)),
            Coding::Offset { bits } => Some(integers(bits, -self.middle())),
            Coding::Signed => {
                // The integers from -127 to 127, by their bytes.
                let value = |byte: u8| if byte == 0x80 { f32::NAN } else { f32::from(byte.cast_signed()) };
                Some((0..=u8::MAX).map(value).collect())
            }
            _ => self.table().map(<[f32]>::to_vec),
        }
    }

    /// The values of the codes in ascending order; an error where codes are half floats.
    pub(super) fn levels(&self) -> std::result::Result<Levels, KernelError> {
        Levels::new(&self.values().unwrap_or_default())
    }

    /// Which end of a byte is filled first; of a stream of bits, the lowest.
    pub(super) const fn order(&self) -> Order {
        if let Coding::Table { bits: 1 | 2 | 4, order, .. } = self.coding { order } else { Order::LowFirst }
    }

    /// The code that fills a last byte up.
    pub(super) const fn padding(&self) -> u8 {
        match self.encoding {
            Encoding::Nf4 => nf4::PADDING,
            Encoding::Ternary => ternary::PADDING,
            _ => 0,
        }
    }

    /// What tells its kernels from those of another scheme with this label.
    pub(super) fn params(&self) -> [(&'static str, Param); 3] {
        let rule = match self.encoding {
            Encoding::Mxfp4(rule) | Encoding::Mxfp8(rule) => Param::Str(format!("{rule:?}")),
            Encoding::Reaching => Param::Str("reach".to_owned()),
            _ => Param::None,
        };
        let table = if matches!(self.encoding, Encoding::Nearest | Encoding::Reaching) { self.table() } else { None };
        // One number more tells codes that begin at the other end of a byte.
        let order = (self.order() == Order::HighFirst).then_some(1);
        let ints = |values: &[f32]| values.iter().map(|value| i64::from(value.to_bits())).chain(order).collect();
        let table = table.map_or(Param::None, |values| Param::Ints(ints(values)));
        [("bits", Param::Int(self.bits() as i64)), ("rule", rule), ("table", table)]
    }

    /// The name of one of its kernels, such as `Nf4Matmul`.
    pub(super) fn kernel(&self, what: &'static str) -> &'static str {
        type Names = HashMap<(&'static str, &'static str), &'static str>;
        static NAMES: LazyLock<Mutex<Names>> = LazyLock::new(Mutex::default);
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        names.entry((self.label, what)).or_insert_with(|| {
            let mut letters = self.label.chars();
            let first: String = letters.next().map(char::to_uppercase).into_iter().flatten().collect();
            // One for each format and kernel of the program.
            Box::leak(format!("{first}{}{what}", letters.as_str()).into_boxed_str())
        })
    }

    /// Whether the middle code stands for zero, and there are no biases.
    pub(crate) const fn is_centered(&self) -> bool {
        matches!(self.coding, Coding::Offset { .. })
    }

    /// How many scales share a float; it declines scales that are not integers.
    pub(crate) fn integers(&self) -> Result<usize> {
        match self.nested {
            Some(Nested::Integers { block }) => Ok(block),
            _ => Err(Error::decline("the scales are not integers")),
        }
    }

    pub(crate) fn middle(&self) -> f32 {
        (1_u32 << (self.bits() - 1)) as f32
    }

    /// What is added to a code whose middle one stands for zero.
    pub(crate) fn center(&self) -> Array {
        Array::from_f32(-self.middle())
    }
}

pub(super) static E4M3: LazyLock<[f32; 256]> = LazyLock::new(|| std::array::from_fn(|byte| e4m3(byte as u8)));

/// The greatest factor that NVFP4 encodes: the largest E4M3 times the largest E2M1.
pub(crate) const NVFP4_RANGE: f32 = 448.0 * 6.0;
