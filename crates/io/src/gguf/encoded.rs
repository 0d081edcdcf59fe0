//! Parameters as the bytes of a file's tensors: codes are kept where a type of GGUF has them, bit for bit.

use half::f16;
use mlx_rs::{Array, Dtype};
use rayon::prelude::*;
use tacit_arrays::format::{PackedArray, RowPieces};
use tacit_arrays::{
    AffineArray, Bf16Array, CodebookArray, F16Array, Int8Array, KQuantArray, Mxfp4Array, Packed, Stacked,
    SymmetricArray,
};
use tacit_bridge::{forget_bytes, with_bytes};
use tacit_core::{Error, Result, Value};

use super::blocks::{Block, IQ4, TERNARY, layout};
use super::kind::GgufType;
use super::rounded::rounded;
use crate::filled::read_apart;
use crate::floats::floats;

/// A tensor that is to be written.
pub(super) struct Encoded {
    pub(super) kind: GgufType,
    pub(super) shape: Vec<i32>,
    source: Source,
}

enum Source {
    /// Elements of the type itself.
    Dense(Array),
    /// Elements that are quantized.
    Rounded(Value),
    /// Codes that the type has; their numbers are read when they are written.
    Blocks(Value),
    /// Experts, one after the other.
    Several(Vec<Encoded>),
}

/// The numbers of all blocks of a tensor, as [`Block`] has them, one after the other.
#[derive(Default)]
struct Blocks {
    /// One stream, the lowest bits first.
    codes: Option<Array>,
    bits: usize,
    scale: Vec<f32>,
    bias: Vec<f32>,
    scales: Vec<u8>,
    biases: Vec<u8>,
}

impl Encoded {
    /// A parameter whose numbers a type of GGUF has, or nothing.
    pub(super) fn exact(value: &Value) -> Result<Option<Self>> {
        let shape = value.aval()?.shape;
        let dense = |array: Array| {
            let kind = GgufType::dense(array.dtype())?;
            Some(Self { kind, shape: shape.clone(), source: Source::Dense(array) })
        };
        if let Some(array) = value.as_dense() {
            return Ok(dense(array.clone()));
        }
        if let Some(stacked) = value.downcast::<Stacked>() {
            let parts = stacked.experts().iter().map(Self::exact).collect::<Result<Option<Vec<_>>>>()?;
            let alike = parts.filter(|parts| parts.iter().all(|part| part.kind == parts[0].kind));
            return Ok(alike.map(|parts| Self { kind: parts[0].kind, shape, source: Source::Several(parts) }));
        }
        let lies = |of: &dyn Packed| !of.stored().transposed;
        if !value.family::<dyn Packed>().is_some_and(lies) {
            return Ok(None);
        }
        if let Some(array) = value.downcast::<F16Array>() {
            return Ok(dense(array.codes().view_dtype(Dtype::Float16)?));
        }
        if let Some(array) = value.downcast::<Bf16Array>() {
            return Ok(dense(array.codes().view_dtype(Dtype::Bfloat16)?));
        }
        // Of arrays of its own: those of the value would be in memory from here on until they are written.
        let kind = Blocks::from_value(&read_apart(value)?)?.and_then(|(name, _)| GgufType::named(name));
        let kind = kind.filter(|kind| is_whole(&shape, *kind));
        Ok(kind.map(|kind| Self { kind, shape, source: Source::Blocks(value.clone()) }))
    }

    /// A parameter that is quantized to a type, if its rows are whole blocks of it.
    pub(super) fn of_type(value: &Value, kind: GgufType) -> Result<Option<Self>> {
        let shape = value.aval()?.shape;
        Ok(is_whole(&shape, kind).then(|| Self { kind, shape, source: Source::Rounded(value.clone()) }))
    }

    /// Gives `out` the bytes as the file has them, some at a time.
    pub(super) fn write(&self, out: Out<'_>) -> Result<()> {
        match &self.source {
            Source::Dense(array) => with_bytes(array, |bytes| {
                bytes.chunks(PIECE).try_for_each(|bytes| {
                    out(bytes)?;
                    forget_bytes(bytes);
                    Ok(())
                })
            })?,
            Source::Rounded(value) => {
                let pieces = RowPieces::new(value)?;
                pieces.ranges().try_for_each(|rows| {
                    out(&rounded(&pieces.get(rows.clone())?, self.kind)?)?;
                    pieces.forget(rows)
                })
            }
            Source::Blocks(value) => match Blocks::from_value(value)? {
                Some((name, blocks)) if name == self.kind.name() => blocks.write(self.kind, out),
                _ => Err(no_writer(self.kind)),
            },
            Source::Several(parts) => parts.iter().try_for_each(|part| part.write(out)),
        }
    }
}

