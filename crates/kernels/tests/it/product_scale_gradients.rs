//! Gradients of scales and biases by products, against plain sums.

use tacit_kernels::{Isa, KernelError, OuterProducts, Stack, product_scale_gradients, threads};

use crate::random::Random;
use crate::stored::{KINDS, Kind, Scaling, Stored};

/// The sums over the blocks of a matrix without scales, in `f64`: of the products with its elements, of the gradient itself, and of
/// the magnitudes of both.
fn sums(stored: &Stored, count: usize, products: &OuterProducts) -> [Vec<f64>; 4] {
    let (n, k) = (stored.n / count, stored.k);
    let mut gradient = vec![0.0; stored.n * k];
    for (entry, &matrix) in products.matrices.iter().enumerate() {
        for row in entry * products.rows..(entry + 1) * products.rows {
            for i in 0..n {
                let left = f64::from(products.left[row * n + i]);
                let of_row = &mut gradient[(matrix as usize * n + i) * k..][..k];
                for (g, right) in of_row.iter_mut().zip(&products.right[row * k..]) {
                    *g += left * f64::from(*right);
                }
            }
        }
    }
    let mut sums: [Vec<f64>; 4] = std::array::from_fn(|_| vec![0.0; (stored.n * k).div_ceil(stored.block)]);
    for (at, g) in gradient.iter().enumerate() {
        let q = f64::from(stored.element(at).0);
        for (sums, term) in sums.iter_mut().zip([g * q, *g, (g * q).abs(), g.abs()]) {
            sums[at / stored.block] += term;
        }
    }
    sums
}

fn check(stored: &Stored, count: usize, rows: usize, matrices: &[u32]) {
    let (n, k, entries) = (stored.n / count, stored.k, matrices.len() * rows);
    let (left, right) = (Random::new(1).normal(entries * n), Random::new(2).normal(entries * k));
    let products = OuterProducts { rows, left: &left, right: &right, matrices };
    let [of_scales, of_biases, scale_sizes, bias_sizes] = sums(stored, count, &products);
    let stack = Stack { matrix: stored.matrix(), count };
    for isa in Isa::available() {
        let run = |count: usize| {
            let mut found = [vec![f32::NAN; of_scales.len()], vec![f32::NAN; of_scales.len()]];
            let [scales, biases] = &mut found;
            let of = || product_scale_gradients(&stack, &products, scales, biases);
            threads::with_count(count, || isa.with(of)).unwrap();
            found
        };
        let found = run(1);
        for (found, expected, sizes) in [(&found[0], &of_scales, &scale_sizes), (&found[1], &of_biases, &bias_sizes)] {
            for ((found, expected), size) in found.iter().zip(expected).zip(sizes) {
                let off = (f64::from(*found) - expected).abs();
                assert!(off <= 1e-4 * size + 1e-6, "{}, {isa:?}: {found} and {expected}", stored.describe());
            }
        }
        assert_eq!(run(3), found, "{}, {isa:?}", stored.describe());
    }
}

#[test]
fn they_are_sums_over_each_block() {
    for kind in KINDS {
        // Blocks that divide the rows, straddle them, and are longer than all of them.
        for block in [8, 48, 1 << 40] {
            check(&Stored::new(kind, Scaling::One, false, block, 6, 40), 1, 3, &[0]);
        }
        check(&Stored::new(kind, Scaling::One, false, 16, 6, 40), 3, 2, &[2, 0, 2]);
    }
}

#[test]
fn blocks_end_within_and_behind_the_parts_of_a_large_matrix() {
    check(&Stored::new(Kind::Unsigned(4), Scaling::One, false, 1000, 40, 1 << 16), 1, 1, &[0]);
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_zero() {
    let stored = Stored::new(Kind::Signed, Scaling::F32, true, 8, 4, 16);
    let stack = Stack { matrix: stored.matrix(), count: 2 };
    let run = |rows, left: &[f32], right: &[f32], matrices: &[u32], blocks| {
        let (mut scales, mut biases) = (vec![f32::NAN; blocks], vec![f32::NAN; blocks]);
        let products = OuterProducts { rows, left, right, matrices };
        product_scale_gradients(&stack, &products, &mut scales, &mut biases).map(|()| scales)
    };
    assert_eq!(run(0, &[], &[], &[1], 8), Ok(vec![0.0; 8]));
    assert_eq!(run(3, &[], &[], &[], 8), Ok(vec![0.0; 8]));
    let outside = run(1, &[0.0; 4], &[0.0; 32], &[1, 2], 8);
    assert_eq!(outside, Err(KernelError::MatrixRange { index: 1, matrix: 2, count: 2 }));
    let message = run(1, &[0.0; 3], &[0.0; 16], &[1], 8).unwrap_err().to_string();
    assert_eq!(message, "`left` holds 3 elements where 2 are needed\nhelp: [entries, rows, n]");
    assert!(run(1, &[0.0; 2], &[0.0; 16], &[1], 7).is_err());
}
