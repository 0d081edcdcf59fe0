//! The blocks of a tensor as an implicit array.
//!
//! They are decoded when they are evaluated, where they stay and some rows at a time: neither the bytes of the file nor the
//! numbers are in memory twice.

use half::f16;
use mlx_rs::Dtype;
use rayon::prelude::*;
use tacit_arrays::format::{Affine, Codebook, Granularity, KQuant, Mxfp4, Parts, Symmetric};
use tacit_arrays::{AffineArray, CodebookArray, Int8Array, KQuantArray, Mxfp4Array, SymmetricArray};
use tacit_core::{Aval, Result, Value};

use super::blocks::{Block, Form, Layout};
use super::kind::GgufType;
use super::rows::Rows;
use crate::codes::{along, words, write_codes};
use crate::filled::filled;

pub(super) fn array(kind: GgufType, layout: Layout, aval: Aval, rows: Rows) -> Result<Value> {
    let blocks = Blocks { kind, layout, rows, aval };
    Ok(match layout.form {
        Form::Affine => affine(blocks)?.into(),
        Form::Symmetric => symmetric(blocks)?.into(),
        Form::KQuant => k_quant(blocks)?.into(),
        Form::Table { values, scales } => table(blocks, values, scales)?.into(),
        Form::Mxfp4 => mxfp4(blocks)?.into(),
    })
}

pub(super) fn dense(aval: Aval, rows: Rows) -> Result<Value> {
    let [array] = filled([aval], move |[bytes]| {
        let width = rows.get(0).len().max(1);
        bytes.chunks_exact_mut(width).enumerate().for_each(|(row, place)| place.copy_from_slice(rows.get(row)));
        rows.forget_all();
    })?;
    Ok(array.into())
}

struct Blocks {
    kind: GgufType,
    layout: Layout,
    rows: Rows,
    aval: Aval,
}

/// Elements that one task decodes, or those of a row if they are more.
const TASK: usize = 1 << 20;

impl Blocks {
    fn count(&self) -> usize {
        self.aval.size() / self.kind.elements
    }

    /// Elements of a row.
    fn width(&self) -> usize {
        self.aval.shape.last().map_or(1, |&last| last as usize)
    }

    fn tasks(&self) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let width = self.width();
        let rows = self.aval.size().checked_div(width).unwrap_or_default();
        let step = (TASK / width.max(1)).max(1);
        (0..rows).step_by(step).map(move |begin| begin..rows.min(begin + step))
    }

    /// Reads each block and gives it to `put`, with its parts of `buffers`: of each an equal one.
    fn decode<const N: usize>(&self, buffers: [&mut [u8]; N], put: impl Fn(&Block, [&mut [u8]; N]) + Sync) {
        let in_row = self.width() / self.kind.elements;
        let widths = buffers.each_ref().map(|buffer| buffer.len().checked_div(self.count()).unwrap_or_default());
        let mut rest = buffers;
        let tasks: Vec<_> = self
            .tasks()
            .map(|rows| {
                let blocks = rows.len() * in_row;
                (rows, split(&mut rest, widths.map(|width| width * blocks)))
            })
            .collect();
        tasks.into_par_iter().for_each(|(rows, mut places)| {
            let mut block = Block::EMPTY;
            for row in rows.clone() {
                for bytes in self.rows.get(row).chunks_exact(self.kind.bytes) {
                    (self.layout.read)(bytes, &mut block);
                    put(&block, split(&mut places, widths));
                }
            }
            self.rows.forget(rows);
        });
        self.rows.forget_all();
    }

    /// The codes of a block, as a stream.
    fn put_codes(&self, block: &Block, place: &mut [u8]) {
        write_codes(&block.codes[..self.kind.elements], self.layout.bits, place);
    }

    /// All codes, as bytes.
    fn stream(&self) -> Aval {
        let bytes = self.count() * self.kind.elements * self.layout.bits as usize / 8;
        Aval::new(&[extent(bytes)], Dtype::Uint8)
    }

    /// All codes, as the 32-bit words of MLX's layout.
    fn words(&self) -> Aval {
        words(self.layout.bits, &self.aval)
    }
}

/// An extent of an array; what is too large for one is no extent of MLX's.
fn extent(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(-1)
}

/// Takes so many bytes of each of some buffers.
fn split<'b, const N: usize>(rest: &mut [&'b mut [u8]; N], counts: [usize; N]) -> [&'b mut [u8]; N] {
    let mut counts = counts.into_iter();
    rest.each_mut().map(|rest| {
        let (part, behind) = std::mem::take(rest).split_at_mut(counts.next().unwrap_or_default());
        *rest = behind;
        part
    })
}

/// Elements that share a scale where there are no super-blocks.
const GROUP: i32 = 32;

