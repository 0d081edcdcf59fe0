//! Products of chosen rows with chosen matrices, against the elements' definition in `f64`.

use half::bf16;
use tacit_kernels::{
    Codes, Indices, Isa, KernelError, Matrix, Order, Orientation, Scales, Stack, gather_matmul, matmul, nf4, threads,
};

use crate::{
    random::Random,
    stored::{KINDS, Kind, SCALINGS, Scaling, Stored},
};

const BOTH: [Orientation; 2] = [Orientation::Transposed, Orientation::Plain];

/// Choices of one of `groups` and of one of `count`, of which the last but one is never indices.
fn choices(seed: u64, pairs: usize, groups: usize, count: usize) -> (Vec<u32>, Vec<u32>) {
    let mut random = Random::new(seed);
    let mut below = |limit: usize| (0..pairs).map(|_| (random.bits() % limit as u64) as u32).collect::<Vec<_>>();
    let x = below(groups);
    let other = |chosen| if count > 1 && chosen == count as u32 - 2 { chosen + 1 } else { chosen };
    (x, below(count).into_iter().map(other).collect())
}

fn gathered(isa: Isa, x: &[f32], indices: Indices, stack: &Stack, orientation: Orientation) -> Vec<f32> {
    let n = stack.matrix.n / stack.count;
    let columns = if orientation == Orientation::Transposed { n } else { stack.matrix.k };
    let mut out = vec![f32::NAN; indices.x.len() * indices.rows * columns];
    isa.with(|| gather_matmul(x, indices, stack, orientation, &mut out[..])).unwrap();
    out
}

/// Fails where a result is further from the exact one than the rounding of its terms explains.
fn check(stored: &Stored, count: usize, rows: usize, pairs: usize) {
    const GROUPS: usize = 3;
    let stack = Stack { matrix: stored.matrix(), count };
    let (n, k) = (stored.n / count, stored.k);
    let (left, right) = choices((pairs * 31 + n) as u64, pairs, GROUPS, count.max(1));
    for orientation in BOTH {
        let (depth, columns) = if orientation == Orientation::Transposed { (k, n) } else { (n, k) };
        let x = Random::new(77).normal(GROUPS * rows * depth);
        let mut exact = Vec::new();
        for (&from, &matrix) in left.iter().zip(&right) {
            let (from, first) = (from as usize * rows * depth, matrix as usize * n * k);
            for (row, j) in (0..rows).flat_map(|row| (0..columns).map(move |j| (row, j))) {
                let terms = (0..depth).map(|d| {
                    let at = if orientation == Orientation::Transposed { j * k + d } else { d * k + j };
                    let (value, size) = stored.element(first + at);
                    let x = f64::from(x[from + row * depth + d]);
                    (x * f64::from(value), x.abs() * f64::from(size))
                });
                exact.push(terms.fold((0.0, 0.0), |(sum, most), (term, size)| (sum + term, most + size)));
            }
        }
        let indices = Indices { rows, x: &left, stack: &right };
        for isa in Isa::available() {
            let ours = gathered(isa, &x, indices, &stack, orientation);
            for (at, (ours, (sum, size))) in ours.iter().zip(&exact).enumerate() {
                assert!(
                    (f64::from(*ours) - sum).abs() <= 2e-6 * size + 1e-30,
                    "{isa:?} {orientation:?} rows {rows} of {count} in {} at {at}: {ours} against {sum}",
                    stored.describe()
                );
            }
        }
    }
}

#[test]
fn every_code_with_every_scale_is_right() {
    for kind in KINDS {
        for scaling in SCALINGS {
            for biased in [false, true] {
                // Matrices that begin with a block, and with a block of nested scales only where they all do.
                check(&Stored::new(kind, scaling, biased, 32, 4 * 12, 64), 4, 1, 7);
            }
        }
    }
}

#[test]
fn matrices_that_begin_anywhere_are_right() {
    for kind in KINDS {
        for block in [5, 32, 64, usize::MAX] {
            for (count, n, k) in [(3, 3, 7), (4, 5, 40), (2, 17, 33), (3, 20, 24)] {
                check(&Stored::new(kind, Scaling::F32, true, block, count * n, k), count, 2, 5);
            }
        }
        check(&Stored::new(kind, Scaling::Nested, false, 32, 4 * 5, 72), 4, 1, 5);
    }
}

