//! The book's chapter on formats to the bit: the same 64 numbers in each, with the bytes that hold them.

// ANCHOR: use
use mlx_rs::{Array, ops};
use tacit::arrays::{Int8Array, Mxfp4Array, TernaryArray};
use tacit::format::{Format, Granularity, Mxfp4, PackedArray};
use tacit::prelude::*;
use tacit::tree::{self, Open};

// ANCHOR_END: use

/// A title, and the function that makes what the chapter shows.
type Section = (&'static str, fn() -> Result<String>);

/// In the chapter's order.
pub(crate) const SECTIONS: [Section; 6] =
    [("nf4", nf4), ("double", double), ("affine", affine), ("mxfp4", mxfp4), ("int8", int8), ("ternary", ternary)];

// ANCHOR: numbers
/// A row of 64 numbers from -1 on, in steps of 1/32.
fn numbers() -> Result<Array> {
    Ok(ops::arange::<_, f32>(-32, 32, None)?.divide(Array::from_f32(32.0))?.reshape(&[1, 64])?)
}

/// The first bytes of the codes in memory.
fn bytes<F: Format>(packed: &PackedArray<F>) -> Result<Vec<u8>> {
    let bytes = packed.codes().view::<u8>()?.flatten(None, None)?;
    Ok(bytes.as_slice::<u8>()[..8].to_vec())
}

/// What the first elements are, decoded by hand and by Tacit.
fn shown(bytes: &[u8], by_hand: &[f32], packed: impl Into<Value>) -> Result<String> {
    let _allow = Policy::Allow.scope();
    let dense = packed.into().dense()?;
    assert_eq!(by_hand, &dense.as_slice::<f32>()[..by_hand.len()]);
    let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let values: Vec<String> = by_hand.iter().map(|value| format!("{value:.4}")).collect();
    Ok(format!("bytes   {} ..\nvalues  {} ..", bytes.join(" "), values.join(" ")))
}
// ANCHOR_END: numbers

// ANCHOR: nf4
/// The values of NF4, from bitsandbytes.
#[rustfmt::skip]
const NF4: [f32; 16] = [
    -1.0, -0.696_192_8, -0.525_073_05, -0.394_917_5, -0.284_441_38, -0.184_773_43, -0.091_050_036, 0.0,
    0.079_580_3, 0.160_930_2, 0.246_112_3, 0.337_915_24, 0.440_709_83, 0.562_617, 0.722_956_84, 1.0,
];

/// Two codes a byte, the first one in the upper half.
fn nf4() -> Result<String> {
    let packed = Nf4Array::quantize(&numbers()?, 64)?;
    let scale = packed.scales().expect("one a block").dense()?.as_slice::<f32>()[0];
    let bytes = bytes(&packed)?;
    let codes = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let values: Vec<f32> = codes.map(|code| NF4[usize::from(code)] * scale).take(8).collect();
    shown(&bytes, &values, packed)
}
// ANCHOR_END: nf4

// ANCHOR: double
/// The arrays behind eight blocks whose scales are quantized again.
fn double() -> Result<String> {
    let eight = ops::tile(&numbers()?, &[8, 1])?;
    let packed = Nf4 { block: 64, double: true }.quantize(&eight)?;
    let (leaves, def) = tree::flatten(&packed, Open::Fully)?;
    let lines = def.paths().iter().zip(leaves).map(|(path, leaf)| format!("{path}  {leaf}")).collect::<Vec<_>>();
    Ok(lines.join("\n"))
}
// ANCHOR_END: double

// ANCHOR: affine
/// A stream of bits in words of 32, the first code in the lowest ones, so that three bytes hold eight codes of 3 bits.
fn affine() -> Result<String> {
    let packed = AffineArray::quantize(&numbers()?, Affine { bits: 3, group: 64 })?;
    let scale = packed.scales().expect("one a group").dense()?.as_slice::<f32>()[0];
    let bias = packed.biases().expect("one a group").as_slice::<f32>()[0];
    let bytes = bytes(&packed)?;
    let stream = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]);
    let values: Vec<f32> = (0..8).map(|i| ((stream >> (3 * i)) & 7) as f32 * scale + bias).collect();
    shown(&bytes, &values, packed)
}
// ANCHOR_END: affine

// ANCHOR: mxfp4
/// A sign, two bits of exponent and one of mantissa; the scale is a power of two, stored as its exponent.
fn mxfp4() -> Result<String> {
    const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let packed = Mxfp4Array::quantize(&numbers()?, Mxfp4::default())?;
    let exponent = packed.scales().expect("one for 32").dense()?.as_slice::<u8>()[0];
    let scale = 2_f32.powi(i32::from(exponent) - 127);
    let bytes = bytes(&packed)?;
    let codes = bytes.iter().flat_map(|byte| [byte & 15, byte >> 4]);
    let value = |code: u8| if code < 8 { 1.0 } else { -1.0 } * MAGNITUDES[usize::from(code & 7)] * scale;
    let values: Vec<f32> = codes.map(value).take(8).collect();
    shown(&bytes, &values, packed)
}
// ANCHOR_END: mxfp4

// ANCHOR: int8
/// A byte an element, in 127ths of the largest magnitude of the row.
fn int8() -> Result<String> {
    let packed = Int8Array::quantize(&numbers()?, Granularity::Row)?;
    let scale = packed.scales().expect("one a row").dense()?.as_slice::<f32>()[0];
    let bytes = bytes(&packed)?;
    let values: Vec<f32> = bytes.iter().map(|&byte| f32::from(byte.cast_signed()) * (scale / 127.0)).collect();
    shown(&bytes, &values, packed)
}
// ANCHOR_END: int8

// ANCHOR: ternary
/// Two bits an element.
fn ternary() -> Result<String> {
    let packed = TernaryArray::quantize(&numbers()?, Granularity::Row)?;
    let scale = packed.scales().expect("one a row").dense()?.as_slice::<f32>()[0];
    let bytes = bytes(&packed)?;
    let codes = (0..8).map(|i| bytes[i / 4] >> (2 * (i % 4)) & 3);
    let values: Vec<f32> = codes.map(|code| (f32::from(code) - 1.0) * scale).collect();
    shown(&bytes, &values, packed)
}
// ANCHOR_END: ternary

pub(crate) fn main() -> Result<()> {
    for (title, section) in SECTIONS {
        println!("== {title}\n{}\n", section()?);
    }
    Ok(())
}
