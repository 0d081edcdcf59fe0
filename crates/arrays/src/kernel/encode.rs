//! Floats to codes and scales in plain ops.

use std::f64::consts::SQRT_2;

use mlx_rs::error::Exception;
use mlx_rs::ops::{self, indexing::TryIndexOp};
use mlx_rs::{Array, Dtype, stop_gradient};
use tacit_kernels::{Order, ScaleRule, dynamic8 as dynamic, fp4, nf4};

use super::format::{E4M3, E8M0, digits, looked_up};
use super::{Coding, Encoding, Format};

type Ops<T> = Result<T, Exception>;

/// The codes of `x` as bytes, one an element, in whole blocks; and what each block stores.
pub(super) fn encoded(encoding: Encoding, x: &Array, block: usize, global: Option<&Array>) -> Ops<Vec<Array>> {
    let size = x.size();
    let x = blocks(x, block)?;
    let absmax = || x.abs()?.max_axis(-1, true);
    let made = match encoding {
        Encoding::Nf4 => nearest(&x, &nf4::THRESHOLDS, &std::array::from_fn(|rank| rank as u8))?,
        Encoding::Fp4 => {
            let (thresholds, by_rank) = midpoints(&fp4::CODEBOOK);
            nearest(&x, &thresholds, &by_rank)?
        }
        Encoding::Dynamic8 => return Err(Exception::custom("it has a function of its own")),
        Encoding::Affine(bits) => affine(&x, bits)?,
        Encoding::Int8 => {
            let absmax = absmax()?;
            let zero = absmax.eq(number(0.0))?;
            let factor = ops::select(&zero, number(0.0), number(127.0).divide(&absmax)?)?;
            vec![stop_gradient(x.multiply(factor)?.round(None)?)?.as_dtype(Dtype::Int8)?, absmax]
        }
        Encoding::Mxfp4(rule) => {
            let (scale, byte) = power_of_two(&absmax()?, rule, 6.0)?;
            vec![e2m1(&x.divide(scale)?)?, byte]
        }
        Encoding::Mxfp8(rule) => {
            let (scale, byte) = power_of_two(&absmax()?, rule, 448.0)?;
            vec![to_e4m3(&x.divide(scale)?)?, byte]
        }
        Encoding::Nvfp4 => {
            let enc = global.map_or_else(|| Ok(number(1.0)), |most| number(448.0 * 6.0).divide(most))?;
            let byte = to_e4m3(&absmax()?.divide(number(6.0))?.multiply(&enc)?)?;
            let rounded = looked_up(&*E4M3, &byte)?;
            let units = x.divide(&rounded)?.multiply(enc)?;
            let zero = ops::broadcast_to(rounded.eq(number(0.0))?, x.shape())?;
            vec![e2m1(&ops::select(zero, number(0.0), units)?)?, byte]
        }
        Encoding::Ternary => {
            let mean = absmean(&x, block, size)?;
            let units = stop_gradient(x.divide(&mean)?)?;
            let above = units.gt(number(0.5))?.as_dtype(Dtype::Uint8)?;
            let below = units.lt(number(-0.5))?.as_dtype(Dtype::Uint8)?;
            vec![above.add(Array::from_slice(&[1u8], &[]))?.subtract(below)?, mean]
        }
        Encoding::Binary => vec![x.ge(number(0.0))?.as_dtype(Dtype::Uint8)?, absmean(&x, block, size)?],
    };
    Ok(made)
}

/// Codes of one byte each in the bytes or words of the format, of which `size` count.
pub(super) fn packed(codes: &Array, format: Format, size: usize) -> Ops<Array> {
    let codes = codes.reshape(&[-1])?.try_index(..size as i32)?;
    let bits = format.bits();
    let (order, pad) = match format.coding {
        Coding::Table { order, .. } if format.label == "nf4" => (order, 7u8),
        Coding::Table { order, .. } => (order, u8::from(format.label == "ternary")),
        Coding::Signed => return Ok(codes),
        Coding::Unsigned { .. } | Coding::E4m3 => (Order::LowFirst, 0),
    };
    let whole = (size * bits).div_ceil(8) * 8 / bits;
    let codes = ops::pad(&codes, &[(0, (whole - size) as i32)][..], Array::from_slice(&[pad], &[]), None)?;
    let (mut shifts, mut places) =
        ((0..bits as u32).collect::<Vec<_>>(), (0..8).map(|bit| 1u8 << bit).collect::<Vec<_>>());
    if order == Order::HighFirst {
        shifts.reverse();
        places.reverse();
    }
    let ones = digits(&codes, &shifts, 2)?.reshape(&[-1, 8])?;
    let bytes = ones.multiply(Array::from_slice(&places, &[8]))?.sum_axis(-1, None)?.as_dtype(Dtype::Uint8)?;
    bytes.view_dtype(format.storage)
}

