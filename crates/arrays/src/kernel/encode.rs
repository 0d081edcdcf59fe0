//! Floats to codes and scales in plain ops.

use std::f64::consts::SQRT_2;

use mlx_rs::error::Exception;
use mlx_rs::ops::{self, indexing::TryIndexOp};
use mlx_rs::{Array, Dtype, stop_gradient};
use tacit_kernels::{Order, ScaleRule, nearest::Table, nf4};

use super::layout::{E8M0, looked_up, regrouped};
use super::scheme::E4M3;
use super::{Coding, Encoding, Scaling, Scheme};

type Ops<T> = Result<T, Exception>;

/// Codes, scales and biases, as far as the format has them, as the kernels make them.
pub(super) fn quantized(scheme: &Scheme, x: &Array, block: usize, global: Option<&Array>) -> Ops<Vec<Array>> {
    if let Some(dtype) = scheme.half() {
        return Ok(vec![stop_gradient(x)?.as_dtype(dtype)?.view_dtype(scheme.storage)?]);
    }
    let rows = blocks(x, block)?;
    let mut results = stored(scheme, &rows, block, x.size(), global)?;
    results.insert(0, coded(scheme, &rows, &results, global)?);
    let (codes, scales) = scheme.children(x.shape(), block);
    results[0] = packed(&results[0], scheme, x.size())?.reshape(&codes)?;
    for result in &mut results[1..] {
        *result = result.reshape(&scales)?;
    }
    Ok(results)
}

/// What each of the blocks stores, of whose elements `size` count.
fn stored(scheme: &Scheme, x: &Array, block: usize, size: usize, global: Option<&Array>) -> Ops<Vec<Array>> {
    let absmax = || x.abs()?.max_axis(-1, true);
    Ok(match scheme.encoding {
        Encoding::Nearest => vec![absmax()?.divide(number(nearest(scheme)?.ends()[1]))?],
        // The scale of zeros is not negative.
        Encoding::Reaching => {
            let ends = [x.min_axis(-1, true)?, x.max_axis(-1, true)?];
            vec![reach(&ends, nearest(scheme)?.ends(), 0.0)?.add(number(0.0))?]
        }
        Encoding::Nf4 | Encoding::Fp4 | Encoding::Int8 => vec![absmax()?],
        Encoding::Affine => affine(x, top_code(scheme))?,
        Encoding::Symmetric => vec![symmetric(&[x.min_axis(-1, true)?, x.max_axis(-1, true)?], scheme)?],
        Encoding::Mxfp4(rule) => vec![power_of_two(&absmax()?, rule, 6.0)?],
        Encoding::Mxfp8(rule) => vec![power_of_two(&absmax()?, rule, 448.0)?],
        Encoding::Nvfp4 { .. } => {
            vec![to_e4m3(&absmax()?.divide(number(6.0))?.multiply(nvfp4_factor(global)?)?)?]
        }
        Encoding::Ternary | Encoding::Binary => vec![absmean(x, block, size)?],
        Encoding::Rounded => return Err(Exception::custom(UNSCALED)),
    })
}

