//! Products against the elements' definition in `f64`.

use half::{bf16, f16};
use tacit_kernels::{
    Codes, Isa, Matrix, Order, Orientation, Scales, choice, dequantize, machine::Machine, matmul, nf4, threads,
};

use crate::{
    random::Random,
    stored::{KINDS, Kind, SCALINGS, Scaling, Stored},
};

const BOTH: [Orientation; 2] = [Orientation::Transposed, Orientation::Plain];

fn sides(matrix: &Matrix, orientation: Orientation) -> (usize, usize) {
    if orientation == Orientation::Transposed { (matrix.k, matrix.n) } else { (matrix.n, matrix.k) }
}

fn product(isa: Isa, x: &[f32], m: usize, matrix: &Matrix, orientation: Orientation) -> Vec<f32> {
    let (depth, columns) = sides(matrix, orientation);
    let mut out = vec![f32::NAN; m * columns];
    isa.with(|| matmul(&x[..m * depth], m, matrix, orientation, &mut out[..])).unwrap();
    out
}

/// Fails where a result is further from the exact one than the rounding of its terms explains.
fn check(stored: &Stored, rows: &[usize]) {
    let matrix = stored.matrix();
    let (n, k) = (stored.n, stored.k);
    let most = rows.iter().copied().max().unwrap_or(0);
    let x = Random::new(77).normal(most * n.max(k));
    for orientation in BOTH {
        let (depth, columns) = sides(&matrix, orientation);
        let mut exact = vec![(0.0_f64, 0.0_f64); most * columns];
        for d in 0..depth {
            for j in 0..columns {
                let at = if orientation == Orientation::Transposed { j * k + d } else { d * k + j };
                let (value, size) = stored.element(at);
                for i in 0..most {
                    let (sum, bound) = &mut exact[i * columns + j];
                    let x = f64::from(x[i * depth + d]);
                    *sum += x * f64::from(value);
                    *bound += x.abs() * f64::from(size);
                }
            }
        }
        for isa in Isa::available() {
            for &m in rows {
                let ours = product(isa, &x, m, &matrix, orientation);
                for (i, (ours, (sum, size))) in ours.iter().zip(&exact).enumerate() {
                    assert!(
                        (f64::from(*ours) - sum).abs() <= 2e-6 * size + 1e-30,
                        "{isa:?} {orientation:?} m {m} {} at {i}: {ours} against {sum}",
                        stored.describe()
                    );
                }
            }
        }
    }
}

#[test]
fn every_code_with_every_scale_is_right() {
    for kind in KINDS {
        for scaling in SCALINGS {
            for biased in [false, true] {
                check(&Stored::new(kind, scaling, biased, 32, 37, 320), &[1, 2, 9]);
            }
        }
    }
}

#[test]
fn every_number_of_rows_is_right() {
    for kind in [KINDS[0], Kind::Signed, Kind::Unsigned(5), Kind::F16, Kind::Bf16] {
        let rows: Vec<usize> = (1..=19).chain([33, 56, 79]).collect();
        check(&Stored::new(kind, Scaling::F32, true, 64, 70, 192), &rows);
    }
    check(&Stored::new(KINDS[0], Scaling::F32, false, 64, 70, 192), &[300]);
}

#[test]
fn every_block_is_right() {
    for kind in [
        KINDS[0],
        KINDS[1],
        Kind::Table(2, Order::LowFirst),
        Kind::Unsigned(3),
        Kind::Unsigned(8),
        Kind::E4m3,
        Kind::Bf16,
    ] {
        // Rows that are whole blocks, that straddle them, and that fill no vector.
        for k in [512, 200, 96, 33, 1100] {
            for block in [1, 5, 8, 16, 24, 32, 64, 128, 256, k, 4 * k, usize::MAX] {
                for (scaling, biased) in [(Scaling::F32, true), (Scaling::F16, false)] {
                    check(&Stored::new(kind, scaling, biased, block, 19, k), &[1, 4, 10]);
                }
            }
        }
    }
}

