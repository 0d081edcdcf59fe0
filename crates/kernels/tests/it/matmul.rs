//! Products against the dequantized weight in `f64`.

use tacit_kernels::{
    Isa,
    nf4::{self, Orientation, Weight},
    threads,
};

use crate::{quantize::quantize, random::Random};

struct Case {
    x: Vec<f32>,
    packed: Vec<u8>,
    absmax: Vec<f32>,
    dense: Vec<f32>,
    block: usize,
    m: usize,
    n: usize,
    k: usize,
}

impl Case {
    fn new(seed: u64, block: usize, m: usize, n: usize, k: usize) -> Self {
        let mut random = Random::new(seed);
        let w = random.normal(n * k);
        let (packed, absmax) = quantize(Isa::detect(), &w, block);
        let mut dense = vec![0.0; n * k];
        nf4::dequantize(&packed, &absmax, block, n * k, &mut dense).unwrap();
        Self { x: random.normal(m * n.max(k)), packed, absmax, dense, block, m, n, k }
    }

    fn weight(&self) -> Weight<'_> {
        Weight { packed: &self.packed, absmax: &self.absmax, block: self.block, n: self.n, k: self.k }
    }

    fn sides(&self, orientation: Orientation) -> (usize, usize) {
        if orientation == Orientation::Transposed { (self.k, self.n) } else { (self.n, self.k) }
    }

    fn product(&self, isa: Isa, orientation: Orientation) -> Vec<f32> {
        let (depth, columns) = self.sides(orientation);
        let mut out = vec![f32::NAN; self.m * columns];
        nf4::matmul_with(isa, &self.x[..self.m * depth], self.m, &self.weight(), orientation, &mut out).unwrap();
        out
    }

    /// Fails where a result is further from the exact one than the rounding of its terms explains.
    fn check(&self) {
        for orientation in [Orientation::Transposed, Orientation::Plain] {
            let (depth, columns) = self.sides(orientation);
            let mut exact = vec![(0.0_f64, 0.0_f64); self.m * columns];
            for i in 0..self.m {
                for d in 0..depth {
                    let x = f64::from(self.x[i * depth + d]);
                    for (j, (sum, size)) in exact[i * columns..][..columns].iter_mut().enumerate() {
                        let at = if orientation == Orientation::Transposed { j * self.k + d } else { d * self.k + j };
                        let term = x * f64::from(self.dense[at]);
                        *sum += term;
                        *size += term.abs();
                    }
                }
            }
            for isa in Isa::available() {
                let ours = self.product(isa, orientation);
                for (i, (ours, (sum, size))) in ours.iter().zip(&exact).enumerate() {
                    let bound = 2e-6 * size + 1e-30;
                    assert!(
                        (f64::from(*ours) - sum).abs() <= bound,
                        "{isa:?} {orientation:?} block {} m {} n {} k {} at {i}: {ours} against {sum}",
                        self.block,
                        self.m,
                        self.n,
                        self.k,
                    );
                }
            }
        }
    }
}

#[test]
fn every_number_of_rows_is_right() {
    for m in (1..=33).chain([300]) {
        Case::new(m as u64, 64, m, 70, 192).check();
    }
}

#[test]
fn every_block_size_is_right() {
    for block in crate::quantize::BLOCKS {
        for m in [1, 3, 9] {
            Case::new(1, block, m, 33, 4096).check();
            Case::new(2, block, m, 40, 256 + 8).check();
        }
    }
}

#[test]
fn shapes_that_fit_nothing_are_right() {
    for (n, k) in [(1, 1), (1, 8), (3, 7), (10, 512), (17, 784), (33, 129), (65, 1000), (130, 40), (600, 24)] {
        for m in [1, 2, 4, 5, 16] {
            Case::new((n * k) as u64, 32, m, n, k).check();
            Case::new((n * k) as u64, 128, m, n, k).check();
        }
    }
}

#[test]
fn empty_sides_give_zeros_or_nothing() {
    for (m, n, k) in [(0, 3, 8), (2, 0, 8), (2, 3, 0), (0, 0, 0)] {
        let case = Case::new(1, 64, m, n, k);
        for isa in Isa::available() {
            assert_eq!(case.product(isa, Orientation::Transposed), vec![0.0; m * n]);
            assert_eq!(case.product(isa, Orientation::Plain), vec![0.0; m * k]);
        }
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    for m in [1, 4, 7, 300] {
        for (n, k) in [(200, 784), (300, 640), (10, 512)] {
            let case = Case::new(7, 64, m, n, k);
            for isa in Isa::available().into_iter().filter(|isa| m < 300 || *isa != Isa::Scalar) {
                for orientation in [Orientation::Transposed, Orientation::Plain] {
                    let one = threads::with_count(1, || case.product(isa, orientation));
                    for count in [2, 5] {
                        let many = threads::with_count(count, || case.product(isa, orientation));
                        assert!(one == many, "{isa:?} {orientation:?} {m} {n} {k} on {count} threads");
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_neighbors() {
    let case = Case::new(9, 64, 40, 96, 512);
    for isa in Isa::available() {
        for (few, many) in [(1, 8), (9, 40)] {
            for orientation in [Orientation::Transposed, Orientation::Plain] {
                let first = |m| {
                    let (depth, columns) = case.sides(orientation);
                    let mut out = vec![0.0; m * columns];
                    nf4::matmul_with(isa, &case.x[..m * depth], m, &case.weight(), orientation, &mut out).unwrap();
                    out[..columns].to_vec()
                };
                assert_eq!(first(few), first(many), "{isa:?} {orientation:?}");
            }
        }
    }
}

#[test]
fn values_that_are_not_finite_pass_through() {
    let mut case = Case::new(11, 64, 5, 64, 128);
    case.x[3] = f32::NAN;
    for isa in Isa::available() {
        let out = case.product(isa, Orientation::Transposed);
        assert!(out[..64].iter().all(|v| v.is_nan()) && out[64..].iter().all(|v| v.is_finite()), "{isa:?}");
    }
}