/// The codes of blocks as bytes, one an element, by what they store: `stored` as [`stored`] gives it.
pub(crate) fn coded(scheme: &Scheme, x: &Array, stored: &[Array], global: Option<&Array>) -> Ops<Array> {
    let [scale, more @ ..] = stored else { return Err(Exception::custom("a block stores a scale")) };
    Ok(match scheme.encoding {
        Encoding::Nearest | Encoding::Reaching => {
            let table = nearest(scheme)?;
            by_rank(&table, rank(&x.multiply(&reciprocal(scale)?)?, table.thresholds())?)?
        }
        Encoding::Nf4 => rank(&unit(x, scale)?, &nf4::THRESHOLDS)?,
        Encoding::Fp4 => {
            let table = nearest(scheme)?;
            by_rank(&table, rank(&unit(x, scale)?, table.thresholds())?)?
        }
        Encoding::Affine => {
            let [bias] = more else { return Err(Exception::custom("a block stores a bias")) };
            let codes = x.subtract(bias)?.divide(scale)?.round(None)?;
            stop_gradient(ops::clip(codes, (number(0.0), top_code(scheme)))?)?.as_dtype(Dtype::Uint8)?
        }
        Encoding::Symmetric => {
            let middle = scheme.middle();
            let units = ops::clip(x.multiply(&reciprocal(scale)?)?, (number(-middle), number(middle - 1.0)))?;
            stop_gradient(units.round(None)?.add(number(middle))?)?.as_dtype(Dtype::Uint8)?
        }
        Encoding::Int8 => {
            let zero = scale.eq(number(0.0))?;
            // Of tiny numbers it would be infinite, and that times 0 no number.
            let factor = ops::minimum(number(127.0).divide(scale)?, number(f32::MAX))?;
            let factor = ops::select(&zero, number(0.0), factor)?;
            let codes = ops::clip(x.multiply(factor)?.round(None)?, (-127.0, 127.0))?;
            stop_gradient(codes)?.as_dtype(Dtype::Int8)?
        }
        Encoding::Mxfp4(_) => e2m1(&x.divide(looked_up(&*E8M0, scale)?)?)?,
        Encoding::Mxfp8(_) => to_e4m3(&x.divide(looked_up(&*E8M0, scale)?)?)?,
        Encoding::Nvfp4 { .. } => {
            let rounded = looked_up(&*E4M3, scale)?;
            let units = x.divide(&rounded)?.multiply(nvfp4_factor(global)?)?;
            let zero = ops::broadcast_to(rounded.eq(number(0.0))?, x.shape())?;
            e2m1(&ops::select(zero, number(0.0), units)?)?
        }
        Encoding::Ternary => {
            let units = stop_gradient(x.divide(scale)?)?;
            let above = units.gt(number(0.5))?.as_dtype(Dtype::Uint8)?;
            let below = units.lt(number(-0.5))?.as_dtype(Dtype::Uint8)?;
            above.add(Array::from_slice(&[1u8], &[]))?.subtract(below)?
        }
        Encoding::Binary => {
            let negative = ops::broadcast_to(is_negative(scale)?, x.shape())?;
            ops::select(negative, x.negative()?, x)?.ge(number(0.0))?.as_dtype(Dtype::Uint8)?
        }
        Encoding::Rounded => return Err(Exception::custom(UNSCALED)),
    })
}

const UNSCALED: &str = "half floats have no blocks";

/// What NVFP4's scales are multiplied by before they are rounded; of a global scale that is zero, zero.
fn nvfp4_factor(global: Option<&Array>) -> Ops<Array> {
    let Some(global) = global else { return Ok(number(1.0)) };
    ops::select(global.eq(number(0.0))?, number(0.0), number(448.0 * 6.0).divide(global)?)
}

/// The greatest code of unsigned integers.
pub(crate) fn top_code(scheme: &Scheme) -> Array {
    number(((1u32 << scheme.bits()) - 1) as f32)
}

/// Codes of one byte each in the bytes or words of the format, of which `size` count.
pub(crate) fn packed(codes: &Array, scheme: &Scheme, size: usize) -> Ops<Array> {
    let codes = codes.reshape(&[-1])?.try_index(..size as i32)?;
    let bits = scheme.bits();
    if matches!(scheme.coding, Coding::Signed) {
        return Ok(codes);
    }
    let padding = scheme.padding();
    // Whole bytes of all widths.
    let missing = size.next_multiple_of(8) - size;
    let codes = ops::pad(&codes, &[(0, missing as i32)][..], Array::from_slice(&[padding], &[]), None)?;
    let place = |code: usize| match scheme.order() {
        Order::LowFirst => code * bits,
        // The first of a byte's codes, of 1, 2 or 4 bits, is in its highest ones.
        Order::HighFirst => (code * bits) ^ (8 - bits),
    };
    let places: Vec<usize> = (0..8).map(place).collect();
    let bytes = regrouped(&codes.reshape(&[-1, 8])?, &places, [bits, 8])?.reshape(&[-1])?;
    bytes.try_index(..(size * bits).div_ceil(8) as i32)?.view_dtype(scheme.storage)
}

pub(super) fn number(value: f32) -> Array {
    Array::from_f32(value)
}

/// Whole blocks, the last one filled up with zeros: `f32[blocks, block]`.
pub(super) fn blocks(x: &Array, block: usize) -> Ops<Array> {
    let size = x.size();
    // The only block of a small array may be far longer than it.
    let block = block.min(size.max(1));
    let missing = size.div_ceil(block) * block - size;
    ops::pad(&x.reshape(&[-1])?, &[(0, missing as i32)][..], None, None)?.reshape(&[-1, block as i32])
}

