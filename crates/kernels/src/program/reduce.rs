//! One number of a row.

use super::Op;

/// Numbers that are reduced side by side, whatever a vector holds: the order of a sum is the same on every machine.
const LANES: usize = 64;

/// The reduction of a row.
#[inline(always)]
pub(super) fn reduce(op: Op, row: &[f32]) -> f32 {
    match op {
        Op::Sum => fold(row, 0.0, |a, b| a + b),
        // What is NaN stays.
        Op::Max => fold(row, f32::NEG_INFINITY, |a, b| if a >= b || a.is_nan() { a } else { b }),
        Op::Min => fold(row, f32::INFINITY, |a, b| if a <= b || a.is_nan() { a } else { b }),
        _ => unreachable!("not a reduction"),
    }
}

#[inline(always)]
fn fold(row: &[f32], neutral: f32, f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [neutral; LANES];
    let (whole, rest) = row.as_chunks::<LANES>();
    for chunk in whole {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = f(*lane, *value);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane = f(*lane, *value);
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            lanes[i] = f(lanes[i], lanes[i + width]);
        }
    }
    lanes[0]
}
