//! Integers in 32-bit words, as GPTQ and AWQ pack them, and as the codes of an affine array.

use half::f16;
use mlx_rs::{Array, Dtype};
use rayon::prelude::*;
use tacit_arrays::AffineArray;
use tacit_arrays::format::{Affine, Parts};
use tacit_core::{Aval, Result};

use crate::codes::{words, write_codes};

/// A matrix whose elements are `scale * (code - zero)`, row by row.
pub(crate) struct Integers {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) bits: u32,
    /// Columns that share a scale.
    pub(crate) group: usize,
    /// A byte for each.
    pub(crate) codes: Vec<u8>,
    pub(crate) scales: Vec<f32>,
    /// What is added to each element of a group.
    pub(crate) biases: Vec<f32>,
}

impl Integers {
    /// The matrix of these codes, in groups whose scales and zeros are given by row and group.
    ///
    /// The product of a scale in half precision and a zero of a few bits is exact in `f32`, and so are those with the codes.
    pub(crate) fn new(
        [rows, columns]: [usize; 2],
        bits: u32,
        group: usize,
        code: impl Fn(usize, usize) -> u8 + Sync,
        numbers: impl Fn(usize, usize) -> (f32, u32),
    ) -> Self {
        let mut codes = vec![0; rows * columns];
        codes.par_chunks_mut(columns.max(1)).enumerate().for_each(|(row, codes)| {
            for (column, place) in codes.iter_mut().enumerate() {
                *place = code(row, column);
            }
        });
        let mut integers = Self { rows, columns, bits, group, codes, scales: Vec::new(), biases: Vec::new() };
        for row in 0..rows {
            for at in 0..columns / group {
                let (scale, zero) = numbers(row, at);
                integers.scales.push(scale);
                integers.biases.push(-(zero as f32) * scale);
            }
        }
        integers
    }

    /// The array of these numbers, in groups that MLX has, or why there is none.
    ///
    /// Scales and biases are in half precision where it holds all of them, and otherwise in `f32`.
    pub(crate) fn array(self, dtype: Dtype) -> Result<AffineArray, String> {
        let Self { rows, columns, bits, group, codes, mut scales, mut biases } = self;
        let extents = [rows, columns].map(|extent| i32::try_from(extent).unwrap_or(i32::MAX));
        let aval = Aval::new(&extents, dtype);
        let own = [128, 64, 32].into_iter().find(|&own| group.is_multiple_of(own));
        let own =
            own.ok_or_else(|| format!("its groups are of {group} elements, and MLX has groups of 32, 64 and 128"))?;
        for numbers in [&mut scales, &mut biases] {
            *numbers = numbers.iter().flat_map(|&number| std::iter::repeat_n(number, group / own)).collect();
        }
        let mut stream = vec![0; (codes.len() * bits as usize).div_ceil(8)];
        write_codes(&codes, bits, &mut stream);
        packed(&stream, &scales, &biases, Affine { bits, group: own }, aval).map_err(|error| error.clause())
    }
}

/// An affine array of a stream of codes, with its numbers in half precision where that holds all of them.
pub(crate) fn packed(stream: &[u8], scales: &[f32], biases: &[f32], format: Affine, aval: Aval) -> Result<AffineArray> {
    let mut groups = aval.shape.clone();
    if let Some(last) = groups.last_mut() {
        *last /= format.group as i32;
    }
    let halves = |numbers: &[f32]| -> Option<Vec<f16>> {
        let half = |&number: &f32| Some(f16::from_f32(number)).filter(|half| half.to_f32().total_cmp(&number).is_eq());
        numbers.iter().map(half).collect()
    };
    let (scales, biases) = match (halves(scales), halves(biases)) {
        (Some(scales), Some(biases)) => (Array::from_slice(&scales, &groups), Array::from_slice(&biases, &groups)),
        _ => (Array::from_slice(scales, &groups), Array::from_slice(biases, &groups)),
    };
    let parts = Parts { biases: Some(biases), ..Parts::new(words(stream, format.bits, &aval)?, scales) };
    AffineArray::from_parts(parts, format, aval)
}

/// Little-endian numbers of a float type as `f32`, which holds each exactly.
pub(crate) fn floats_of(bytes: &[u8], dtype: Dtype) -> Option<Vec<f32>> {
    let pairs = || bytes.as_chunks::<2>().0.iter().map(|pair| u16::from_le_bytes(*pair));
    Some(match dtype {
        Dtype::Float16 => pairs().map(|bits| f16::from_bits(bits).to_f32()).collect(),
        Dtype::Bfloat16 => pairs().map(|bits| f32::from_bits(u32::from(bits) << 16)).collect(),
        Dtype::Float32 => bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        _ => return None,
    })
}

/// The codes of a stream of bits in words, the lowest first: code `at` of `bits` bits.
pub(crate) fn in_stream(word: impl Fn(usize) -> u32, at: usize, bits: u32) -> u8 {
    let bit = at * bits as usize;
    let (first, shift) = (bit / 32, bit % 32);
    let mut held = word(first) >> shift;
    if shift + bits as usize > 32 {
        held |= word(first + 1) << (32 - shift);
    }
    (held & ((1 << bits) - 1)) as u8
}
