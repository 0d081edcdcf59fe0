//! A borrowed matrix in any of the stored formats, and the checks that every function makes before it touches memory.

use std::ops::Range;

use half::{bf16, f16};

use crate::{
    KernelError,
    minifloat::{e4m3, e8m0},
    simd::LINE,
};

/// A stored matrix of `n` rows of `k` elements.
///
/// Element `e`, counted row-major through the whole matrix, is
/// `codes[e] * scales[e / block] + biases[e / block]`, each product and sum rounded to `f32`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Rows.
    pub n: usize,
    /// Elements in a row.
    pub k: usize,
    /// What the elements are in units of their block's scale.
    pub codes: Codes<'a>,
    /// The scale of each block.
    pub scales: Scales<'a>,
    /// What is added to each element of a block; `None` adds nothing.
    pub biases: Option<Scales<'a>>,
    /// Elements in a block; the last one may be short. Where all scales are [one](Scales::One) the whole matrix had best be a
    /// single one.
    pub block: usize,
}

/// Matrices of one shape in one stored matrix, each the rows behind those of the one before it, such as the experts of a
/// mixture.
#[derive(Clone, Copy, Debug)]
pub struct Stack<'a> {
    /// The rows of all of them.
    pub matrix: Matrix<'a>,
    /// How many there are.
    pub count: usize,
}

/// Codes of one format, for each its value.
#[derive(Clone, Copy, Debug)]
pub enum Codes<'a> {
    /// Codes of 1 to 4 bits that stand for the first `2^bits` values of a table.
    Table {
        /// The codes, as [`Order`] says; the last byte may be partly used. Those of 3 bits are one stream of bits, the
        /// least significant first.
        bytes: &'a [u8],
        /// 1, 2, 3 or 4.
        bits: u32,
        /// Which end of a byte is filled first; codes of 3 bits have only [`Order::LowFirst`].
        order: Order,
        /// The value of each code; those from `2^bits` on are not used.
        values: &'a [f32; 16],
    },
    /// Integers from 0 of 1 to 8 bits, as one stream of bits, the least significant first.
    Unsigned {
        /// The stream.
        bytes: &'a [u8],
        /// Bits of a code.
        bits: u32,
    },
    /// Integers from `-2^(bits - 1)` of 1 to 8 bits, in offset binary: a code is that much more than its integer. They lie as those of
    /// [`Unsigned`](Self::Unsigned).
    Offset {
        /// The stream.
        bytes: &'a [u8],
        /// Bits of a code.
        bits: u32,
    },
    /// Integers from -128 to 127.
    Signed {
        /// One for each element.
        codes: &'a [i8],
    },
    /// Floats of 4 exponent and 3 mantissa bits, without infinities: OCP's E4M3.
    E4m3 {
        /// One for each element.
        bytes: &'a [u8],
    },
    /// Bytes that stand for the values of a table.
    Bytes {
        /// One for each element.
        bytes: &'a [u8],
        /// The value of each byte.
        values: &'a [f32; 256],
    },
    /// Half floats, each its own value; infinities and NaN as well.
    F16 {
        /// One for each element.
        codes: &'a [f16],
    },
    /// Upper halves of single floats, each its own value; infinities and NaN as well.
    Bf16 {
        /// One for each element.
        codes: &'a [bf16],
    },
}

/// Which end of a byte holds the first of its codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The most significant bits, as bitsandbytes packs.
    HighFirst,
    /// The least significant bits, as MLX packs.
    LowFirst,
}

