//! The loops of the ops that are not reductions.

use super::{Op, Precision, half_floats, math};

#[inline(always)]
fn map(out: &mut [f32], a: &[f32], f: impl Fn(f32) -> f32) {
    for (out, &a) in out.iter_mut().zip(a) {
        *out = f(a);
    }
}

#[inline(always)]
fn map2(out: &mut [f32], a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f32) {
    for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
        *out = f(a, b);
    }
}

/// `map`, rounded.
#[inline(always)]
fn round(precision: Precision, out: &mut [f32], a: &[f32], f: impl Fn(f32) -> f32) {
    match precision {
        Precision::Single => map(out, a, f),
        Precision::F16 => map(out, a, |a| math::f16(f(a))),
        Precision::Bf16 => map(out, a, |a| math::bf16(f(a))),
    }
}

/// `map2`, rounded.
#[inline(always)]
fn round2(precision: Precision, out: &mut [f32], a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f32) {
    match precision {
        Precision::Single => map2(out, a, b, f),
        Precision::F16 => map2(out, a, b, |a, b| math::f16(f(a, b))),
        Precision::Bf16 => map2(out, a, b, |a, b| math::bf16(f(a, b))),
    }
}

/// Rounds numbers where they are.
#[inline(always)]
pub(super) fn round_all(precision: Precision, numbers: &mut [f32]) {
    match precision {
        Precision::Single => {}
        Precision::F16 => numbers.iter_mut().for_each(|number| *number = math::f16(*number)),
        Precision::Bf16 => numbers.iter_mut().for_each(|number| *number = math::bf16(*number)),
    }
}

#[inline(always)]
fn truth(value: bool) -> f32 {
    if value { 1.0 } else { 0.0 }
}

/// Every op but `Select`, `Spread` and the reductions; `b` is not looked at where the op has one operand.
// Comparisons are exact, as MLX's, and free of branches.
#[allow(clippy::float_cmp, clippy::needless_bitwise_bool)]
#[inline(always)]
pub(super) fn apply(op: Op, precision: Precision, out: &mut [f32], a: &[f32], b: &[f32]) {
    if precision != Precision::Single && half_floats::look_up(op, precision, out, a) {
        return;
    }
    match op {
        Op::Abs => map(out, a, f32::abs),
        Op::Ceil => map(out, a, f32::ceil),
        Op::Copy => round(precision, out, a, |a| a),
        Op::Cos => angle(out, a, math::cos, f32::cos),
        Op::Erf => map(out, a, math::erf),
        Op::ErfInv => map(out, a, math::erf_inv),
        Op::Exp => map(out, a, math::exp),
        Op::Expm1 => map(out, a, f32::exp_m1),
        Op::Floor => map(out, a, f32::floor),
        Op::Log => map(out, a, math::log),
        Op::Log1p => map(out, a, f32::ln_1p),
        Op::Not => map(out, a, |a| truth(a == 0.0)),
        Op::Negate => map(out, a, |a| -a),
        Op::NotZero => map(out, a, |a| truth(a != 0.0)),
        Op::Round => map(out, a, f32::round_ties_even),
        Op::Rsqrt => map(out, a, |a| 1.0 / a.sqrt()),
        Op::Sigmoid => map(out, a, math::sigmoid),
        Op::Sign => map(out, a, |a| truth(a > 0.0) - truth(a < 0.0)),
        Op::Sin => angle(out, a, math::sin, f32::sin),
        Op::Sqrt => round(precision, out, a, f32::sqrt),
        Op::Square => round(precision, out, a, |a| a * a),
        Op::Tanh => map(out, a, math::tanh),
        Op::Add => round2(precision, out, a, b, |a, b| a + b),
        Op::Subtract => round2(precision, out, a, b, |a, b| a - b),
        Op::Multiply => round2(precision, out, a, b, |a, b| a * b),
        Op::Divide => round2(precision, out, a, b, |a, b| a / b),
        Op::Power => {
            map2(out, a, b, f32::powf);
            round_all(precision, out);
        }
        Op::Maximum => map2(out, a, b, |a, b| if a > b || a.is_nan() { a } else { b }),
        Op::Minimum => map2(out, a, b, |a, b| if a < b || a.is_nan() { a } else { b }),
        Op::Equal => map2(out, a, b, |a, b| truth(a == b)),
        Op::NotEqual => map2(out, a, b, |a, b| truth(a != b)),
        Op::Less => map2(out, a, b, |a, b| truth(a < b)),
        Op::LessEqual => map2(out, a, b, |a, b| truth(a <= b)),
        Op::And => map2(out, a, b, |a, b| truth((a != 0.0) & (b != 0.0))),
        Op::Or => map2(out, a, b, |a, b| truth((a != 0.0) | (b != 0.0))),
        Op::Select | Op::Spread | Op::Sum | Op::Max | Op::Min => unreachable!("a step of its own"),
    }
}

#[inline(always)]
pub(super) fn select(out: &mut [f32], condition: &[f32], a: &[f32], b: &[f32]) {
    for (((out, &condition), &a), &b) in out.iter_mut().zip(condition).zip(a).zip(b) {
        *out = if condition == 0.0 { b } else { a };
    }
}

/// A function of angles, by another one where they are too large.
#[inline(always)]
fn angle(out: &mut [f32], a: &[f32], f: impl Fn(f32) -> f32, large: impl Fn(f32) -> f32) {
    map(out, a, f);
    if a.iter().fold(false, |any, a| any | (a.abs() > math::LARGEST_ANGLE)) {
        for (out, &a) in out.iter_mut().zip(a) {
            if a.abs() > math::LARGEST_ANGLE {
                *out = large(a);
            }
        }
    }
}
