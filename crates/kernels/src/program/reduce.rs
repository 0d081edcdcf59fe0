//! Reductions of a row to one number.

use super::Op;

/// Numbers that are reduced side by side, whatever a vector holds: the order of a sum is the same on every machine.
const LANES: usize = 64;

#[inline(always)]
pub(super) fn reduce(op: Op, row: &[f32]) -> f32 {
    match op {
        Op::Sum => fold(row, 0.0, |a, b| a + b),
        // What is NaN stays.
        Op::Max => first_zero(row, fold(row, f32::NEG_INFINITY, |a, b| if a >= b || a.is_nan() { a } else { b })),
        Op::Min => first_zero(row, fold(row, f32::INFINITY, |a, b| if a <= b || a.is_nan() { a } else { b })),
        _ => unreachable!("not a reduction"),
    }
}

/// The number, and where it is 0 the first zero of the row, whose sign it has as in MLX: lanes meet in another order.
#[inline(always)]
fn first_zero(row: &[f32], value: f32) -> f32 {
    if value == 0.0 { row.iter().copied().find(|&x| x == 0.0).unwrap_or(value) } else { value }
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

#[cfg(test)]
mod tests {
    use super::{Op, reduce};

    #[test]
    fn zeros_of_both_signs_are_the_first_one() {
        for length in 1..200 {
            for first in 0..length {
                let mut row: Vec<f32> = (0..length).map(|at| if at % 3 == 0 { 0.0 } else { -0.0 }).collect();
                row[..first].fill(-1.0);
                let expected = row[first].to_bits();
                assert_eq!(reduce(Op::Max, &row).to_bits(), expected, "{row:?}");
                row[..first].fill(1.0);
                assert_eq!(reduce(Op::Min, &row).to_bits(), expected, "{row:?}");
            }
        }
        assert!(reduce(Op::Max, &[0.0, f32::NAN, -0.0]).is_nan());
    }
}