/// One number for each block.
#[derive(Clone, Copy, Debug)]
pub enum Scales<'a> {
    /// None are stored: each is 1, and the codes are the values.
    One,
    /// Single precision.
    F32(&'a [f32]),
    /// Half precision.
    F16(&'a [f16]),
    /// The upper half of single precision.
    Bf16(&'a [bf16]),
    /// Powers of two, `2^(byte - 127)`; byte 255 is NaN.
    E8m0(&'a [u8]),
    /// OCP's E4M3, times a factor that all blocks share.
    E4m3 {
        /// One for each block.
        bytes: &'a [u8],
        /// What each is multiplied by.
        factor: f32,
    },
    /// bitsandbytes' nested scales: `map[codes[b]] * absmax[b / block] + offset`.
    Nested {
        /// One for each block of the matrix.
        codes: &'a [u8],
        /// The value of each code.
        map: &'a [f32; 256],
        /// The scale of each block of codes.
        absmax: &'a [f32],
        /// Codes in a block.
        block: usize,
        /// What is added to each.
        offset: f32,
    },
    /// GGUF's scales of K-quants: `codes[b] * units[b / block]`.
    Integers {
        /// One for each block of the matrix.
        codes: &'a [i8],
        /// The unit of each block of codes.
        units: &'a [f32],
        /// Codes in a block.
        block: usize,
    },
}

/// The values of unsigned codes of up to 4 bits.
pub(crate) const INTEGERS: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// The values of codes in offset binary, for each number of bits up to 4.
pub(crate) static OFFSETS: [[f32; 16]; 5] = {
    let mut offsets = [INTEGERS; 5];
    let mut bits = 1;
    while bits < 5 {
        let mut code = 0;
        while code < 16 {
            offsets[bits][code] -= offset(bits as u32);
            code += 1;
        }
        bits += 1;
    }
    offsets
};

/// What a code of so many bits in offset binary is more than its integer.
pub(crate) const fn offset(bits: u32) -> f32 {
    (1_u32 << (bits - 1)) as f32
}

impl Matrix<'_> {
    /// Calls `each` with the cache lines of the scales and biases of some rows, to prefetch them: they are too few at a time
    /// for the hardware to learn their stream.
    #[inline(always)]
    pub(crate) fn each_line_of_numbers(&self, rows: Range<usize>, mut each: impl FnMut(*const u8)) {
        let blocks = rows.start * self.k / self.block..(rows.end * self.k).div_ceil(self.block);
        for numbers in [Some(&self.scales), self.biases.as_ref()].into_iter().flatten() {
            numbers.stored(blocks.clone()).chunks(LINE).for_each(|line| each(line.as_ptr()));
        }
    }

    /// The matrix of these rows, if the first of them begins with a byte and with a block, or no block ends among them.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Option<Self> {
        let elements = rows.start * self.k..rows.end * self.k;
        let blocks = whole_blocks(&elements, self.block)?;
        let bits = self.codes.bits();
        let bit = elements.start.checked_mul(bits as usize).filter(|bit| bit.is_multiple_of(8))?;
        let biases = match self.biases {
            Some(biases) => Some(biases.of_blocks(blocks.clone())?),
            None => None,
        };
        Some(Self {
            n: rows.len(),
            codes: self.codes.part(bit / 8..bit / 8 + code_bytes(elements.len(), bits)),
            scales: self.scales.of_blocks(blocks)?,
            biases,
            ..*self
        })
    }

    /// The number of elements, once all lengths are known to be right.
    pub(crate) fn check(&self) -> Result<usize, KernelError> {
        let elements = product(self.n, self.k)?;
        if self.block == 0 {
            return Err(KernelError::EmptyBlock);
        }
        let (count, needed) = match self.codes {
            Codes::Table { bits: 3, order: Order::HighFirst, .. } => return Err(KernelError::Order),
            Codes::Table { bytes, bits: bits @ 1..=4, .. }
            | Codes::Unsigned { bytes, bits: bits @ 1..=8 }
            | Codes::Offset { bytes, bits: bits @ 1..=8 } => (bytes.len(), code_bytes(elements, bits)),
            Codes::Table { bits, .. } | Codes::Unsigned { bits, .. } | Codes::Offset { bits, .. } => {
                return Err(KernelError::Bits { bits });
            }
            _ => (self.codes.bytes().len() / (self.codes.bits() / 8) as usize, elements),
        };
        check_length("codes", count, needed, "as many as the matrix has elements, in whole bytes")?;
        let blocks = elements.div_ceil(self.block);
        self.scales.check("scales", blocks)?;
        self.biases.map_or(Ok(()), |biases| biases.check("biases", blocks))?;
        Ok(elements)
    }
}

impl Codes<'_> {
    /// The codes in these bytes.
    pub(crate) fn part(&self, range: Range<usize>) -> Self {
        match *self {
            Self::Table { bytes, bits, order, values } => Self::Table { bytes: &bytes[range], bits, order, values },
            Self::Unsigned { bytes, bits } => Self::Unsigned { bytes: &bytes[range], bits },
            Self::Offset { bytes, bits } => Self::Offset { bytes: &bytes[range], bits },
            Self::Signed { codes } => Self::Signed { codes: &codes[range] },
            Self::E4m3 { bytes } => Self::E4m3 { bytes: &bytes[range] },
            Self::Bytes { bytes, values } => Self::Bytes { bytes: &bytes[range], values },
            Self::F16 { codes } => Self::F16 { codes: &codes[range.start / 2..range.end / 2] },
            Self::Bf16 { codes } => Self::Bf16 { codes: &codes[range.start / 2..range.end / 2] },
        }
    }

    /// The `bf16` numbers that a value is the sum of: one, or at most three.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn pieces(&self) -> usize {
        let is_short = |value: &f32| value.to_bits().trailing_zeros() >= 16;
        match self {
            Self::Table { values, .. } if !values.iter().all(is_short) => 3,
            _ => 1,
        }
    }

    /// Bits of a code.
    pub(crate) fn bits(&self) -> u32 {
        match *self {
            Self::Table { bits, .. } | Self::Unsigned { bits, .. } | Self::Offset { bits, .. } => bits,
            Self::Signed { .. } | Self::E4m3 { .. } | Self::Bytes { .. } => 8,
            Self::F16 { .. } | Self::Bf16 { .. } => 16,
        }
    }

    /// The codes as they are stored.
    pub(crate) fn bytes(&self) -> &[u8] {
        match *self {
            Self::Table { bytes, .. }
            | Self::Unsigned { bytes, .. }
            | Self::Offset { bytes, .. }
            | Self::E4m3 { bytes }
            | Self::Bytes { bytes, .. } => bytes,
            Self::Signed { codes } => bytes(codes),
            Self::F16 { codes } => bytes(codes),
            Self::Bf16 { codes } => bytes(codes),
        }
    }

    /// What element `at` is in units of its block's scale.
    pub(crate) fn value(&self, at: usize) -> f32 {
        self.value_in(self.bytes(), at)
    }

    /// What code `at` of these bytes is, if they are this format's.
    pub(crate) fn value_in(&self, bytes: &[u8], at: usize) -> f32 {
        let half = || u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]);
        match self {
            Self::F16 { .. } => return f16::from_bits(half()).to_f32(),
            Self::Bf16 { .. } => return bf16::from_bits(half()).to_f32(),
            _ => {}
        }
        let bits = self.bits() as usize;
        let place = match *self {
            Self::Table { bits: 1 | 2 | 4, order: Order::HighFirst, .. } => at ^ (8 / bits - 1),
            _ => at,
        };
        let bit = place * bits;
        let pair = u16::from_le_bytes([bytes[bit / 8], *bytes.get(bit / 8 + 1).unwrap_or(&0)]);
        let code = pair >> (bit % 8) & ((1 << bits) - 1);
        match *self {
            Self::Table { values, .. } => values[usize::from(code)],
            Self::Unsigned { .. } => f32::from(code),
            Self::Offset { bits, .. } => f32::from(code) - offset(bits),
            Self::Signed { .. } => f32::from((code as u8).cast_signed()),
            Self::E4m3 { .. } => e4m3(code as u8),
            Self::Bytes { values, .. } => values[usize::from(code as u8)],
            Self::F16 { .. } | Self::Bf16 { .. } => unreachable!("halves are no bits of a byte"),
        }
    }
}