#[test]
fn every_number_of_pairs_is_right() {
    for kind in [KINDS[0], Kind::Unsigned(4), Kind::Signed] {
        for (count, rows, pairs) in [(1, 1, 1), (1, 3, 9), (2, 1, 40), (5, 20, 3), (128, 1, 8), (128, 1, 300)] {
            check(&Stored::new(kind, Scaling::F32, true, 64, count * 16, 128), count, rows, pairs);
        }
    }
}

/// The matrix that each product is with is multiplied as it would be alone, by whichever engine takes so many rows.
#[test]
fn products_are_those_of_the_matrices_alone() {
    const N: usize = 48;
    const K: usize = 256;
    const COUNT: usize = 4;
    let stored = Stored::new(KINDS[0], Scaling::F32, false, 64, COUNT * N, K);
    let stack = Stack { matrix: stored.matrix(), count: COUNT };
    for (rows, pairs) in [(1, 4), (1, 40), (1, 150), (80, 6)] {
        let (left, right) = choices(5, pairs, pairs, COUNT);
        let indices = Indices { rows, x: &left, stack: &right };
        for orientation in BOTH {
            let (depth, columns) = if orientation == Orientation::Transposed { (K, N) } else { (N, K) };
            let x = Random::new(3).normal(pairs * rows * depth);
            for isa in Isa::available() {
                let ours = gathered(isa, &x, indices, &stack, orientation);
                for matrix in 0..COUNT {
                    let all: Vec<usize> = (0..pairs).filter(|&pair| right[pair] as usize == matrix).collect();
                    let rows_of = |pair: &usize| x[left[*pair] as usize * rows * depth..][..rows * depth].to_vec();
                    let x: Vec<f32> = all.iter().flat_map(rows_of).collect();
                    let bytes = &stored.bytes[matrix * N * K / 2..][..N * K / 2];
                    let codes = Codes::Table { bytes, bits: 4, order: Order::HighFirst, values: &nf4::CODEBOOK };
                    let scales = Scales::F32(&stored.scales.floats[matrix * N * K / 64..][..N * K / 64]);
                    let alone = Matrix { n: N, codes, scales, ..stored.matrix() };
                    let mut expected = vec![0.0; all.len() * rows * columns];
                    isa.with(|| matmul(&x[..], all.len() * rows, &alone, orientation, &mut expected[..])).unwrap();
                    for (pair, expected) in all.iter().zip(expected.chunks(rows * columns)) {
                        let ours = &ours[pair * rows * columns..][..rows * columns];
                        assert!(ours == expected, "{isa:?} {orientation:?} {rows} {pairs} {matrix}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    for (kind, block) in [(KINDS[0], 64), (Kind::Signed, 40), (Kind::Unsigned(6), 64), (Kind::Unsigned(8), 200)] {
        for (count, n, k) in [(4, 100, 600), (8, 160, 320), (3, 90, 1001)] {
            let stored = Stored::new(kind, Scaling::F16, true, block, count * n, k);
            let stack = Stack { matrix: stored.matrix(), count };
            for (rows, pairs) in [(1, 8), (2, 7), (1, 60)] {
                let (left, right) = choices(9, pairs, 5, count);
                let indices = Indices { rows, x: &left, stack: &right };
                for orientation in BOTH {
                    let depth = if orientation == Orientation::Transposed { k } else { n };
                    let x = Random::new(7).normal(5 * rows * depth);
                    for isa in Isa::available().into_iter().filter(|isa| *isa != Isa::Scalar) {
                        let on =
                            |threads| threads::with_count(threads, || gathered(isa, &x, indices, &stack, orientation));
                        let one = on(1);
                        for threads in [2, 3, 5] {
                            assert!(one == on(threads), "{isa:?} {orientation:?} {pairs} {}", stored.describe());
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn half_activations_and_results_are_rounded_once() {
    let stored = Stored::new(KINDS[0], Scaling::F32, true, 64, 3 * 24, 128);
    let stack = Stack { matrix: stored.matrix(), count: 3 };
    for pairs in [4, 70] {
        let (left, right) = choices(2, pairs, 4, 3);
        let indices = Indices { rows: 1, x: &left, stack: &right };
        let x: Vec<bf16> = Random::new(12).normal(4 * 128).into_iter().map(bf16::from_f32).collect();
        let wide: Vec<f32> = x.iter().map(|value| value.to_f32()).collect();
        let expected = gathered(Isa::detect(), &wide, indices, &stack, Orientation::Transposed);
        let mut out = vec![bf16::NAN; pairs * 24];
        gather_matmul(&x[..], indices, &stack, Orientation::Transposed, &mut out[..]).unwrap();
        assert!(out.iter().zip(&expected).all(|(out, value)| *out == bf16::from_f32(*value)));
    }
}

/// A NaN in a matrix or in a row goes nowhere else.
#[test]
fn nan_poisons_what_depends_on_it_and_nothing_else() {
    let mut stored = Stored::new(KINDS[0], Scaling::F32, false, 64, 3 * 16, 64);
    stored.scales.floats[16 + 2] = f32::NAN;
    let stack = Stack { matrix: stored.matrix(), count: 3 };
    let mut x = vec![1.0; 3 * 64];
    x[64] = f32::NAN;
    let indices = Indices { rows: 1, x: &[0, 1, 2, 0], stack: &[0, 0, 1, 2] };
    for isa in Isa::available() {
        let ours = gathered(isa, &x, indices, &stack, Orientation::Transposed);
        for (at, value) in ours.iter().enumerate() {
            assert_eq!(value.is_nan(), at / 16 == 1 || at == 2 * 16 + 2, "{isa:?} at {at}");
        }
    }
}

#[test]
fn empty_sides_give_zeros_or_nothing() {
    for (count, n, k, pairs, rows) in
        [(2, 3, 0, 2, 1), (2, 0, 8, 2, 1), (2, 3, 8, 0, 1), (2, 3, 8, 2, 0), (0, 0, 8, 0, 1)]
    {
        let stored = Stored::new(KINDS[0], Scaling::F32, true, 64, count * n, k);
        let stack = Stack { matrix: stored.matrix(), count };
        let indices = Indices { rows, x: &vec![0; pairs], stack: &vec![0; pairs] };
        for orientation in BOTH {
            let (depth, columns) = if orientation == Orientation::Transposed { (k, n) } else { (n, k) };
            let mut out = vec![f32::NAN; pairs * rows * columns];
            gather_matmul(&vec![1.0; rows * depth][..], indices, &stack, orientation, &mut out[..]).unwrap();
            assert!(out.iter().all(|value| *value == 0.0));
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let stored = Stored::new(KINDS[0], Scaling::F32, false, 64, 3 * 4, 64);
    let stack = Stack { matrix: stored.matrix(), count: 3 };
    let mut out = [0.0; 8];
    let mut run = |x: &[f32], indices, stack: &Stack| {
        gather_matmul(x, indices, stack, Orientation::Transposed, &mut out[..]).unwrap_err()
    };
    let x = [1.0; 128];
    let indices = Indices { rows: 1, x: &[0, 1], stack: &[2, 3] };
    let error = run(&x, indices, &stack);
    assert_eq!(error, KernelError::MatrixRange { index: 1, matrix: 3, count: 3 });
    assert_eq!(error.to_string(), "matrix 3 (entry 1) is outside a stack of 3\nhelp: matrices count from 0 to 3 - 1");
    let indices = Indices { rows: 1, x: &[0, u32::MAX], stack: &[2, 0] };
    assert_eq!(run(&x, indices, &stack), KernelError::MatrixRange { index: 1, matrix: u32::MAX, count: 2 });
    let length = |error| match error {
        KernelError::Length { name, .. } | KernelError::Size { name, .. } => name,
        other => panic!("{other:?}"),
    };
    let right = Indices { rows: 1, x: &[0, 1], stack: &[2, 1] };
    assert_eq!(length(run(&x[1..], right, &stack)), "x");
    assert_eq!(length(run(&x, Indices { stack: &[0], ..right }, &stack)), "stack");
    assert_eq!(length(run(&x, Indices { x: &[0], stack: &[0], ..right }, &stack)), "out");
    assert_eq!(length(run(&x, right, &Stack { count: 5, ..stack })), "matrix.n");
}
