//! Products of dense matrices, against sums in double precision.

use tacit_kernels::{
    Complex, Dense, Factors, Isa, KernelError, Operand, Orientation, complex_matmul, dense_matmul, double_matmul,
    threads,
};

use crate::random::Random;

/// Floats between the rows of every matrix here.
const PADDING: usize = 3;

const ORIENTATIONS: [[Orientation; 2]; 4] = [
    [Orientation::Plain, Orientation::Plain],
    [Orientation::Plain, Orientation::Transposed],
    [Orientation::Transposed, Orientation::Plain],
    [Orientation::Transposed, Orientation::Transposed],
];

/// `rows` of `columns` numbers as they are multiplied, stored one way or the other, with NaN between the rows.
fn stored(values: &[f32], rows: usize, columns: usize, orientation: Orientation) -> Vec<f32> {
    let plain = orientation == Orientation::Plain;
    let (outer, inner) = if plain { (rows, columns) } else { (columns, rows) };
    let at = |i: usize, j: usize| if plain { values[i * columns + j] } else { values[j * columns + i] };
    let row = |i| (0..inner + PADDING).map(move |j| if j < inner { at(i, j) } else { f32::NAN });
    (0..outer).flat_map(row).take(outer * (inner + PADDING) - PADDING).collect()
}

fn operand<T>(values: &[T], rows: usize, columns: usize, orientation: Orientation) -> Operand<'_, T> {
    let (rows, columns) = if orientation == Orientation::Plain { (rows, columns) } else { (columns, rows) };
    Operand { matrix: Dense { values, rows, columns, stride: columns + PADDING }, orientation }
}

/// A product, with numbers from N(0, 1) and what they sum up to.
struct Case {
    m: usize,
    n: usize,
    k: usize,
    a: Vec<f32>,
    b: Vec<f32>,
    before: Vec<f32>,
    /// The sum, and that of the magnitudes.
    sums: Vec<[f64; 2]>,
}

impl Case {
    fn new(m: usize, n: usize, k: usize) -> Self {
        let mut random = Random::new((m * 1_000_000 + n * 1000 + k) as u64);
        let (a, b) = (random.normal(m * k), random.normal(k * n));
        let before = random.normal(m * (n + PADDING));
        let mut sums = vec![[0.0; 2]; m * n];
        for i in 0..m {
            for d in 0..k {
                for j in 0..n {
                    let product = f64::from(a[i * k + d]) * f64::from(b[d * n + j]);
                    sums[i * n + j][0] += product;
                    sums[i * n + j][1] += product.abs();
                }
            }
        }
        Self { m, n, k, a, b, before, sums }
    }

    fn product(&self, [of_a, of_b]: [Orientation; 2], factors: Factors) -> Vec<f32> {
        let &Self { m, n, k, .. } = self;
        let (a, b) = (stored(&self.a, m, k, of_a), stored(&self.b, k, n, of_b));
        let mut out = self.before.clone();
        if factors.beta == 0.0 {
            out.chunks_mut(n + PADDING).for_each(|row| row[..n].fill(f32::NAN));
        }
        let values = &mut out[..m * (n + PADDING) - PADDING];
        let to = Dense { values, rows: m, columns: n, stride: n + PADDING };
        dense_matmul(operand(&a, m, k, of_a), operand(&b, k, n, of_b), to, factors).unwrap();
        out
    }

    fn check(&self, isa: Isa, orientations: [Orientation; 2], factors: Factors) {
        let &Self { m, n, k, .. } = self;
        let out = isa.with(|| self.product(orientations, factors));
        let place = format!("{isa:?} {m}x{n}x{k} {orientations:?} {factors:?}");
        let (alpha, beta) = (f64::from(factors.alpha), f64::from(factors.beta));
        for (i, (row, before)) in out.chunks(n + PADDING).zip(self.before.chunks(n + PADDING)).enumerate() {
            for (j, (value, before)) in row[..n].iter().zip(before).enumerate() {
                let [sum, magnitude] = self.sums[i * n + j];
                let added = if beta == 0.0 { 0.0 } else { beta * f64::from(*before) };
                // What a sum of so many terms may be off by, each rounded.
                let bound = (k + 4) as f64 * (alpha.abs() * magnitude + added.abs()) * 2.0_f64.powi(-24);
                let error = (f64::from(*value) - alpha * sum - added).abs();
                assert!(error <= bound, "{place} at {i}, {j}: {value} is off by {error:e}, above {bound:e}");
            }
            assert_eq!(row[n..], before[n..], "{place}: what lies between the rows");
        }
    }
}

