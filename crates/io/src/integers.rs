//! Integers in 32-bit words, as GPTQ and AWQ pack them, and as the codes of an affine array.

use half::f16;
use mlx_rs::{Array, Dtype};
use rayon::prelude::*;
use tacit_arrays::AffineArray;
use tacit_arrays::format::{Affine, Parts};
use tacit_core::{Aval, Result};

use crate::codes::{along, words, write_codes};
use crate::filled::filled;
use crate::mapped::Part;

/// Writes the codes of a row, a byte for each.
type Codes = Box<dyn Fn(usize, &mut [u8]) + Send + Sync>;

/// A matrix whose elements are `scale * code + bias`, row by row.
pub(crate) struct Integers {
    rows: usize,
    columns: usize,
    /// Its groups may be longer than those of MLX.
    format: Affine,
    /// What the codes are read of.
    stored: Part,
    codes: Codes,
    scales: Vec<f32>,
    biases: Vec<f32>,
}

/// The scale and the bias of elements that are `scale * (code - zero)`.
///
/// The product of a scale in half precision and a zero of a few bits is exact in `f32`, and so are those with the codes.
pub(crate) fn shifted(scale: f32, zero: u32) -> (f32, f32) {
    (scale, -(zero as f32) * scale)
}

impl Integers {
    /// The matrix of these codes, which are read of `stored` when it is evaluated, in groups whose scales and biases are given by
    /// row and group.
    pub(crate) fn new(
        [rows, columns]: [usize; 2],
        format: Affine,
        stored: Part,
        code: impl Fn(usize, usize) -> u8 + Send + Sync + 'static,
        numbers: impl Fn(usize, usize) -> (f32, f32),
    ) -> Self {
        let codes = move |row: usize, places: &mut [u8]| {
            for (column, place) in places.iter_mut().enumerate() {
                *place = code(row, column);
            }
        };
        let places = (0..rows).flat_map(|row| (0..columns / format.group).map(move |at| (row, at)));
        let (scales, biases) = places.map(|(row, at)| numbers(row, at)).unzip();
        Self { rows, columns, format, stored, codes: Box::new(codes), scales, biases }
    }

    /// The array of these numbers, in groups that MLX has, or why there is none.
    ///
    /// Scales and biases are in half precision where it holds all of them, and otherwise in `f32`.
    pub(crate) fn array(self, dtype: Dtype) -> Result<AffineArray, String> {
        let Self { rows, columns, format: Affine { bits, group }, stored, codes, mut scales, mut biases } = self;
        let extents = [rows, columns].map(|extent| i32::try_from(extent).unwrap_or(i32::MAX));
        let aval = Aval::new(&extents, dtype);
        let mlx_group = [128, 64, 32].into_iter().find(|&mlx_group| group.is_multiple_of(mlx_group));
        let mlx_group = mlx_group
            .ok_or_else(|| format!("its groups are of {group} elements, and MLX has groups of 32, 64 and 128"))?;
        for numbers in [&mut scales, &mut biases] {
            *numbers = numbers.iter().flat_map(|&number| std::iter::repeat_n(number, group / mlx_group)).collect();
        }
        let read = filled([words(bits, &aval)], move |[stream]| {
            let width = columns * bits as usize / 8;
            let rows = stream.par_chunks_exact_mut(width.max(1)).enumerate();
            rows.for_each_init(
                || vec![0_u8; columns],
                |row_codes, (row, place)| {
                    codes(row, row_codes);
                    write_codes(row_codes, bits, place);
                },
            );
            stored.forget();
        });
        let array = read.and_then(|[codes]| packed(codes, &scales, &biases, Affine { bits, group: mlx_group }, aval));
        array.map_err(|error| error.clause())
    }
}

/// An affine array of codes, with its numbers in half precision where that holds all of them.
fn packed(codes: Array, scales: &[f32], biases: &[f32], format: Affine, aval: Aval) -> Result<AffineArray> {
    let groups = along(&aval, |columns| columns / format.group as i32, Dtype::Float32).shape;
    let halves = |numbers: &[f32]| -> Option<Vec<f16>> {
        let half = |&number: &f32| Some(f16::from_f32(number)).filter(|half| half.to_f32().total_cmp(&number).is_eq());
        numbers.iter().map(half).collect()
    };
    let (scales, biases) = match (halves(scales), halves(biases)) {
        (Some(scales), Some(biases)) => (Array::from_slice(&scales, &groups), Array::from_slice(&biases, &groups)),
        _ => (Array::from_slice(scales, &groups), Array::from_slice(biases, &groups)),
    };
    let parts = Parts { biases: Some(biases), ..Parts::new(codes, scales) };
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
    let mut shifted = word(first) >> shift;
    if shift + bits as usize > 32 {
        shifted |= word(first + 1) << (32 - shift);
    }
    (shifted & ((1 << bits) - 1)) as u8
}
