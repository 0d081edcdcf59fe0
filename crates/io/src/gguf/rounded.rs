//! Floats quantized to types of GGUF, as `quantize_row_q4_0_ref` and its like in `ggml-quants.c` do it.

use half::f16;
use mlx_rs::{Array, Dtype};
use rayon::prelude::*;
use tacit_bridge::with_bytes;
use tacit_core::{Error, Result};

use super::blocks::{Block, layout};
use super::kind::GgufType;

/// The types that floats are quantized to, by llama.cpp's names.
pub(super) const ROUNDED: [&str; 8] = ["f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"];

/// The bytes of an array's elements, whose rows are whole blocks.
pub(super) fn rounded(array: &Array, kind: GgufType) -> Result<Vec<u8>> {
    if let Some(dtype) = kind.dtype {
        let narrow = array.as_dtype(dtype)?;
        // What was infinite or no number before is so in each type of floats.
        let lost = || narrow.is_finite()?.logical_not()?.logical_and(array.is_finite()?);
        if array.dtype() != dtype && with_bytes(&lost()?, |lost| lost.contains(&1))? {
            return Err(beyond(kind));
        }
        return Ok(with_bytes(&narrow, <[u8]>::to_vec)?);
    }
    let write = layout(kind.name()).and_then(|layout| layout.write);
    let (Some(write), Some(round)) = (write, rounding(kind.name())) else {
        return Err(Error::invalid(format!("there is no quantizing to {kind}"), format!("take one of {}", names())));
    };
    let bytes = with_bytes(&array.as_dtype(Dtype::Float32)?, |floats| {
        let floats = floats.as_chunks::<4>().0;
        let mut bytes = vec![0; floats.len() / kind.elements * kind.bytes];
        let blocks = bytes.par_chunks_mut(kind.bytes).zip(floats.par_chunks(kind.elements));
        let is_held = blocks.all(|(bytes, floats)| {
            let (mut x, mut block) = ([0.0; 32], Block::EMPTY);
            x.iter_mut().zip(floats).for_each(|(x, float)| *x = f32::from_le_bytes(*float));
            round(&x, &mut block);
            write(&mut block, bytes);
            let is_half = |scale: f32| f16::from_f32(scale).is_finite();
            x.iter().all(|x| x.is_finite()) && is_half(block.scale) && is_half(block.bias)
        });
        is_held.then_some(bytes)
    })?;
    bytes.ok_or_else(|| beyond(kind))
}

/// What llama-quantize says of such a tensor is that its data are not valid, and it writes nothing either.
fn beyond(kind: GgufType) -> Error {
    let what = if kind.dtype.is_some() { "numbers" } else { "numbers, or scales of them," };
    // No type has larger numbers than these two.
    let help = match kind.dtype {
        Some(Dtype::Float32 | Dtype::Bfloat16) => "look for weights that are too large or are not numbers",
        _ => "write it with `--format bf16` or `f32`, or look for weights that are not numbers",
    };
    Error::invalid(format!("it has {what} that {kind} does not hold"), help)
}

pub(super) fn names() -> String {
    let (last, first) = ROUNDED.split_last().unwrap_or((&"", &[]));
    format!("{} and {last}", first.join(", "))
}

type Rounding = fn(&[f32; 32], &mut Block);

fn rounding(name: &str) -> Option<Rounding> {
    Some(match name {
        "Q4_0" => |x, block| centered(x, 8.0, block),
        "Q5_0" => |x, block| centered(x, 16.0, block),
        "Q4_1" => |x, block| between(x, 15.0, block),
        "Q5_1" => |x, block| between(x, 31.0, block),
        "Q8_0" => |x, block| {
            let most = x.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
            block.scale = most / 127.0;
            let inverse = inverse(block.scale);
            codes(x, block, |x| (x * inverse).round() + 128.0);
        },
        _ => return None,
    })
}

fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { scale.recip() }
}

fn codes(x: &[f32; 32], block: &mut Block, code: impl Fn(f32) -> f32) {
    block.codes.iter_mut().zip(x).for_each(|(place, &x)| *place = code(x) as u8);
}

/// The largest magnitude has code 0, and zero the middle one.
fn centered(x: &[f32; 32], middle: f32, block: &mut Block) {
    let largest = x.iter().fold(0.0_f32, |most, &x| if x.abs() > most.abs() { x } else { most });
    block.scale = -largest / middle;
    let inverse = inverse(block.scale);
    codes(x, block, |x| (x * inverse + middle + 0.5).min(2.0 * middle - 1.0));
}

/// The least element has code 0, and the greatest the last one.
fn between(x: &[f32; 32], last: f32, block: &mut Block) {
    let (least, most) = x.iter().fold((f32::MAX, f32::MIN), |(least, most), &x| (least.min(x), most.max(x)));
    (block.scale, block.bias) = ((most - least) / last, least);
    let inverse = inverse(block.scale);
    codes(x, block, |x| ((x - least) * inverse + 0.5).min(last));
}