/// Codes, scales and the mean that was taken off first.
pub(super) fn dynamic8(x: &Array, block: usize) -> Ops<Vec<Array>> {
    let mean = x.mean(None)?;
    let (size, centered) = (x.size() as i32, blocks(&x.subtract(&mean)?, block)?);
    let absmax = centered.abs()?.max_axis(-1, true)?;
    let map = dynamic::map();
    let midpoints: Vec<f32> = map.windows(2).map(|pair| f32::midpoint(pair[0], pair[1])).collect();
    let codes = rank(&unit(&centered, &absmax)?, &midpoints)?.reshape(&[-1])?.try_index(..size)?;
    Ok(vec![codes, absmax.reshape(&[-1])?, mean])
}

fn number(value: f32) -> Array {
    Array::from_f32(value)
}

/// Whole blocks, the last one filled up with zeros: `f32[blocks, block]`.
fn blocks(x: &Array, block: usize) -> Ops<Array> {
    let size = x.size();
    let missing = size.div_ceil(block) * block - size;
    ops::pad(&x.reshape(&[-1])?, &[(0, missing as i32)][..], None, None)?.reshape(&[-1, block as i32])
}

/// `x` scaled into [-1, 1].
fn unit(x: &Array, absmax: &Array) -> Ops<Array> {
    let least = ops::maximum(absmax, number(1e-38))?;
    ops::clip(x.multiply(&least.reciprocal()?)?, (-1.0, 1.0))
}

/// How many of the ascending thresholds each element is above.
fn rank(x: &Array, thresholds: &[f32]) -> Ops<Array> {
    let thresholds = Array::from_slice(thresholds, &[thresholds.len() as i32]);
    // Codes have no gradient, and MLX has none for their integer ops.
    let above = stop_gradient(x)?.expand_dims(-1)?.gt(thresholds)?;
    above.as_dtype(Dtype::Int32)?.sum_axis(-1, None)?.as_dtype(Dtype::Uint8)
}

/// What lies halfway between neighboring values, and the codes from the least value to the greatest.
fn midpoints(codebook: &[f32; 16]) -> ([f32; 15], [u8; 16]) {
    let mut by_rank: [u8; 16] = std::array::from_fn(|code| code as u8);
    // The code that bitsandbytes does not use stands before the one that it does.
    by_rank.sort_by(|&a, &b| codebook[usize::from(a)].total_cmp(&codebook[usize::from(b)]));
    let value = |rank: usize| codebook[usize::from(by_rank[rank])];
    (std::array::from_fn(|rank| f32::midpoint(value(rank), value(rank + 1))), by_rank)
}

fn nearest(x: &Array, thresholds: &[f32; 15], by_rank: &[u8; 16]) -> Ops<Vec<Array>> {
    let absmax = x.abs()?.max_axis(-1, true)?;
    let ranks = rank(&unit(x, &absmax)?, thresholds)?;
    Ok(vec![Array::from_slice(by_rank, &[16]).take_axis(ranks, 0)?, absmax])
}

fn affine(x: &Array, bits: u32) -> Ops<Vec<Array>> {
    let top = number(((1u32 << bits) - 1) as f32);
    let (low, high) = (x.min_axis(-1, true)?, x.max_axis(-1, true)?);
    let step = ops::maximum(high.subtract(&low)?.divide(&top)?, number(1e-7))?;
    let negative = low.abs()?.gt(high.abs()?)?;
    let edge = ops::select(&negative, &low, &high)?;
    let scale = ops::select(&negative, &step, step.negative()?)?;
    let zero = edge.divide(&scale)?.round(None)?;
    let none = zero.eq(number(0.0))?;
    let scale = ops::select(&none, &scale, edge.divide(ops::select(&none, number(1.0), &zero)?)?)?;
    let bias = ops::select(&none, number(0.0), &edge)?;
    let codes = x.subtract(&bias)?.divide(&scale)?.round(None)?;
    let codes = stop_gradient(ops::clip(codes, (number(0.0), top))?)?.as_dtype(Dtype::Uint8)?;
    Ok(vec![codes, scale, bias])
}

