//! Sizes whose products no number holds.

use tacit_kernels::program::{DataMut, Kind, Op, Precision, Program, Step};
use tacit_kernels::{
    Attention, Axis, Codes, Floats, Mask, MaskValues, Matrix, Orientation, Scales, StridedCopy, attention,
    grouped_matmul, sum,
};

/// 3 * 6148914691236517206 is 2 modulo 2^64, so that the lengths seem right.
#[test]
fn a_sum_of_more_than_there_can_be_is_an_error() {
    let mut sums = [0.0; 3];
    assert!(sum(&[0.0; 2], [3, 6_148_914_691_236_517_206, 1], &mut sums).is_err());
}

/// the place of an entry plus its reach wraps to something that is within the mask.
#[test]
fn a_mask_that_begins_beyond_all_memory_is_an_error() {
    let (keys, q, visible) = ([0_i8; 4], [1.0_f32], [1_u8; 4]);
    let codes = Codes::Signed { codes: &keys };
    let matrix = Matrix { n: 4, k: 1, codes, scales: Scales::F32(&[1.0]), biases: None, block: 4 };
    let values = MaskValues::Visible { visible: &visible, hidden: f32::NEG_INFINITY };
    // last + (tokens - 1) + 1 = 2^64 - 2 + 4, which wraps to 2.
    let mask = Mask { values, entries: &[usize::MAX - 1], row: 0, column: 1 };
    let of = Attention {
        q: Floats::F32(&q),
        queries: 1,
        indices: &[0],
        keys: matrix,
        values: matrix,
        tokens: 4,
        mask: Some(mask),
    };
    assert!(attention(&of, &mut [0.0_f32; 1][..]).is_err());
}

/// the reach of an axis.
#[test]
fn a_copy_that_reaches_beyond_all_memory_is_an_error() {
    let axes = [Axis { extent: 3, from: isize::MAX, to: 1 }];
    assert!(StridedCopy::new(&axes, 0, 0).run(1, &[0; 4], &mut [0; 3]).is_err());
}

/// program/plan.rs:262 (`numbers`) and run.rs:33, 36: rows times columns. A release build takes 2^63 * 2 for 0 and answers `Ok`.
#[test]
fn a_program_over_more_than_there_can_be_is_an_error() {
    let step = Step { op: Op::Spread, operands: [0; 3], precision: Precision::Single };
    let program = Program::new([1 << 63, 2], vec![], &[1.0], &[step], &[(1, Kind::F32)]);
    assert!(program.and_then(|program| program.run(&[], vec![DataMut::F32(&mut [])])).is_err());
}

/// `seam` multiplies the columns of a matrix of no rows by their bits, also in `attention`.
#[test]
fn no_rows_of_any_length_are_no_panic() {
    let codes = Codes::Signed { codes: &[] };
    let matrix = Matrix { n: 0, k: usize::MAX, codes, scales: Scales::F32(&[]), biases: None, block: 1 };
    let (x, mut out) = ([0.0_f32; 0], [0.0_f32; 0]);
    // An error or nothing to do: both are fine.
    let _ = grouped_matmul(&x[..], 1, &[], &matrix, 1, Orientation::Transposed, &mut out[..]);
}
