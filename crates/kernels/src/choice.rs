//! Which engines can take a product on a machine, and the cost that each states.
//!
//! For the benchmark that compares these costs with measured times, and to look at the choices of other machines.

use crate::{
    Factors, Matrix, Operand, Orientation,
    engine::{self, Priced},
    engines::PACKED,
    gemm::Product,
    integers::{IntegerProduct, Rows, Weights},
    machine::Machine,
    stored::StoredProduct,
};

pub use crate::engine::with_only;

/// An engine, or one that hands products on and the one that it hands them to, and the cycles that it expects.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// For [`with_only`].
    pub names: Vec<&'static str>,
    /// Cycles of one thread.
    pub cycles: f64,
}

/// The engines for [`matmul`](crate::matmul) with `x` of `m` rows, the one that takes the product first.
#[must_use]
pub fn of_matmul(machine: &Machine, x: &[f32], m: usize, matrix: &Matrix, orientation: Orientation) -> Vec<Candidate> {
    let (_, columns) = orientation.sides(matrix.n, matrix.k);
    let product = StoredProduct { x, m, matrix, orientation, threads: 1, cut_from: None };
    let packed = product.work(columns, machine).packed;
    let candidates = engine::candidates(&product, columns, machine).into_iter().flat_map(|(name, cycles)| {
        let direct = vec![Candidate { names: vec![name], cycles }];
        if name != PACKED {
            return direct;
        }
        let inner = engine::costs::<Product>(&packed, machine).map(|(_, engine, cycles)| (engine.name, cycles));
        inner.map(|(inner, cycles)| Candidate { names: vec![name, inner], cycles }).collect()
    });
    sorted(candidates.collect())
}

/// The engines for [`int8_matmul`](crate::int8_matmul) with `m` rows of activations; none for a matrix that it does not
/// take, or whose codes it unpacks first.
#[must_use]
pub fn of_int8_matmul(machine: &Machine, m: usize, matrix: &Matrix) -> Vec<Candidate> {
    let Ok(weights) = &Weights::new(matrix) else { return Vec::new() };
    let rows = &Rows { codes: Vec::new(), units: vec![1.0; m] };
    let product = IntegerProduct { rows, matrix, weights, threads: 1 };
    let candidates = engine::candidates(&product, matrix.n, machine);
    sorted(candidates.into_iter().map(|(name, cycles)| Candidate { names: vec![name], cycles }).collect())
}

/// The engines for [`dense_matmul`](crate::dense_matmul).
#[must_use]
pub fn of_dense_matmul(machine: &Machine, a: Operand, b: Operand) -> Vec<Candidate> {
    let columns = b.columns();
    let product = Product { x: a, panels: &b, columns, factors: Factors::default(), threads: 1 };
    let candidates = engine::candidates(&product, columns, machine);
    sorted(candidates.into_iter().map(|(name, cycles)| Candidate { names: vec![name], cycles }).collect())
}

/// The cheapest first.
fn sorted(mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    candidates.sort_by(|a, b| a.cycles.total_cmp(&b.cycles));
    candidates
}