/// `x` scaled into [-1, 1].
pub(super) fn unit(x: &Array, absmax: &Array) -> Ops<Array> {
    ops::clip(x.multiply(&reciprocal(absmax)?)?, (-1.0, 1.0))
}

/// A scale that is given may be negative.
fn reciprocal(scale: &Array) -> Ops<Array> {
    let magnitude = ops::maximum(scale.abs()?, number(1e-38))?;
    ops::select(is_negative(scale)?, magnitude.negative()?, magnitude)?.reciprocal()
}

fn is_negative(scale: &Array) -> Ops<Array> {
    scale.lt(number(0.0))
}

/// How many of the ascending thresholds each element is above.
pub(super) fn rank(x: &Array, thresholds: &[f32]) -> Ops<Array> {
    let thresholds = Array::from_slice(thresholds, &[thresholds.len() as i32]);
    // Codes have no gradient, and MLX has none for their integer ops.
    let above = stop_gradient(x)?.expand_dims(-1)?.gt(thresholds)?;
    above.as_dtype(Dtype::Int32)?.sum_axis(-1, None)?.as_dtype(Dtype::Uint8)
}

fn nearest(scheme: &Scheme) -> Ops<Table<'_>> {
    scheme.nearest().map_err(|error| Exception::custom(error.to_string()))
}

fn by_rank(table: &Table, ranks: Array) -> Ops<Array> {
    Array::from_slice(table.by_rank(), &[table.by_rank().len() as i32]).take_axis(ranks, 0)
}

/// The least factors, from `least` on, by which the outermost levels reach both ends of each block.
pub(super) fn reach(ends: &[Array; 2], levels: [f32; 2], least: f32) -> Ops<Array> {
    let mut factor = number(least);
    for level in levels.into_iter().filter(|level| *level != 0.0) {
        // Ends that are given in units of a negative scale are on the other sides.
        for end in ends {
            factor = ops::maximum(factor, end.divide(number(level))?)?;
        }
    }
    Ok(factor)
}

/// The scales and biases of groups whose greatest code is `top`.
fn affine(x: &Array, top: Array) -> Ops<Vec<Array>> {
    let (low, high) = (x.min_axis(-1, true)?, x.max_axis(-1, true)?);
    let step = ops::maximum(high.subtract(&low)?.divide(top)?, number(1e-7))?;
    let negative = low.abs()?.gt(high.abs()?)?;
    let edge = ops::select(&negative, &low, &high)?;
    let scale = ops::select(&negative, &step, step.negative()?)?;
    let zero = edge.divide(&scale)?.round(None)?;
    let none = zero.eq(number(0.0))?;
    let scale = ops::select(&none, &scale, edge.divide(ops::select(&none, number(1.0), &zero)?)?)?;
    let bias = ops::select(&none, number(0.0), &edge)?;
    Ok(vec![scale, bias])
}

/// The scales by which the larger ends of blocks are the least integer.
pub(crate) fn symmetric([low, high]: &[Array; 2], scheme: &Scheme) -> Ops<Array> {
    let edge = ops::select(low.abs()?.gt(high.abs()?)?, low, high)?;
    // The scale of zeros is not negative.
    number(0.0).subtract(edge.divide(number(scheme.middle()))?)
}

/// The byte of a group's power of two.
fn power_of_two(magnitude: &Array, rule: ScaleRule, top: f32) -> Ops<Array> {
    // The exponent is the least at which `magnitude` is not above this number times the power of two.
    let bound = match rule {
        ScaleRule::Ceil => top,
        ScaleRule::Round => {
            let exact = f64::from(top) * SQRT_2;
            let near = exact as f32;
            if f64::from(near) > exact { near.next_down() } else { near }
        }
        ScaleRule::Floor => f32::from_bits((top.to_bits() >> 23 << 23) + (1 << 23)).next_down(),
    };
    let guess = ops::ceil(magnitude.divide(number(bound))?.log2()?)?.add(number(127.0))?;
    let fits = |byte: &Array| looked_up(&*E8M0, &byte.as_dtype(Dtype::Uint8)?)?.multiply(number(bound))?.ge(magnitude);
    // The logarithm is rounded, so the guess may be one off.
    let guess = ops::clip(guess, (1.0, 253.0))?;
    let byte = ops::select(fits(&guess)?, &guess, guess.add(number(1.0))?)?;
    let lower = guess.subtract(number(1.0))?;
    let byte = ops::select(fits(&lower)?, lower, byte)?;
    let byte = ops::select(magnitude.eq(number(0.0))?, number(127.0), byte)?;
    stop_gradient(byte)?.as_dtype(Dtype::Uint8)
}