/// Codes of whole bytes as they are stored.
pub(crate) fn bytes<T: WholeBytes>(codes: &[T]) -> &[u8] {
    // SAFETY: the type has no padding, and every byte is a `u8`.
    unsafe { std::slice::from_raw_parts(codes.as_ptr().cast(), size_of_val(codes)) }
}

/// # Safety
/// The type has no padding.
pub(crate) unsafe trait WholeBytes {}

// SAFETY: a byte.
unsafe impl WholeBytes for i8 {}
// SAFETY: four bytes.
unsafe impl WholeBytes for f32 {}
// SAFETY: a transparent `u16`.
unsafe impl WholeBytes for f16 {}
// SAFETY: as above.
unsafe impl WholeBytes for bf16 {}

impl Scales<'_> {
    /// The scales of these blocks, if the first of them begins with a block of codes of scales, or none of those ends among them.
    fn of_blocks(&self, blocks: Range<usize>) -> Option<Self> {
        Some(match *self {
            Self::One => Self::One,
            Self::F32(values) => Self::F32(&values[blocks]),
            Self::F16(values) => Self::F16(&values[blocks]),
            Self::Bf16(values) => Self::Bf16(&values[blocks]),
            Self::E8m0(bytes) => Self::E8m0(&bytes[blocks]),
            Self::E4m3 { bytes, factor } => Self::E4m3 { bytes: &bytes[blocks], factor },
            Self::Nested { codes, map, absmax, block, offset } => {
                let absmax = &absmax[whole_blocks(&blocks, block)?];
                Self::Nested { codes: &codes[blocks], map, absmax, block, offset }
            }
            Self::Integers { codes, units, block } => {
                let units = &units[whole_blocks(&blocks, block)?];
                Self::Integers { codes: &codes[blocks], units, block }
            }
        })
    }

    /// Where the numbers of these blocks are stored.
    pub(crate) fn stored(&self, blocks: Range<usize>) -> &[u8] {
        match *self {
            Self::One => &[],
            Self::F32(values) => bytes(&values[blocks]),
            Self::F16(values) => bytes(&values[blocks]),
            Self::Bf16(values) => bytes(&values[blocks]),
            Self::E8m0(bytes) | Self::E4m3 { bytes, .. } | Self::Nested { codes: bytes, .. } => &bytes[blocks],
            Self::Integers { codes, .. } => bytes(&codes[blocks]),
        }
    }

    fn check(&self, name: &'static str, blocks: usize) -> Result<(), KernelError> {
        let count = match *self {
            Self::One => blocks,
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Bf16(values) => values.len(),
            Self::E8m0(bytes) | Self::E4m3 { bytes, .. } => bytes.len(),
            Self::Nested { block: 0, .. } | Self::Integers { block: 0, .. } => return Err(KernelError::EmptyBlock),
            Self::Nested { codes, absmax, block, .. } => {
                check_length("absmax", absmax.len(), blocks.div_ceil(block), "each block of nested codes has one")?;
                codes.len()
            }
            Self::Integers { codes, units, block } => {
                check_length("units", units.len(), blocks.div_ceil(block), "each block of integers has one")?;
                codes.len()
            }
        };
        check_length(name, count, blocks, "each block of elements has one")
    }

    /// The number of block `at`.
    pub(crate) fn get(&self, at: usize) -> f32 {
        match *self {
            Self::One => 1.0,
            Self::F32(values) => values[at],
            Self::F16(values) => values[at].to_f32(),
            Self::Bf16(values) => values[at].to_f32(),
            Self::E8m0(bytes) => e8m0(bytes[at]),
            Self::E4m3 { bytes, factor } => e4m3(bytes[at]) * factor,
            Self::Nested { codes, map, absmax, block, offset } => {
                map[usize::from(codes[at])] * absmax[at / block] + offset
            }
            Self::Integers { codes, units, block } => f32::from(codes[at]) * units[at / block],
        }
    }
}