/// Takes bytes of a file, one piece after the other.
pub(super) type Out<'o> = &'o mut dyn FnMut(&[u8]) -> Result<()>;

/// Bytes of a piece, about.
const PIECE: usize = 1 << 24;

fn no_writer(kind: GgufType) -> Error {
    Error::invalid(format!("there is no writer of {kind}"), "take another type")
}

/// Whether rows are whole blocks of a type; there is no block of no elements.
fn is_whole(shape: &[i32], kind: GgufType) -> bool {
    let is_none = kind.dtype.is_none() && shape.contains(&0);
    !is_none && shape.last().is_some_and(|&last| (last as usize).is_multiple_of(kind.elements))
}

impl Blocks {
    fn new(array: &PackedArray<impl tacit_arrays::format::Format>, bits: u32) -> Self {
        Self { codes: Some(array.codes().clone()), bits: bits as usize, ..Self::default() }
    }

    /// The blocks of codes that a type of GGUF has, and its name.
    fn from_value(value: &Value) -> Found {
        if let Some(array) = value.downcast::<AffineArray>() {
            affine(array)
        } else if let Some(array) = value.downcast::<SymmetricArray>() {
            symmetric(array)
        } else if let Some(array) = value.downcast::<KQuantArray>() {
            k_quant(array)
        } else if let Some(array) = value.downcast::<CodebookArray>() {
            table(array)
        } else if let Some(array) = value.downcast::<Mxfp4Array>() {
            mxfp4(array)
        } else {
            Ok(None)
        }
    }

    fn write(&self, kind: GgufType, out: Out<'_>) -> Result<()> {
        self.write_in(PIECE, kind, out)
    }

    /// As [`write`](Self::write), about so many bytes at a time.
    fn write_in(&self, piece: usize, kind: GgufType, out: Out<'_>) -> Result<()> {
        let write = layout(kind.name()).and_then(|layout| layout.write);
        let (Some(write), Some(codes)) = (write, &self.codes) else { return Err(no_writer(kind)) };
        let stride = kind.elements * self.bits / 8;
        let Self { bits, ref scale, ref bias, ref scales, ref biases, .. } = *self;
        with_bytes(codes, |codes| {
            let count = codes.len() / stride;
            let groups = |numbers: &[u8]| numbers.len() / count.max(1);
            let (of_scales, of_biases) = (groups(scales), groups(biases));
            let piece = (piece / kind.bytes).max(1);
            let mut bytes = vec![0; count.min(piece) * kind.bytes];
            for (first, codes) in (0..).step_by(piece).zip(codes.chunks(piece * stride)) {
                let bytes = &mut bytes[..codes.len() / stride * kind.bytes];
                // A writer adds bits to what is there.
                bytes.fill(0);
                let blocks = bytes.par_chunks_mut(kind.bytes).zip(codes.par_chunks_exact(stride)).enumerate();
                blocks.for_each(|(at, (bytes, codes))| {
                    let at = first + at;
                    let mut block = Block::EMPTY;
                    unpack(codes, bits, &mut block.codes);
                    block.scale = scale.get(at).copied().unwrap_or_default();
                    block.bias = bias.get(at).copied().unwrap_or_default();
                    block.integers[..of_scales].copy_from_slice(&scales[at * of_scales..][..of_scales]);
                    block.integers[Block::BIASES..][..of_biases]
                        .copy_from_slice(&biases[at * of_biases..][..of_biases]);
                    write(&mut block, bytes);
                });
                out(bytes)?;
                forget_bytes(codes);
            }
            Ok(())
        })?
    }
}

/// The codes of a stream, a byte for each: eight of them are as many bytes as a code has bits.
fn unpack(stream: &[u8], bits: usize, codes: &mut [u8]) {
    for (stream, codes) in stream.chunks(bits).zip(codes.chunks_mut(8)) {
        let word = stream.iter().rev().fold(0_u64, |word, &byte| word << 8 | u64::from(byte));
        for (at, code) in codes.iter_mut().enumerate() {
            *code = (word >> (at * bits) & ((1 << bits) - 1)) as u8;
        }
    }
}

fn is_half(number: f32) -> bool {
    f16::from_f32(number).to_f32().to_bits() == number.to_bits()
}