#[test]
fn every_orientation_and_size_is_right() {
    let sizes = [
        (1, 1, 1),
        (1, 2, 3),
        (2, 1, 15),
        (3, 3, 2),
        (1, 65, 33),
        (65, 1, 33),
        (1, 784, 129),
        (784, 1, 129),
        (2, 17, 16),
        (15, 31, 17),
        (16, 16, 16),
        (17, 33, 63),
        (31, 15, 784),
        (33, 65, 1),
        (63, 64, 65),
        (14, 129, 300),
        (64, 63, 127),
        (65, 127, 128),
        (127, 129, 31),
        (129, 65, 257),
        (57, 784, 33),
        (784, 33, 64),
        (530, 40, 40),
    ];
    let plain = Factors::default();
    for (m, n, k) in sizes {
        let case = Case::new(m, n, k);
        for isa in Isa::available() {
            for orientations in ORIENTATIONS {
                case.check(isa, orientations, plain);
            }
        }
    }
}

#[test]
fn the_factors_count_for_what_they_say() {
    for (m, n, k) in [(1, 40, 33), (40, 1, 33), (5, 7, 3), (33, 65, 300), (130, 97, 150), (130, 97, 50)] {
        let case = Case::new(m, n, k);
        for isa in Isa::available() {
            for orientations in ORIENTATIONS {
                for (alpha, beta) in [(1.0, 1.0), (-0.5, 0.0), (2.0, -0.25), (0.0, 0.0), (0.0, 3.0)] {
                    case.check(isa, orientations, Factors { alpha, beta });
                }
            }
        }
    }
}

#[test]
fn the_number_of_threads_changes_no_bit_of_dense_products() {
    for (m, n, k) in [(129, 200, 130), (700, 65, 60), (1, 900, 400), (900, 1, 400), (3, 1000, 700), (2100, 40, 40)] {
        let case = Case::new(m, n, k);
        for isa in Isa::available() {
            for orientations in ORIENTATIONS {
                let product = |count| {
                    let product = || isa.with(|| case.product(orientations, Factors { alpha: 0.5, beta: 2.0 }));
                    threads::with_count(count, product)
                };
                let one = product(1);
                for count in [2, 3] {
                    assert!(one == product(count), "{isa:?} {m}x{n}x{k} {orientations:?} on {count} threads");
                }
            }
        }
    }
}