#[test]
fn shapes_that_fit_nothing_are_right() {
    for kind in KINDS {
        for (n, k) in [(1, 1), (1, 8), (3, 7), (10, 512), (17, 784), (33, 129), (130, 40), (2, 4100), (600, 24)] {
            check(&Stored::new(kind, Scaling::F32, false, 64, n, k), &[1, 3, 5, 16]);
        }
    }
}

#[test]
fn large_products_are_right() {
    for kind in [KINDS[0], Kind::Unsigned(4), Kind::Unsigned(8), Kind::Table(1, Order::LowFirst), Kind::F16, Kind::Bf16]
    {
        check(&Stored::new(kind, Scaling::F32, true, 64, 1100, 2048), &[1, 4]);
        check(&Stored::new(kind, Scaling::Bf16, true, 2048, 300, 2048), &[1, 12]);
    }
}

/// Rows and blocks from the least floats to the greatest, beside ones of magnitude one.
#[test]
fn every_magnitude_is_right() {
    const N: usize = 70;
    const K: usize = 320;
    const BLOCK: usize = 64;
    const M: usize = 61;
    let powers = [0, -40, 0, -149, 60, -95, 0, -125, 30, -130, 100, 0];
    let size = |i: usize| f64::from(powers[i % powers.len()]).exp2() as f32;
    let bytes: Vec<u8> = Random::new(3).normal(N * K / 2).into_iter().map(|x| (x * 80.0) as i32 as u8).collect();
    let codes = Codes::Table { bytes: &bytes, bits: 4, order: Order::HighFirst, values: &nf4::CODEBOOK };
    for power in [Some(-1), Some(125), Some(-140), None] {
        let scale = |i: usize| power.map_or(size(i / 3), |power| f64::from(power).exp2() as f32);
        let scales: Vec<f32> = (0..N * K / BLOCK).map(scale).collect();
        let matrix = Matrix { n: N, k: K, codes, scales: Scales::F32(&scales), biases: None, block: BLOCK };
        let mut w = vec![0.0; N * K];
        dequantize(&matrix, &mut w[..]).unwrap();
        for orientation in BOTH {
            let (depth, columns) = sides(&matrix, orientation);
            let mut x = Random::new(5).normal(M * depth);
            for (i, row) in x.chunks_exact_mut(depth).enumerate() {
                for x in row {
                    *x *= size(i).min(size(4));
                }
            }
            let element = |d: usize, j: usize| {
                f64::from(if orientation == Orientation::Transposed { w[j * K + d] } else { w[d * K + j] })
            };
            for isa in Isa::available() {
                for (at, ours) in product(isa, &x, M, &matrix, orientation).into_iter().enumerate() {
                    let (row, j) = (&x[at / columns * depth..][..depth], at % columns);
                    let terms = || row.iter().enumerate().map(|(d, x)| f64::from(*x) * element(d, j));
                    let (sum, bound) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
                    // The least of normal floats stands for what is rounded to no number of them.
                    let near = (f64::from(ours) - sum).abs() <= 2e-6 * bound + 64.0 * f64::from(f32::MIN_POSITIVE);
                    let beyond = bound > f64::from(f32::MAX) && !ours.is_finite();
                    assert!(near || beyond, "{isa:?} {orientation:?} {power:?} at {at}: {ours} against {sum}");
                }
            }
        }
    }
}