type Found = Result<Option<(&'static str, Blocks)>>;

/// The numbers of groups of 32, of those of such groups or larger ones.
fn per_32(numbers: &Array, group: usize) -> Result<Vec<f32>> {
    let numbers = floats(&numbers.as_dtype(Dtype::Float32)?)?;
    Ok(numbers.into_iter().flat_map(|number| std::iter::repeat_n(number, group / 32)).collect())
}

fn affine(array: &AffineArray) -> Found {
    let format = *array.format();
    let (Some(scales), Some(biases)) = (array.scales(), array.biases()) else { return Ok(None) };
    let (scale, bias) = (per_32(&scales.dense()?, format.group)?, per_32(biases, format.group)?);
    let middle = -((1_u32 << (format.bits - 1)) as f32);
    // A zero may have either sign.
    let centered = scale.iter().zip(&bias).all(|(scale, bias)| (bias - middle * scale).abs() <= 0.0);
    let name = match (format.bits, centered) {
        (4, true) => "Q4_0",
        (4, false) => "Q4_1",
        (5, true) => "Q5_0",
        (5, false) => "Q5_1",
        (8, true) => "Q8_0",
        _ => return Ok(None),
    };
    let fits = scale.iter().all(|&scale| is_half(scale)) && (centered || bias.iter().all(|&bias| is_half(bias)));
    Ok(fits.then(|| (name, Blocks { scale, bias, ..Blocks::new(array, format.bits) })))
}

fn symmetric(array: &SymmetricArray) -> Found {
    let format = *array.format();
    let Some(scales) = array.scales() else { return Ok(None) };
    let name = match format.bits {
        4 => "Q4_0",
        5 => "Q5_0",
        8 => "Q8_0",
        _ => return Ok(None),
    };
    let scale = per_32(&scales.dense()?, format.group)?;
    let fits = scale.iter().all(|&scale| is_half(scale));
    Ok(fits.then(|| (name, Blocks { scale, ..Blocks::new(array, format.bits) })))
}

fn k_quant(array: &KQuantArray) -> Found {
    let format = *array.format();
    let Some(numbers) = array.scales().and_then(Value::downcast::<Int8Array>) else { return Ok(None) };
    let Some(largest) = numbers.scales() else { return Ok(None) };
    // An integer's own unit is 127, as in `arrays`.
    let mut scale: Vec<f32> = floats(&largest.dense()?)?.into_iter().map(|scale| scale / 127.0).collect();
    let mut scales = with_bytes(numbers.codes(), <[u8]>::to_vec)?;
    let (mut bias, mut biases) = (Vec::new(), Vec::new());
    if !format.is_centered() {
        bias = scale.split_off(scale.len() / 2).into_iter().map(|bias| -bias).collect();
        biases = scales.split_off(scales.len() / 2);
    }
    let (name, of_scales, of_biases) = match format.bits {
        2 => ("Q2_K", 0..=15, 0..=15),
        3 => ("Q3_K", -32..=31, 0..=0),
        4 => ("Q4_K", 0..=63, 0..=63),
        5 => ("Q5_K", 0..=63, 0..=63),
        _ => ("Q6_K", -128..=127, 0..=0),
    };
    let fits = scales.iter().all(|scale| of_scales.contains(&scale.cast_signed()))
        && biases.iter().all(|bias| of_biases.contains(&bias.cast_signed()))
        && scale.iter().chain(&bias).all(|&number| is_half(number));
    Ok(fits.then(|| (name, Blocks { scale, bias, scales, biases, ..Blocks::new(array, format.bits) })))
}

fn table(array: &CodebookArray) -> Found {
    let Some(scales) = array.scales() else { return Ok(None) };
    let (values, scale) = (array.format().values(), floats(&scales.dense()?)?);
    let halves = scale.iter().all(|&scale| is_half(scale));
    let block = tacit_arrays::format::Format::block(array.format());
    if values == TERNARY && block == 256 && halves {
        return Ok(Some(("TQ2_0", Blocks { scale, ..Blocks::new(array, 2) })));
    }
    if values != IQ4 || block != 32 {
        return Ok(None);
    }
    if halves {
        return Ok(Some(("IQ4_NL", Blocks { scale, ..Blocks::new(array, 4) })));
    }
    let apart: Option<Vec<(f32, [i8; 8])>> = scale.chunks(8).map(apart).collect();
    Ok(apart.map(|apart| {
        let scales = apart.iter().flat_map(|(_, scales)| scales.map(i8::cast_unsigned)).collect();
        let scale = apart.into_iter().map(|(scale, _)| scale).collect();
        ("IQ4_XS", Blocks { scale, scales, ..Blocks::new(array, 4) })
    }))
}

/// A half and the integers of 6 bits whose products some scales are.
///
/// llama.cpp gives the largest one -32, which is tried first, so that its own blocks are the same bytes again.
fn apart(scales: &[f32]) -> Option<(f32, [i8; 8])> {
    let largest =
        scales.iter().copied().fold(0.0_f32, |most, scale| if scale.abs() > most.abs() { scale } else { most });
    (-32..=31).filter(|&integer| integer != 0).find_map(|integer: i8| {
        let unit = f16::from_f32(largest / f32::from(integer)).to_f32();
        let mut integers = [0; 8];
        for (integer, &scale) in integers.iter_mut().zip(scales) {
            let rounded = if unit == 0.0 { 0.0 } else { (scale / unit).round() };
            let fits = (-32.0..=31.0).contains(&rounded) && (rounded * unit - scale).abs() <= 0.0;
            *integer = if fits { rounded as i8 } else { return None };
        }
        (scales.len() == 8).then_some((unit, integers))
    })
}

fn mxfp4(array: &Mxfp4Array) -> Found {
    let Some(scales) = array.scales() else { return Ok(None) };
    let scales = with_bytes(&scales.dense()?, <[u8]>::to_vec)?;
    Ok(Some(("MXFP4", Blocks { scales, ..Blocks::new(array, 4) })))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tacit_bridge::Primitive;

    use super::*;
    use crate::Gguf;

    #[test]
    fn a_tensor_in_pieces_is_that_in_one() -> Result<()> {
        for (name, bits) in [("Q4_0", 4), ("Q5_0", 5), ("Q8_0", 8), ("Q6_K", 6), ("MXFP4", 4)] {
            let kind = GgufType::named(name).expect("a type");
            let codes: Vec<u8> = (0..3 * kind.elements * bits / 8).map(|at| (at * 37 % 251) as u8).collect();
            let codes = Some(Array::from_slice(&codes, &[codes.len() as i32]));
            let blocks = Blocks { codes, bits, scale: vec![1.0, 2.0, 4.0], ..Blocks::default() };
            let written = |piece: usize| -> Result<Vec<u8>> {
                let mut file = Vec::new();
                blocks.write_in(piece, kind, &mut |bytes| {
                    file.extend_from_slice(bytes);
                    Ok(())
                })?;
                Ok(file)
            };
            assert!(written(1)? == written(PIECE)?, "{name}");
        }
        Ok(())
    }

    /// The arrays of a value that were not read yet.
    fn unread(value: &Value) -> Result<usize> {
        match value {
            Value::Dense(array) => Ok(usize::from(Primitive::making(array)?.is_some())),
            Value::Implicit(array) => array.children().iter().map(|(_, child)| unread(child)).sum(),
        }
    }

    #[test]
    fn what_is_read_for_the_type_of_a_tensor_is_not_kept() -> Result<()> {
        let file = Gguf::open(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/gguf/types.gguf"))?;
        let mut found = BTreeSet::new();
        for name in file.names().filter(|&name| name != "unread") {
            let value = file.get(name)?;
            let before = unread(&value)?;
            let Some(Encoded { kind, source: Source::Blocks(_), .. }) = Encoded::exact(&value)? else { continue };
            assert!(before >= 2 && unread(&value)? == before, "{name}: {before} were to be read");
            // What is read apart is the same, each array in its place.
            let apart = read_apart(&value)?;
            let (Some((_, own)), Some((_, apart))) = (Blocks::from_value(&value)?, Blocks::from_value(&apart)?) else {
                panic!("{name}: no blocks")
            };
            let bits = |of: &[f32]| of.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
            assert_eq!([bits(&own.scale), bits(&own.bias)], [bits(&apart.scale), bits(&apart.bias)], "{name}");
            assert_eq!((&own.scales, &own.biases), (&apart.scales, &apart.biases), "{name}");
            let codes = |blocks: &Blocks| with_bytes(blocks.codes.as_ref().expect("codes"), <[u8]>::to_vec);
            assert_eq!(codes(&own)?, codes(&apart)?, "{name}");
            assert_eq!(unread(&value)?, 0, "{name}");
            found.insert(kind.name());
        }
        assert!(
            ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "IQ4_NL", "MXFP4"].iter().all(|kind| found.contains(kind)),
            "{found:?}"
        );
        Ok(())
    }
}
