//! Whether the engine that takes a product is the fastest of those that can.
//!
//! `cargo bench -p tacit-kernels --bench kernels -- --choose [filter]`. A case is an instruction set, a format, an
//! orientation and a number of rows; every engine that can takes it in turn, round after round, and the least time of each
//! counts. A row says which is chosen and which is fastest, the time of the chosen in units of that, and what each took and
//! the cycles that it had expected. Cases beyond [`TOLERATED`] are marked and counted.

use std::time::{Duration, Instant};

use tacit_kernels::{
    Dense, Factors, Isa, Operand, Orientation,
    choice::{self, Candidate},
    dense_matmul, int8_matmul,
    machine::Machine,
    matmul,
};

use super::stored::{Stored, named};

/// Rows and columns of the matrices.
const SIZES: (usize, usize) = (2048, 2048);

/// Rows of activations.
const ROWS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 512];

/// The time of the chosen engine in units of the best that is not worth a mark.
const TOLERATED: f64 = 1.1;

/// How long all engines of a case are measured, if each was at least so often.
const BUDGET: Duration = Duration::from_millis(60);
const ROUNDS: usize = 3;

/// One engine more than this factor slower in the first round is not measured again.
const HOPELESS: f64 = 2.0;

/// Formats that decode in different ways.
const FORMATS: [&str; 8] =
    ["nf4-64", "affine4-64", "mxfp4", "int8-row", "affine3-64", "ternary-row", "bf16", "affine8-64"];

/// Runs all cases whose name contains `filter`.
pub(super) fn run(filter: &str) {
    let weights = FORMATS.map(|name| Stored::new(named(name), SIZES, 1));
    let (n, k) = SIZES;
    let most = ROWS.into_iter().max().unwrap_or_default();
    let x: Vec<f32> = (0..most * n.max(k)).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut y = vec![0.0_f32; most * n.max(k)];
    let mut tally = Tally::default();
    println!(
        "{:<34} {:<30} {:<30} {:>6}   all: microseconds (expected kilocycles)",
        "case", "chosen", "fastest", "ratio"
    );
    for isa in Isa::available().into_iter().filter(|&isa| isa != Isa::Scalar) {
        isa.with(|| {
            let machine = &Machine::detect();
            for weight in &weights {
                let matrix = &weight.matrix();
                for m in ROWS {
                    let (x, y) = (&x[..m * k], &mut y[..m * n]);
                    for (orientation, way) in [(Orientation::Transposed, "x W^T"), (Orientation::Plain, "x W")] {
                        let case = format!("{isa:?}/{}/m{m} {way}", weight.format.name);
                        tally.measure(filter, &case, &choice::of_matmul(machine, x, m, matrix, orientation), || {
                            matmul(x, m, matrix, orientation, &mut *y).unwrap();
                        });
                    }
                    let candidates = choice::of_int8_matmul(machine, m, matrix);
                    if !candidates.is_empty() {
                        let case = format!("{isa:?}/{}/int8 m{m} x W^T", weight.format.name);
                        tally.measure(filter, &case, &candidates, || {
                            int8_matmul(x, m, matrix, Orientation::Transposed, &mut *y).unwrap();
                        });
                    }
                }
            }
            let plain = |rows| Operand {
                matrix: Dense { values: &x[..rows * k], rows, columns: k, stride: k },
                orientation: Orientation::Plain,
            };
            let columns = n.min(most);
            let w = plain(columns).transposed();
            for m in ROWS {
                let x = plain(m);
                tally.measure(
                    filter,
                    &format!("{isa:?}/dense/m{m} x W^T"),
                    &choice::of_dense_matmul(machine, x, w),
                    || {
                        let out = Dense { values: &mut y[..m * columns], rows: m, columns, stride: columns };
                        dense_matmul(x, w, out, Factors::default()).unwrap();
                    },
                );
            }
        });
    }
    println!("{} cases, {} beyond {TOLERATED}, the worst {:.2}", tally.cases, tally.marked, tally.worst);
}

#[derive(Default)]
struct Tally {
    cases: usize,
    marked: usize,
    worst: f64,
}

impl Tally {
    /// Measures a product on its candidates, of which the first is the one that is chosen.
    fn measure(&mut self, filter: &str, case: &str, candidates: &[Candidate], mut product: impl FnMut()) {
        if !case.contains(filter) || candidates.len() < 2 {
            return;
        }
        let mut least = vec![f64::INFINITY; candidates.len()];
        let begin = Instant::now();
        let mut round = 0;
        while round < ROUNDS || begin.elapsed() < BUDGET {
            let best = least.iter().copied().fold(f64::INFINITY, f64::min);
            for (candidate, least) in candidates.iter().zip(&mut least) {
                if round > 1 && *least > HOPELESS * best {
                    continue;
                }
                choice::with_only(&candidate.names, || {
                    let start = Instant::now();
                    product();
                    *least = least.min(start.elapsed().as_secs_f64());
                });
            }
            round += 1;
        }
        let name = |i: usize| candidates[i].names.join(": ");
        let fastest = (0..least.len()).min_by(|&a, &b| least[a].total_cmp(&least[b])).unwrap_or_default();
        let ratio = least[0] / least[fastest];
        self.cases += 1;
        self.worst = self.worst.max(ratio);
        self.marked += usize::from(ratio > TOLERATED);
        let mark = if ratio > TOLERATED { '!' } else { ' ' };
        let all: Vec<String> = (0..least.len())
            .map(|i| format!("{} {:.0} ({:.0})", name(i), 1e6 * least[i], candidates[i].cycles / 1e3))
            .collect();
        println!("{case:<34} {:<30} {:<30} {ratio:>6.2} {mark} {}", name(0), name(fastest), all.join(", "));
    }
}
