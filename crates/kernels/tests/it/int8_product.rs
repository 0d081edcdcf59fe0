//! Products of integers that are there already, and how floats become them.

#![allow(clippy::float_cmp, reason = "the results are exact")]

use half::bf16;
use tacit_kernels::{
    Codes, Int8Rounding, Isa, KernelError, Matrix, Orientation, Scales, int8_matmul, int8_product, threads,
};

use crate::random::Random;

const SHAPES: [(usize, usize); 8] = [(1, 1), (1, 8), (3, 7), (17, 64), (40, 33), (64, 128), (2, 1000), (1000, 2)];

fn rounded(x: &[f32], columns: usize, orientation: Orientation, factors: Option<&[f32]>) -> (Vec<i8>, Vec<f32>) {
    let rows = match orientation {
        Orientation::Plain => x.len() / columns,
        Orientation::Transposed => columns,
    };
    let (mut codes, mut units) = (vec![0x55; x.len()], vec![f32::NAN; rows]);
    Int8Rounding { columns, orientation, factors }.round(x, &mut codes, &mut units).unwrap();
    (codes, units)
}

fn transposed<T: Copy>(x: &[T], columns: usize) -> Vec<T> {
    (0..columns).flat_map(|column| x.iter().skip(column).step_by(columns).copied()).collect()
}

#[test]
fn rows_are_integers_in_units_of_their_largest() {
    for (m, k) in SHAPES {
        let (x, factors) = (Random::new(1).normal(m * k), Random::new(2).normal(k));
        let (codes, units) = rounded(&x, k, Orientation::Plain, Some(&factors));
        for (row, (codes, unit)) in x.chunks(k).zip(codes.chunks(k).zip(&units)) {
            let row: Vec<f32> = row.iter().zip(&factors).map(|(x, factor)| x * factor).collect();
            let most = row.iter().fold(0_f32, |most, x| most.max(x.abs()));
            assert_eq!(*unit, most / 127.0);
            for (x, code) in row.iter().zip(codes) {
                assert_eq!(f32::from(*code), (x * (127.0 / most)).round_ties_even());
            }
        }
    }
}

#[test]
fn columns_are_the_rows_of_the_transpose() {
    for (m, n) in SHAPES {
        let (x, factors) = (Random::new(3).normal(m * n), Random::new(4).normal(m));
        for factors in [None, Some(&factors[..])] {
            let expected = rounded(&transposed(&x, n), m, Orientation::Plain, factors);
            for isa in Isa::available() {
                for count in [1, 3] {
                    let made = || rounded(&x, n, Orientation::Transposed, factors);
                    let made = isa.with(|| threads::with_count(count, made));
                    assert_eq!(made, expected, "{isa:?} {m} {n}");
                }
            }
        }
    }
}

#[test]
fn half_floats_are_rounded_as_the_floats_that_they_are() {
    let (m, k) = (5, 48);
    let half: Vec<bf16> = Random::new(5).normal(m * k).into_iter().map(bf16::from_f32).collect();
    let wide: Vec<f32> = half.iter().map(|x| x.to_f32()).collect();
    for (orientation, rows) in [(Orientation::Plain, m), (Orientation::Transposed, k)] {
        let (mut codes, mut units) = (vec![0; m * k], vec![0.0; rows]);
        Int8Rounding { columns: k, orientation, factors: None }.round(&half[..], &mut codes, &mut units).unwrap();
        assert_eq!((codes, units), rounded(&wide, k, orientation, None));
    }
}

#[test]
fn what_has_no_integers_says_so_in_its_unit() {
    let x = [0.0, 0.0, 1.0, f32::NAN, f32::INFINITY, 2.0, 2e-38, -5e-39];
    let (codes, units) = rounded(&x, 2, Orientation::Plain, None);
    assert_eq!(codes, [0, 0, 0, 0, 0, 0, 127, -32]);
    assert!(units[0] == 0.0 && units[1].is_nan() && units[2].is_nan() && units[3] > 0.0, "{units:?}");
    let nothing: &[f32] = &[];
    for (columns, orientation, rows) in [(3, Orientation::Transposed, 3), (0, Orientation::Plain, 2)] {
        let mut units = vec![f32::NAN; rows];
        Int8Rounding { columns, orientation, factors: None }.round(nothing, &mut [], &mut units).unwrap();
        assert!(units.iter().all(|unit| *unit == 0.0));
    }
}

#[test]
fn products_of_rounded_rows_are_those_that_round_them() {
    for (n, k) in SHAPES {
        let (w, scales) = rounded(&Random::new(6).normal(n * k), k, Orientation::Plain, None);
        let codes = Codes::Signed { codes: &w };
        let matrix = Matrix { n, k, codes, scales: Scales::F32(&scales), biases: None, block: k };
        for m in [1, 2, 9, 33] {
            let x = Random::new(7).normal(m * k);
            let (codes, units) = rounded(&x, k, Orientation::Plain, None);
            let (mut expected, mut made) = (vec![f32::NAN; m * n], vec![f32::NAN; m * n]);
            int8_matmul(&x[..], m, &matrix, Orientation::Transposed, &mut expected[..]).unwrap();
            int8_product(&codes, &units, &matrix, Orientation::Transposed, &mut made[..]).unwrap();
            assert_eq!(made, expected, "{m} {n} {k}");
        }
    }
}