/// The scales and biases of these types are half floats in the file.
fn affine(blocks: Blocks) -> Result<AffineArray> {
    let (aval, bits) = (blocks.aval.clone(), blocks.layout.bits);
    let groups = along(&blocks.aval, |width| width / GROUP, Dtype::Float16);
    let [codes, scales, biases] = filled([blocks.words(), groups.clone(), groups], move |buffers| {
        blocks.decode(buffers, |block, [codes, scale, bias]| {
            blocks.put_codes(block, codes);
            scale.copy_from_slice(&f16::from_f32(block.scale).to_le_bytes());
            bias.copy_from_slice(&f16::from_f32(block.bias).to_le_bytes());
        });
    })?;
    let parts = Parts { biases: Some(biases), ..Parts::new(codes, scales) };
    AffineArray::from_parts(parts, Affine { bits, group: GROUP as usize }, aval)
}

fn symmetric(blocks: Blocks) -> Result<SymmetricArray> {
    let (aval, bits) = (blocks.aval.clone(), blocks.layout.bits);
    let groups = along(&blocks.aval, |width| width / GROUP, Dtype::Float16);
    let [codes, scales] = filled([blocks.words(), groups], move |buffers| {
        blocks.decode(buffers, |block, [codes, scale]| {
            blocks.put_codes(block, codes);
            scale.copy_from_slice(&f16::from_f32(block.scale).to_le_bytes());
        });
    })?;
    SymmetricArray::from_parts(Parts::new(codes, scales), Symmetric { bits, group: GROUP as usize }, aval)
}

/// The integers of the scales, and behind them those of the biases.
///
/// An [`Int8Array`] multiplies by the 127th of its scale. In `f32` 127 times a half-precision number is exact, and so is
/// its 127th again.
fn k_quant(blocks: Blocks) -> Result<KQuantArray> {
    let (aval, format) = (blocks.aval.clone(), KQuant { bits: blocks.layout.bits });
    let (supers, groups) = (blocks.count(), 256 / format.group());
    let rows = if supers == 0 { 0 } else { 2 - usize::from(format.is_centered()) };
    let shape = [rows, supers, groups].map(extent);
    let avals = [blocks.stream(), Aval::new(&[extent(rows * supers)], Dtype::Float32), Aval::new(&shape, Dtype::Int8)];
    let [codes, scales, integers] = filled(avals, move |[codes, scales, integers]| {
        let (scales, biases) = scales.split_at_mut(supers * size_of::<f32>());
        let (scale_integers, bias_integers) = integers.split_at_mut(supers * groups);
        blocks.decode([codes, scales, biases, scale_integers, bias_integers], |block, places| {
            let [codes, scale, bias, of_scale, of_bias] = places;
            blocks.put_codes(block, codes);
            // An integer's own unit is 127.
            scale.copy_from_slice(&(127.0 * block.scale).to_le_bytes());
            of_scale.copy_from_slice(&block.integers[..of_scale.len()]);
            if !bias.is_empty() {
                bias.copy_from_slice(&(-127.0 * block.bias).to_le_bytes());
                of_bias.copy_from_slice(&block.integers[Block::BIASES..][..of_bias.len()]);
            }
        });
    })?;
    let scales = Int8Array::from_parts(
        Parts::new(integers, scales),
        Granularity::Block(groups),
        Aval::new(&shape, Dtype::Float32),
    )?;
    KQuantArray::from_parts(Parts::new(codes, scales), format, aval)
}

fn table(blocks: Blocks, values: &'static [f32], count: usize) -> Result<CodebookArray> {
    let (aval, format) = (blocks.aval.clone(), Codebook::new(blocks.kind.elements / count, values)?);
    let scales = Aval::new(&[extent(blocks.count() * count)], Dtype::Float32);
    let [codes, scales] = filled([blocks.stream(), scales], move |buffers| {
        blocks.decode(buffers, |block, [codes, scales]| {
            blocks.put_codes(block, codes);
            for (group, scale) in block.integers.iter().zip(scales.as_chunks_mut().0) {
                *scale = (block.scale * f32::from(group.cast_signed())).to_le_bytes();
            }
        });
    })?;
    CodebookArray::from_parts(Parts::new(codes, scales), format, aval)
}

fn mxfp4(blocks: Blocks) -> Result<Mxfp4Array> {
    let aval = blocks.aval.clone();
    let scales = along(&blocks.aval, |width| width / 32, Dtype::Uint8);
    let [codes, scales] = filled([blocks.words(), scales], move |buffers| {
        blocks.decode(buffers, |block, [codes, scale]| {
            blocks.put_codes(block, codes);
            scale.copy_from_slice(&block.integers[..scale.len()]);
        });
    })?;
    Mxfp4Array::from_parts(Parts::new(codes, scales), Mxfp4::default(), aval)
}