#[test]
fn numbers_that_are_none_poison_what_depends_on_them_and_nothing_else() {
    for (m, n, k) in [(1, 70, 40), (70, 1, 40), (20, 40, 30), (130, 97, 140)] {
        for (row, column) in [(0, 0), (m / 2, n - 1), (m - 1, n / 2)] {
            for (in_a, value) in
                [(true, f32::NAN), (true, f32::INFINITY), (false, f32::NAN), (false, f32::NEG_INFINITY)]
            {
                let mut case = Case::new(m, n, k);
                let at = if in_a { row * k + k / 2 } else { k / 2 * n + column };
                (if in_a { &mut case.a } else { &mut case.b })[at] = value;
                for isa in Isa::available() {
                    for orientations in ORIENTATIONS {
                        let out = isa.with(|| case.product(orientations, Factors::default()));
                        for (i, values) in out.chunks(n + PADDING).enumerate() {
                            for (j, value) in values[..n].iter().enumerate() {
                                let poisoned = if in_a { i == row } else { j == column };
                                assert_eq!(
                                    value.is_finite(),
                                    !poisoned,
                                    "{isa:?} {m}x{n}x{k} {orientations:?} {i} {j}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
#[allow(clippy::float_cmp, reason = "sums of small integers are exact")]
fn doubles_and_complex_numbers_are_multiplied_as_singles_are() {
    for (m, n, k) in [(1, 1, 1), (7, 9, 300), (121, 257, 5), (6, 8, 256)] {
        let case = Case::new(m, n, k);
        let whole = |values: &[f32]| -> Vec<f32> { values.iter().map(|x| (x * 4.0).round()).collect() };
        let case = Case { a: whole(&case.a), b: whole(&case.b), before: whole(&case.before), ..case };
        for isa in Isa::available() {
            for [of_a, of_b] in ORIENTATIONS {
                let factors = Factors { alpha: 2.0, beta: 3.0 };
                let expected = isa.with(|| case.product([of_a, of_b], factors));
                let (a, b) = (stored(&case.a, m, k, of_a), stored(&case.b, k, n, of_b));
                let doubles = |values: &[f32]| -> Vec<f64> { values.iter().map(|x| f64::from(*x)).collect() };
                let (x, w, mut out) = (doubles(&a), doubles(&b), doubles(&case.before));
                let held = m * (n + PADDING) - PADDING;
                let to = Dense { values: &mut out[..held], rows: m, columns: n, stride: n + PADDING };
                let factors = Factors { alpha: 2.0, beta: 3.0 };
                isa.with(|| double_matmul(operand(&x, m, k, of_a), operand(&w, k, n, of_b), to, factors)).unwrap();
                assert_eq!(out, doubles(&expected), "{isa:?} {m}x{n}x{k} {of_a:?} {of_b:?}");

                // (i A) (i B) = -A B, and with one of them conjugated A B.
                let imaginary = |values: &[f32]| -> Vec<Complex> { values.iter().map(|x| [0.0, *x]).collect() };
                let (x, w) = (imaginary(&a), imaginary(&b));
                let mut out: Vec<Complex> = case.before.iter().map(|x| [*x, -*x]).collect();
                let to = Dense { values: &mut out[..held], rows: m, columns: n, stride: n + PADDING };
                let factors = Factors { alpha: [2.0, 0.0], beta: [3.0, 0.0] };
                let (x, w) = (operand(&x, m, k, of_a), operand(&w, k, n, of_b));
                isa.with(|| complex_matmul((x, true), (w, false), to, factors)).unwrap();
                for (at, (out, expected)) in out.iter().zip(&expected).enumerate() {
                    let before = case.before[at];
                    let other = if at % (n + PADDING) < n { -3.0 * before } else { -before };
                    assert_eq!(*out, [*expected, other], "{isa:?} {m}x{n}x{k} {of_a:?} {of_b:?} at {at}");
                }
            }
        }
    }
}

#[test]
#[allow(clippy::float_cmp, reason = "the parts are exact")]
fn a_part_of_a_complex_product_that_overflows_leaves_the_other_one() {
    let (a, b, mut out) = ([[1e30, 0.0]], [[0.0, 1e30]], [[2.0, 1.0]]);
    let to = Dense { values: &mut out[..], rows: 1, columns: 1, stride: 1 };
    let factors = Factors { alpha: [1.0, 0.0], beta: [3.0, 0.0] };
    let [a, b] = [&a, &b].map(|one| (operand(one, 1, 1, Orientation::Plain), false));
    complex_matmul(a, b, to, factors).unwrap();
    assert_eq!(out, [[6.0, f32::INFINITY]]);
}

/// No columns, and a stride that a single row does not need.
#[test]
fn empty_results_and_strides_of_nothing_are_taken() {
    fn plain<T>(values: &[T], rows: usize, columns: usize, stride: usize) -> Operand<'_, T> {
        Operand { matrix: Dense { values, rows, columns, stride }, orientation: Orientation::Plain }
    }
    let empty = Dense { values: &mut [][..], rows: 2, columns: 0, stride: 1 };
    let factors = Factors { alpha: 1.0, beta: 0.0 };
    double_matmul(plain(&[1.0; 6], 2, 3, 3), plain(&[], 3, 0, 0), empty, factors).expect("empty");
    let one = Operand { orientation: Orientation::Transposed, ..plain(&[2.0], 1, 1, 0) };
    let row = plain(&[3.0, 4.0], 1, 2, 2);
    let mut out = [0.0; 2];
    let to = Dense { values: &mut out[..], rows: 1, columns: 2, stride: 2 };
    dense_matmul(one, row, to, Factors::default()).expect("one number");
    assert_eq!(out.map(f32::to_bits), [6.0, 8.0].map(f32::to_bits));
}

#[test]
fn sizes_that_do_not_fit_are_errors_and_leave_the_output() {
    let values = [1.0; 12];
    let matrix = |rows, columns, stride| Operand {
        matrix: Dense { values: &values[..(rows - 1) * stride + columns], rows, columns, stride },
        orientation: Orientation::Plain,
    };
    let short = Operand { matrix: Dense { values: &values[..5], rows: 2, columns: 3, stride: 3 }, ..matrix(2, 3, 3) };
    let cases = [
        (matrix(2, 3, 3), matrix(2, 3, 3), 2, 3, 3),
        (matrix(2, 3, 3), matrix(3, 2, 2), 3, 2, 2),
        (matrix(2, 3, 3), matrix(3, 2, 2), 2, 1, 4),
        (matrix(2, 3, 3), matrix(3, 2, 2), 2, 2, 1),
        (short, matrix(3, 2, 2), 2, 2, 2),
    ];
    for (a, b, rows, columns, stride) in cases {
        let mut out = [7.0; 4];
        let to = Dense { values: &mut out[..], rows, columns, stride };
        let result = dense_matmul(a, b, to, Factors::default());
        assert!(
            matches!(result, Err(KernelError::Length { .. } | KernelError::Size { .. })),
            "{rows} {columns} {stride}: {result:?}"
        );
        assert!(out.iter().all(|value| value.to_bits() == 7.0_f32.to_bits()), "{out:?}");
    }
}