/// The power of two of a group, and its byte.
fn power_of_two(most: &Array, rule: ScaleRule, top: f32) -> Ops<(Array, Array)> {
    // The exponent is the least at which `most` is not above this number times the power of two.
    let bound = match rule {
        ScaleRule::Ceil => top,
        ScaleRule::Round => {
            let exact = f64::from(top) * SQRT_2;
            let near = exact as f32;
            if f64::from(near) > exact { near.next_down() } else { near }
        }
        ScaleRule::Floor => f32::from_bits((top.to_bits() >> 23 << 23) + (1 << 23)).next_down(),
    };
    let guess = ops::ceil(most.divide(number(bound))?.log2()?)?.add(number(127.0))?;
    let fits = |byte: &Array| looked_up(&*E8M0, &byte.as_dtype(Dtype::Uint8)?)?.multiply(number(bound))?.ge(most);
    // The logarithm is rounded, so the guess may be one off.
    let guess = ops::clip(guess, (1.0, 253.0))?;
    let byte = ops::select(fits(&guess)?, &guess, guess.add(number(1.0))?)?;
    let lower = guess.subtract(number(1.0))?;
    let byte = ops::select(fits(&lower)?, lower, byte)?;
    let byte = ops::select(most.eq(number(0.0))?, number(127.0), byte)?;
    let byte = stop_gradient(byte)?.as_dtype(Dtype::Uint8)?;
    Ok((looked_up(&*E8M0, &byte)?, byte))
}

fn e2m1(x: &Array) -> Ops<Array> {
    let most = stop_gradient(x.abs()?)?.expand_dims(-1)?;
    // Halfway, the even code is the lower one above these numbers, and the upper one from those on.
    let above = most.gt(Array::from_slice(&[0.25f32, 1.25, 2.5, 5.0], &[4]))?.as_dtype(Dtype::Uint8)?;
    let from = most.ge(Array::from_slice(&[0.75f32, 1.75, 3.5], &[3]))?.as_dtype(Dtype::Uint8)?;
    let code = above.sum_axis(-1, None)?.add(from.sum_axis(-1, None)?)?.as_dtype(Dtype::Uint8)?;
    signed(x, &code, 8)
}

fn to_e4m3(x: &Array) -> Ops<Array> {
    let most = ops::minimum(stop_gradient(x.abs()?)?, number(448.0))?;
    let powers: Vec<f32> = (-5..=8).map(|exponent| 2f32.powi(exponent)).collect();
    let exponent = rank(&most, &powers.iter().map(|power| power.next_down()).collect::<Vec<_>>())?;
    let steps: Vec<f32> = (-9..=5).map(|exponent| 2f32.powi(exponent)).collect();
    let mantissa = most.divide(looked_up(&steps, &exponent)?)?.round(None)?.as_dtype(Dtype::Uint8)?;
    signed(x, &exponent.multiply(Array::from_slice(&[8u8], &[]))?.add(mantissa)?, 128)
}

/// The sign bit where the code is not zero.
fn signed(x: &Array, code: &Array, sign: u8) -> Ops<Array> {
    let negative = stop_gradient(x)?.lt(number(0.0))?.logical_and(code.gt(Array::from_slice(&[0u8], &[]))?)?;
    code.add(negative.as_dtype(Dtype::Uint8)?.multiply(Array::from_slice(&[sign], &[]))?)
}

/// The mean magnitude of each block, of the last one without what fills it up.
fn absmean(x: &Array, block: usize, size: usize) -> Ops<Array> {
    let blocks = size.div_ceil(block);
    let counts: Vec<f32> = (0..blocks).map(|at| (size - at * block).min(block) as f32).collect();
    x.abs()?.sum_axis(-1, true)?.divide(Array::from_slice(&counts, &[blocks as i32, 1]))
}