/// Values of halves themselves, which no scale brings to a magnitude of one: rows of ordinary ones between rows that are
/// subnormal, huge, or hold an infinity.
#[test]
fn every_magnitude_of_halves_is_right() {
    const N: usize = 40;
    const K: usize = 192;
    let powers = |powers: [i32; 5]| -> Vec<f32> {
        let values = Random::new(15).normal(N * K).into_iter().enumerate();
        values.map(|(i, value)| value * f64::from(powers[i / K % 5]).exp2() as f32).collect()
    };
    let narrow: Vec<f16> = powers([0, -24, 0, 12, -9]).into_iter().map(f16::from_f32).collect();
    for wide in [[0, -20, 0, 90, 0], [0, -130, 0, 0, 0], [0, 0, 0, 120, 0]] {
        let wide: Vec<bf16> = powers(wide).into_iter().map(bf16::from_f32).collect();
        for infinite in [false, true] {
            let (mut narrow, mut wide) = (narrow.clone(), wide.clone());
            if infinite {
                (narrow[7 * K + 3], wide[7 * K + 3]) = (f16::INFINITY, bf16::NEG_INFINITY);
            }
            for codes in [Codes::F16 { codes: &narrow }, Codes::Bf16 { codes: &wide }] {
                let matrix = Matrix { n: N, k: K, codes, scales: Scales::One, biases: None, block: N * K };
                let mut w = vec![0.0; N * K];
                dequantize(&matrix, &mut w[..]).unwrap();
                let isas = Isa::available();
                for (isa, orientation) in BOTH.into_iter().flat_map(|way| isas.iter().map(move |isa| (*isa, way))) {
                    let (depth, columns) = sides(&matrix, orientation);
                    for m in [1, 9, 20, 60] {
                        let x = Random::new(5).normal(m * depth);
                        for (at, ours) in product(isa, &x, m, &matrix, orientation).into_iter().enumerate() {
                            let (row, j) = (&x[at / columns * depth..][..depth], at % columns);
                            let element =
                                |d| if orientation == Orientation::Transposed { w[j * K + d] } else { w[d * K + j] };
                            let terms = || row.iter().enumerate().map(|(d, x)| f64::from(*x) * f64::from(element(d)));
                            let (sum, bound) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
                            let near =
                                (f64::from(ours) - sum).abs() <= 2e-6 * bound + 64.0 * f64::from(f32::MIN_POSITIVE);
                            let same = near || f64::from(ours).to_bits() == sum.to_bits();
                            let beyond = sum.is_finite() && bound > f64::from(f32::MAX) && !ours.is_finite();
                            assert!(same || beyond, "{isa:?} {orientation:?} m {m} at {at}: {ours} against {sum}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn empty_sides_give_zeros_or_nothing() {
    for (m, n, k) in [(0, 3, 8), (2, 0, 8), (2, 3, 0), (0, 0, 0)] {
        let stored = Stored::new(KINDS[0], Scaling::F32, true, 64, n, k);
        let x = vec![1.0; m * n.max(k)];
        for isa in Isa::available() {
            assert_eq!(product(isa, &x, m, &stored.matrix(), Orientation::Transposed), vec![0.0; m * n]);
            assert_eq!(product(isa, &x, m, &stored.matrix(), Orientation::Plain), vec![0.0; m * k]);
        }
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    for kind in [KINDS[0], Kind::Signed, Kind::Unsigned(6), Kind::Bf16] {
        for (n, k) in [(200, 784), (300, 640), (10, 4096)] {
            let stored = Stored::new(kind, Scaling::F16, true, 64, n, k);
            let x = Random::new(7).normal(300 * n.max(k));
            for m in [1, 4, 7, 300] {
                for isa in Isa::available().into_iter().filter(|isa| m < 300 || *isa != Isa::Scalar) {
                    for orientation in BOTH {
                        let on =
                            |count| threads::with_count(count, || product(isa, &x, m, &stored.matrix(), orientation));
                        let one = on(1);
                        for count in [2, 3, 5] {
                            assert!(one == on(count), "{isa:?} {orientation:?} m {m} {}", stored.describe());
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_neighbors() {
    for kind in [KINDS[0], Kind::Unsigned(8), Kind::F16, Kind::Bf16] {
        let stored = Stored::new(kind, Scaling::F32, true, 64, 96, 512);
        let x = Random::new(9).normal(80 * 512);
        let others = |depth: usize| [&x[..depth], &Random::new(10).normal(80 * 512)[depth..]].concat();
        for isa in Isa::available() {
            for orientation in BOTH {
                let (depth, columns) = sides(&stored.matrix(), orientation);
                let first = |x: &[f32], m| product(isa, x, m, &stored.matrix(), orientation)[..columns].to_vec();
                for (few, many) in [(1, 8), (1, 3), (9, 11), (16, 40), (60, 80)] {
                    // Another engine rounds in other places.
                    let all = x[..many * depth].to_vec();
                    for engine in
                        isa.with(|| choice::of_matmul(&Machine::detect(), &all, many, &stored.matrix(), orientation))
                    {
                        let [few, many] = [few, many].map(|m| choice::with_only(&engine.names, || first(&x, m)));
                        assert_eq!(few, many, "{isa:?} {orientation:?} {kind:?} {engine:?}");
                    }
                    assert_eq!(first(&x, many), first(&others(depth), many), "{isa:?} {orientation:?} {kind:?} {many}");
                }
            }
        }
    }
}

#[test]
fn half_activations_and_results_are_rounded_once() {
    let stored = Stored::new(KINDS[0], Scaling::F32, true, 64, 40, 256);
    let values = Random::new(12).normal(64 * 256);
    for isa in Isa::available() {
        for m in [1, 9, 64] {
            let x: Vec<f16> = values[..m * 256].iter().map(|&value| f16::from_f32(value)).collect();
            let wide: Vec<f32> = x.iter().map(|value| value.to_f32()).collect();
            let expected = product(isa, &wide, m, &stored.matrix(), Orientation::Transposed);
            let mut out = vec![f16::NAN; m * 40];
            isa.with(|| matmul(&x[..], m, &stored.matrix(), Orientation::Transposed, &mut out[..])).unwrap();
            assert!(out.iter().zip(&expected).all(|(out, value)| *out == f16::from_f32(*value)), "{isa:?} {m}");

            let x: Vec<bf16> = values[..m * 40].iter().map(|&value| bf16::from_f32(value)).collect();
            let wide: Vec<f32> = x.iter().map(|value| value.to_f32()).collect();
            let expected = product(isa, &wide, m, &stored.matrix(), Orientation::Plain);
            let mut out = vec![bf16::NAN; m * 256];
            isa.with(|| matmul(&x[..], m, &stored.matrix(), Orientation::Plain, &mut out[..])).unwrap();
            assert!(out.iter().zip(&expected).all(|(out, value)| *out == bf16::from_f32(*value)), "{isa:?} {m}");
        }
    }
}

/// Many rows take other ways than few; the last of them may be multiplied after the others.
#[test]
fn nan_poisons_no_more_of_large_products() {
    const K: usize = 128;
    const N: usize = 70;
    for kind in [KINDS[0], Kind::Unsigned(4), Kind::Signed] {
        let stored = Stored::new(kind, Scaling::F32, true, 64, N, K);
        // Block 1 of row 1 holds its elements 64 to 127.
        let mut broken = stored.clone();
        broken.scales.floats[3] = f32::NAN;
        for m in [20, 80, 200] {
            for isa in Isa::available() {
                for orientation in BOTH {
                    let (depth, columns) = sides(&stored.matrix(), orientation);
                    let mut x = Random::new(11).normal(m * depth);
                    x[(m - 1) * depth] = f32::NAN;
                    for (at, value) in product(isa, &x, m, &stored.matrix(), orientation).iter().enumerate() {
                        assert_eq!(value.is_nan(), at / columns == m - 1, "{isa:?} {orientation:?} {m} at {at}");
                    }
                    let clean = vec![1.0; m * depth];
                    for (at, value) in product(isa, &clean, m, &broken.matrix(), orientation).iter().enumerate() {
                        let poisoned = match orientation {
                            Orientation::Transposed => at % columns == 1,
                            Orientation::Plain => at % columns >= 64,
                        };
                        assert_eq!(
                            value.is_nan(),
                            poisoned,
                            "{isa:?} {orientation:?} {m} {} at {at}",
                            stored.describe()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn nan_poisons_what_depends_on_it_and_nothing_else() {
    for kind in [KINDS[0], Kind::Table(2, Order::LowFirst), Kind::Signed, Kind::Unsigned(5)] {
        // Sides that leave a rest in every vector, so that padding would show.
        for k in [128, 136] {
            let stored = Stored::new(kind, Scaling::F32, true, 8, 70, k);
            for m in [1, 5, 12] {
                let mut x = Random::new(11).normal(m * k);
                x[k - 1] = f32::NAN;
                let mut broken = stored.clone();
                broken.scales.floats[k / 8 + 1] = f32::NAN;
                for isa in Isa::available() {
                    let out = product(isa, &x, m, &stored.matrix(), Orientation::Transposed);
                    assert!(out[..70].iter().all(|value| value.is_nan()), "{isa:?} {m} {}", stored.describe());
                    assert!(out[70..].iter().all(|value| value.is_finite()), "{isa:?} {m} {}", stored.describe());

                    // Block 1 of row 1 holds its elements 8 to 15.
                    let clean = vec![1.0; m * k.max(70)];
                    let out = product(isa, &clean, m, &broken.matrix(), Orientation::Transposed);
                    for (at, value) in out.iter().enumerate() {
                        assert_eq!(value.is_nan(), at % 70 == 1, "{isa:?} {m} {} at {at}", stored.describe());
                    }
                    let out = product(isa, &clean, m, &broken.matrix(), Orientation::Plain);
                    for (at, value) in out.iter().enumerate() {
                        let within = (8..16).contains(&(at % k));
                        assert_eq!(value.is_nan(), within, "{isa:?} {m} {} at {at}", stored.describe());
                    }
                }
            }
        }
    }
}

#[test]
fn codes_that_are_no_numbers_stay_in_their_rows() {
    // Every second row is all NaN, so that a row read too far would show.
    let (n, k) = (9, 40);
    let values: [f32; 16] = std::array::from_fn(|i| if i == 0 { f32::NAN } else { i as f32 });
    let nibbles: Vec<u8> = (0..n * k / 2).map(|i| if i * 2 / k % 2 == 0 { 0 } else { 0x55 }).collect();
    let bytes: Vec<u8> = (0..n * k).map(|i| if i / k % 2 == 0 { 0x7f } else { 0x38 }).collect();
    let scales = [1.0; 9];
    let table = Codes::Table { bytes: &nibbles, bits: 4, order: Order::LowFirst, values: &values };
    let narrow: Vec<f16> = (0..n * k).map(|i| if i / k % 2 == 0 { f16::NAN } else { f16::ONE }).collect();
    let wide: Vec<bf16> = (0..n * k).map(|i| if i / k % 2 == 0 { bf16::NAN } else { bf16::ONE }).collect();
    let codes = [
        (table, 200.0),
        (Codes::E4m3 { bytes: &bytes }, 40.0),
        (Codes::F16 { codes: &narrow }, 40.0),
        (Codes::Bf16 { codes: &wide }, 40.0),
    ];
    for (codes, sum) in codes {
        let matrix = Matrix { n, k, codes, scales: Scales::F32(&scales), biases: None, block: k };
        for isa in Isa::available() {
            for m in [1, 3, 12] {
                let out = product(isa, &vec![1.0; m * k], m, &matrix, Orientation::Transposed);
                for (at, value) in out.iter().enumerate() {
                    let right = if at % n % 2 == 0 { value.is_nan() } else { (value - sum).abs() < 1e-3 };
                    assert!(right, "{isa:?} {m} {codes:?} at {at}: {value}");
                }
            }
        }
    }
}