/// The blocks of `block` numbers that these are in, if the first of them begins with one, or none ends among them.
fn whole_blocks(numbers: &Range<usize>, block: usize) -> Option<Range<usize>> {
    let (first, last) = (numbers.start / block, numbers.end.saturating_sub(1).max(numbers.start) / block);
    let begins = numbers.start.is_multiple_of(block) || first == last;
    begins.then(|| first..first + numbers.len().div_ceil(block))
}

/// The bytes that hold `elements` codes of `bits` bits.
#[must_use]
pub const fn code_bytes(elements: usize, bits: u32) -> usize {
    // In units of eight codes, so that no product overflows where the elements themselves fit in memory.
    elements / 8 * bits as usize + (elements % 8 * bits as usize).div_ceil(8)
}

pub(crate) fn product(rows: usize, columns: usize) -> Result<usize, KernelError> {
    // Slices of f32 hold at most isize::MAX bytes; below that, no index or offset overflows.
    rows.checked_mul(columns)
        .filter(|&elements| elements <= isize::MAX as usize / 4)
        .ok_or(KernelError::Overflow { rows, columns })
}

pub(crate) fn check_length(
    name: &'static str,
    actual: usize,
    expected: usize,
    help: &'static str,
) -> Result<(), KernelError> {
    if actual == expected { Ok(()) } else { Err(KernelError::Length { name, expected, actual, help }) }
}

pub(crate) fn check_size(
    name: &'static str,
    actual: usize,
    expected: usize,
    help: &'static str,
) -> Result<(), KernelError> {
    if actual == expected { Ok(()) } else { Err(KernelError::Size { name, expected, actual, help }) }
}