/// Floats as the scales of a format are stored: rounded to its bytes, or themselves.
pub(crate) fn rounded_scales(scaling: Scaling, scales: &Array) -> Ops<Array> {
    match scaling {
        Scaling::E8m0 => {
            let exponent = ops::maximum(scales, number(f32::MIN_POSITIVE))?.log2()?.round(None)?;
            ops::clip(exponent.add(number(127.0))?, (0.0, 254.0))?.as_dtype(Dtype::Uint8)
        }
        Scaling::E4m3 => to_e4m3(scales),
        Scaling::One | Scaling::Float | Scaling::Nested { .. } | Scaling::Integers { .. } => Ok(scales.clone()),
    }
}

pub(crate) fn float_scales(scaling: Scaling, scales: &Array) -> Ops<Array> {
    match scaling {
        Scaling::E8m0 => looked_up(&*E8M0, scales),
        Scaling::E4m3 => looked_up(&*E4M3, scales),
        Scaling::One | Scaling::Float | Scaling::Nested { .. } | Scaling::Integers { .. } => Ok(scales.clone()),
    }
}

fn e2m1(x: &Array) -> Ops<Array> {
    let magnitude = stop_gradient(x.abs()?)?.expand_dims(-1)?;
    // Halfway, the even code is the lower one above these numbers, and the upper one from those on.
    let above = magnitude.gt(Array::from_slice(&[0.25f32, 1.25, 2.5, 5.0], &[4]))?.as_dtype(Dtype::Uint8)?;
    let from = magnitude.ge(Array::from_slice(&[0.75f32, 1.75, 3.5], &[3]))?.as_dtype(Dtype::Uint8)?;
    let code = above.sum_axis(-1, None)?.add(from.sum_axis(-1, None)?)?.as_dtype(Dtype::Uint8)?;
    let negative = stop_gradient(x)?.lt(number(0.0))?.logical_and(code.gt(Array::from_slice(&[0u8], &[]))?)?;
    signed(&code, &negative, 8)
}

fn to_e4m3(x: &Array) -> Ops<Array> {
    let magnitude = ops::minimum(stop_gradient(x.abs()?)?, number(448.0))?;
    let powers: Vec<f32> = (-5..=8).map(|exponent| 2f32.powi(exponent)).collect();
    let exponent = rank(&magnitude, &powers.iter().map(|power| power.next_down()).collect::<Vec<_>>())?;
    let steps: Vec<f32> = (-9..=5).map(|exponent| 2f32.powi(exponent)).collect();
    let mantissa = magnitude.divide(looked_up(&steps, &exponent)?)?.round(None)?.as_dtype(Dtype::Uint8)?;
    // Zeros have a sign, and so has what rounds to zero.
    let has_sign = stop_gradient(x)?.view_dtype(Dtype::Uint32)?.ge(Array::from_slice(&[1u32 << 31], &[]))?;
    let negative = stop_gradient(x)?.le(number(0.0))?.logical_and(has_sign)?;
    signed(&exponent.multiply(Array::from_slice(&[8u8], &[]))?.add(mantissa)?, &negative, 128)
}

fn signed(code: &Array, negative: &Array, sign: u8) -> Ops<Array> {
    code.add(negative.as_dtype(Dtype::Uint8)?.multiply(Array::from_slice(&[sign], &[]))?)
}

/// The mean magnitude of each block, of the last one without what fills it up.
fn absmean(x: &Array, block: usize, size: usize) -> Ops<Array> {
    let blocks = size.div_ceil(block);
    let counts: Vec<f32> = (0..blocks).map(|at| (size - at * block).min(block) as f32).collect();
    x.abs()?.sum_axis(-1, true)?.divide(Array::from_slice(&counts, &[blocks as i32, 1]))
}