#[test]
fn plain_products_sum_over_the_rows_of_the_matrix() {
    for (n, k) in SHAPES {
        let (w, _) = rounded(&Random::new(8).normal(n * k), k, Orientation::Plain, None);
        let by_column = transposed(&w, k);
        let ones = vec![1.0; k];
        let one = Matrix { n, k, codes: Codes::Signed { codes: &w }, scales: Scales::One, biases: None, block: n * k };
        let codes = Codes::Signed { codes: &by_column };
        let matrix_by_column = Matrix { n: k, k: n, codes, scales: Scales::F32(&ones), biases: None, block: n };
        let unscaled = Matrix { scales: Scales::One, block: n * k, ..matrix_by_column };
        for m in [1, 9, 33] {
            let (codes, units) = rounded(&Random::new(9).normal(m * n), n, Orientation::Plain, None);
            let product = |matrix: &Matrix, orientation| {
                let mut out = vec![f32::NAN; m * k];
                int8_product(&codes, &units, matrix, orientation, &mut out[..]).unwrap();
                out
            };
            let made = product(&one, Orientation::Plain);
            for (i, (row, codes)) in made.chunks(k).zip(codes.chunks(n)).enumerate() {
                for (j, y) in row.iter().enumerate() {
                    let terms = codes.iter().zip(&by_column[j * n..]);
                    let sum: i32 = terms.map(|(x, w)| i32::from(*x) * i32::from(*w)).sum();
                    let expected = f64::from(sum) * f64::from(units[i]);
                    let bound = 1e-6 * f64::from(units[i]) * 127.0 * 127.0 * n as f64;
                    assert!((f64::from(*y) - expected).abs() <= bound, "{m} {n} {k}: {y} {expected}");
                }
            }
            assert_eq!(made, product(&matrix_by_column, Orientation::Transposed));
            assert_eq!(made, product(&unscaled, Orientation::Transposed));
        }
    }
}

/// Two products of -128 with itself are beyond the 16 bits in which some machines add them.
#[test]
fn the_matrix_may_have_the_least_byte_and_rows_may_not() {
    let codes = Codes::Signed { codes: &[i8::MIN; 64] };
    let matrix = Matrix { n: 1, k: 64, codes, scales: Scales::One, biases: None, block: 64 };
    for isa in Isa::available() {
        let product = |row: &[i8]| {
            let mut y = [0.0];
            isa.with(|| int8_product(row, &[1.0], &matrix, Orientation::Transposed, &mut y[..])).map(|()| y[0])
        };
        assert_eq!(product(&[-127; 64]).unwrap(), 64.0 * 128.0 * 127.0, "{isa:?}");
        assert!(matches!(product(&[i8::MIN; 64]), Err(KernelError::Int8 { .. })), "{isa:?}");
    }
}

#[test]
fn a_row_without_a_unit_has_no_products_and_an_empty_sum_is_zero() {
    let codes = Codes::Signed { codes: &[1, 2, 3, 4] };
    let matrix = Matrix { n: 2, k: 2, codes, scales: Scales::One, biases: None, block: 4 };
    let mut y = [0.0; 4];
    int8_product(&[0, 0, 1, 1], &[f32::NAN, 1.0], &matrix, Orientation::Plain, &mut y[..]).unwrap();
    assert!(y[0].is_nan() && y[1].is_nan() && y[2] == 4.0 && y[3] == 6.0, "{y:?}");
    let empty = Matrix { n: 0, k: 3, codes: Codes::Signed { codes: &[] }, block: 1, ..matrix };
    let mut y = [1.0; 6];
    int8_product(&[], &[1.0, 2.0], &empty, Orientation::Plain, &mut y[..]).unwrap();
    assert_eq!(y, [0.0; 6]);
}

#[test]
fn other_matrices_and_lengths_are_refused() {
    let matrix =
        Matrix { n: 1, k: 2, codes: Codes::Signed { codes: &[1, 2] }, scales: Scales::One, biases: None, block: 2 };
    let made = |matrix: &Matrix, orientation, codes: &[i8]| {
        int8_product(codes, &[1.0], matrix, orientation, &mut [0.0; 2][..])
    };
    let unsigned = Matrix { codes: Codes::Unsigned { bytes: &[1, 2], bits: 8 }, ..matrix };
    let scaled = Matrix { scales: Scales::F32(&[1.0]), ..matrix };
    let biased = Matrix { biases: Some(Scales::F32(&[1.0])), ..matrix };
    for refused in [unsigned, scaled, biased] {
        assert!(matches!(made(&refused, Orientation::Plain, &[1]), Err(KernelError::Int8 { .. })), "{refused:?}");
    }
    assert!(matches!(made(&matrix, Orientation::Plain, &[1, 2]), Err(KernelError::Length { name: "codes", .. })));
    let rounding = Int8Rounding { columns: 2, orientation: Orientation::Plain, factors: Some(&[1.0]) };
    let made = rounding.round(&[1.0, 2.0][..], &mut [0; 2], &mut [0.0; 1]);
    assert!(matches!(made, Err(KernelError::Length { name: "factors", .. })), "{made:?}");
}
