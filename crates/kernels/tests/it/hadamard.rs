//! The Hadamard transform against the matrix.

use half::{bf16, f16};
use tacit_kernels::{Isa, hadamard, hadamard_matrix, hadamard_order, threads};

use crate::random::Random;

/// Rows of every kind: powers of two, of one vector and less, and each small matrix alone and with others.
const EXTENTS: [usize; 16] = [1, 2, 4, 8, 16, 128, 2048, 12, 24, 20, 160, 28, 896, 36, 52, 1216];

/// The element of Sylvester's matrix.
fn sylvester(i: usize, j: usize) -> f64 {
    if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 }
}

fn by_definition(x: &[f32], n: usize) -> Vec<f64> {
    let order = hadamard_order(n).expect("there is one");
    let (small, power) = (hadamard_matrix(order), n / order);
    let element = |i: usize, j: usize| {
        f64::from(small[i / power * order + j / power]) * sylvester(i % power, j % power) / (n as f64).sqrt()
    };
    x.chunks(n)
        .flat_map(|row| (0..n).map(|j| row.iter().enumerate().map(|(i, x)| f64::from(*x) * element(i, j)).sum()))
        .collect()
}

fn transformed(x: &[f32], n: usize) -> Vec<f32> {
    let mut y = vec![0.0; x.len()];
    hadamard(x, n, &mut y[..]).expect("whole rows");
    y
}

#[test]
fn rows_are_multiplied_by_the_matrix() {
    for n in EXTENTS {
        let x = Random::new(n as u64).normal(3 * n);
        for (found, expected) in transformed(&x, n).iter().zip(by_definition(&x, n)) {
            assert!((f64::from(*found) - expected).abs() < 2e-6 * (n as f64).sqrt(), "{n}: {found} {expected}");
        }
    }
}

#[test]
fn every_matrix_is_symmetric_and_orthogonal() {
    let orders: Vec<usize> = (1..=256).filter(|&n| hadamard_order(n) == Some(n)).collect();
    assert_eq!(orders, [1, 12, 20, 28, 36, 52, 60, 76, 84, 100, 108, 124, 148]);
    for m in orders {
        let matrix = hadamard_matrix(m);
        for i in 0..m {
            for j in 0..m {
                let product: f32 = (0..m).map(|k| matrix[i * m + k] * matrix[j * m + k]).sum();
                assert!((product - if i == j { m as f32 } else { 0.0 }).abs() < 0.5);
                assert!((matrix[i * m + j] - matrix[j * m + i]).abs() < 0.5);
            }
        }
    }
}

#[test]
fn extents_without_a_matrix() {
    for n in [0, 3, 6, 10, 44, 172, 11008, usize::MAX, usize::MAX - 1] {
        assert_eq!(hadamard_order(n), None, "{n}");
    }
    for m in [0, 2, 4, 6, 24, 44] {
        assert!(hadamard_matrix(m).is_empty(), "{m}");
    }
    // The widths of well-known models.
    for n in
        [64, 80, 96, 128, 576, 896, 1024, 1536, 2304, 2560, 3072, 4096, 4864, 5120, 9216, 9728, 13824, 14336, 18944]
    {
        assert!(hadamard_order(n).is_some(), "{n}");
    }
}

#[test]
fn the_transform_is_its_own_inverse() {
    for n in EXTENTS {
        let x = Random::new(7).normal(2 * n);
        for (found, expected) in transformed(&transformed(&x, n), n).iter().zip(&x) {
            assert!((found - expected).abs() < 2e-5, "{n}: {found} {expected}");
        }
    }
}

#[test]
fn instructions_and_threads_change_no_bit() {
    for n in [128, 896, 20] {
        let x = Random::new(3).normal(37 * n);
        let expected = transformed(&x, n);
        for isa in Isa::available() {
            assert_eq!(isa.with(|| transformed(&x, n)), expected, "{isa:?}");
        }
        for count in [1, 3] {
            assert_eq!(threads::with_count(count, || transformed(&x, n)), expected);
        }
    }
}

#[test]
fn half_types_are_rounded_once() {
    let x = Random::new(5).normal(4 * 96);
    let narrow: Vec<f16> = x.iter().map(|&x| f16::from_f32(x)).collect();
    let wide: Vec<f32> = narrow.iter().map(|x| x.to_f32()).collect();
    let mut made = vec![f16::ZERO; x.len()];
    hadamard(&narrow[..], 96, &mut made[..]).expect("whole rows");
    assert!(made.iter().zip(transformed(&wide, 96)).all(|(found, expected)| *found == f16::from_f32(expected)));
    let narrow: Vec<bf16> = x.iter().map(|&x| bf16::from_f32(x)).collect();
    let wide: Vec<f32> = narrow.iter().map(|x| x.to_f32()).collect();
    let mut made = vec![bf16::ZERO; x.len()];
    hadamard(&narrow[..], 96, &mut made[..]).expect("whole rows");
    assert!(made.iter().zip(transformed(&wide, 96)).all(|(found, expected)| *found == bf16::from_f32(expected)));
}

#[test]
fn what_is_not_finite_spreads_over_its_row_alone() {
    let mut x = vec![1.0; 48];
    x[30] = f32::NAN;
    let y = transformed(&x, 24);
    assert!(y[..24].iter().all(|y| y.is_finite()) && y[24..].iter().all(|y| y.is_nan()));
}
