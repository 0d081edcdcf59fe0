//! The blocks of a tensor as an implicit array.

use mlx_rs::{Array, Dtype};
use rayon::prelude::*;
use tacit_arrays::format::{Affine, Codebook, Granularity, KQuant, Mxfp4, Parts};
use tacit_arrays::{CodebookArray, Int8Array, KQuantArray, Mxfp4Array};
use tacit_core::{Aval, Result, Value};

use super::blocks::{Block, Form, Reader};
use super::kind::GgufType;
use crate::codes::{bytes_of, floats, push_codes, words};
use crate::integers::packed;

/// The bytes of a row of a tensor.
pub(super) type Row<'a> = &'a (dyn Fn(usize) -> &'a [u8] + Sync);

/// The array of the tensor with these rows.
pub(super) fn array(kind: GgufType, reader: Reader, aval: Aval, row: Row<'_>) -> Result<Value> {
    let read = Read::all(kind, reader, &aval, row);
    let bits = reader.bits;
    Ok(match reader.form {
        Form::Affine => packed(&read.codes, &read.scales, &read.biases, Affine { bits, group: 32 }, aval)?.into(),
        Form::KQuant => k_quant(read, bits, aval)?.into(),
        Form::Table { values, scales } => {
            let parts = Parts::new(bytes_of(&read.codes), floats(&read.scales));
            CodebookArray::from_parts(parts, Codebook::new(kind.elements / scales, values)?, aval)?.into()
        }
        Form::Mxfp4 => {
            let groups = along(&aval, 32);
            let scales =
                Array::from_slice(&read.integers.iter().map(|byte| byte.cast_unsigned()).collect::<Vec<_>>(), &groups);
            let parts = Parts::new(words(&read.codes, bits, &aval)?, scales);
            Mxfp4Array::from_parts(parts, Mxfp4::default(), aval)?.into()
        }
    })
}

/// All blocks of a tensor.
#[derive(Default)]
struct Read {
    codes: Vec<u8>,
    scales: Vec<f32>,
    biases: Vec<f32>,
    integers: Vec<i8>,
    integer_biases: Vec<i8>,
}

/// Elements that one task decodes, or those of a row if they are more.
const TASK: usize = 1 << 20;

impl Read {
    fn all(kind: GgufType, reader: Reader, aval: &Aval, row: Row<'_>) -> Self {
        let last = aval.shape.last().map_or(1, |&last| last as usize);
        let rows = aval.size().checked_div(last).unwrap_or_default();
        let task = (TASK / last.max(1)).max(1);
        let read: Vec<Self> = (0..rows.div_ceil(task))
            .into_par_iter()
            .map(|at| Self::rows(kind, reader, (at * task..rows.min((at + 1) * task)).map(row)))
            .collect();
        read.into_iter().reduce(Self::joined).unwrap_or_default()
    }

    fn rows<'a>(kind: GgufType, reader: Reader, rows: impl ExactSizeIterator<Item = &'a [u8]>) -> Self {
        let (mut read, mut block) = (Self::default(), Block::EMPTY);
        for row in rows {
            read.codes.reserve(row.len() / kind.bytes * kind.elements * reader.bits as usize / 8);
            for bytes in row.chunks_exact(kind.bytes) {
                (reader.read)(bytes, &mut block);
                push_codes(&block.codes[..kind.elements], reader.bits, &mut read.codes);
                read.push(&block, reader);
            }
        }
        read
    }

    fn joined(mut self, mut next: Self) -> Self {
        self.codes.append(&mut next.codes);
        self.scales.append(&mut next.scales);
        self.biases.append(&mut next.biases);
        self.integers.append(&mut next.integers);
        self.integer_biases.append(&mut next.integer_biases);
        self
    }

    fn push(&mut self, block: &Block, Reader { bits, form, .. }: Reader) {
        let &Block { scale, bias, ref scales, ref biases, .. } = block;
        match form {
            Form::Affine => {
                self.scales.push(scale);
                self.biases.push(bias);
            }
            Form::KQuant => {
                let groups = 256 / KQuant { bits }.group();
                // An integer's own unit is 127; see `k_quant`.
                self.scales.push(127.0 * scale);
                self.integers.extend(&scales[..groups]);
                if !(KQuant { bits }).is_centered() {
                    self.biases.push(-127.0 * bias);
                    self.integer_biases.extend(&biases[..groups]);
                }
            }
            Form::Table { scales: count, .. } => {
                self.scales.extend(scales[..count].iter().map(|&group| scale * f32::from(group)));
            }
            Form::Mxfp4 => self.integers.push(scales[0]),
        }
    }
}

/// The shape of what there is one of for so many elements of a row.
fn along(aval: &Aval, elements: i32) -> Vec<i32> {
    let mut shape = aval.shape.clone();
    if let Some(last) = shape.last_mut() {
        *last /= elements;
    }
    shape
}

/// The integers of the scales, and behind them those of the biases.
///
/// An [`Int8Array`] multiplies by the 127th of its scale. In `f32` 127 times a half-precision number is exact, and so is
/// its 127th again.
fn k_quant(mut read: Read, bits: u32, aval: Aval) -> Result<KQuantArray> {
    let supers = read.scales.len() as i32;
    let groups = 256 / KQuant { bits }.group();
    read.integers.append(&mut read.integer_biases);
    read.scales.append(&mut read.biases);
    let rows = read.scales.len() as i32 / supers.max(1);
    let shape = [rows, supers, groups as i32];
    let parts = Parts::new(Array::from_slice(&read.integers, &shape), floats(&read.scales));
    let scales = Int8Array::from_parts(parts, Granularity::Block(groups), Aval::new(&shape, Dtype::Float32))?;
    KQuantArray::from_parts(Parts::new(bytes_of(&read.codes), scales), KQuant { bits }, aval)
}
