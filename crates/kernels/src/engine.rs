//! The engines: every way in which a product is taken, what of the machine it needs, which products it takes, and what they
//! cost it.
//!
//! Nothing else chooses a product by the instruction set or by the number of rows. The engine that is cheapest by its own
//! account takes a product: an engine for a new instruction set is its file, with its cost beside its loop, and its line in
//! one of the tables.
//!
//! A cost is in cycles of one thread that has the machine to itself, whatever the number of threads, so that the choice and
//! with it the bits of the result do not depend on it. What costs every engine the same, such as memory, is left out.

use std::cell::RefCell;

use crate::{
    Isa, by_lanes,
    integers::{self, IntegerProduct},
    machine::Machine,
    matmul,
    output::Output,
    stored::{self, StoredProduct},
    tile::{self, Panelled, Product},
};
#[cfg(target_arch = "x86_64")]
use crate::{amx, by_words, vnni};

/// The number of threads may decide where products of at most so many rows are cut into columns: engines that look at several
/// columns together, to find whether their numbers fit, have no cost for them.
pub(crate) const FEW: usize = 8;

/// One way in which products of a kind are taken.
pub(crate) struct Engine<P, W> {
    pub(crate) name: &'static str,
    /// Whether a machine has what the engine is written for.
    needs: fn(&Machine) -> bool,
    /// Whether a product is of a form that it takes.
    takes: fn(&P) -> bool,
    /// The cycles that a product takes it; infinitely many if the sizes are none for it.
    cost: fn(&W, &Machine) -> f64,
    /// Writes rows of the product, from the first, and says how many: fewer than all of them where the numbers in the next
    /// ones do not fit, which leaves those to the next engine.
    run: fn(&P, Isa, &mut Output<f32>) -> usize,
}

/// A product whose engines state their costs.
pub(crate) trait Priced<'a>: Sized + 'a {
    /// What of the product the costs depend on.
    type Work: 'a;
    /// All engines that take such products.
    const ENGINES: &'a [Engine<Self, Self::Work>];

    /// Of a product with so many columns.
    fn work(&self, columns: usize, machine: &Machine) -> Self::Work;
}

/// The sizes of a product: rows of activations, columns of the output, and terms of each sum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) depth: usize,
}

impl Shape {
    /// The vectors of as many floats as the matrix has.
    pub(crate) fn vectors(&self, machine: &Machine) -> f64 {
        self.columns as f64 * self.depth as f64 / machine.cycles.lanes
    }

    /// The sum of what groups of eight rows cost, of which a last one has 1, 2, 4 or 8.
    pub(crate) fn by_eights(&self, cost: impl Fn(f64) -> f64) -> f64 {
        let rest = if self.rows.is_multiple_of(8) { 0.0 } else { cost((self.rows % 8).next_power_of_two() as f64) };
        (self.rows / 8) as f64 * cost(8.0) + rest
    }

    /// The sum of what groups of up to four rows cost, for loops that go through the matrix once for each.
    pub(crate) fn by_fours(&self, cost: impl Fn(f64) -> f64) -> f64 {
        let rest = match self.rows % 4 {
            0 => 0.0,
            3 => cost(2.0) + cost(1.0),
            rest => cost(rest as f64),
        };
        (self.rows / 4) as f64 * cost(4.0) + rest
    }
}

/// The engine that leaves its product to one for panels.
pub(crate) const PANELS: &str = "panels";

impl<'a> Priced<'a> for StoredProduct<'a> {
    type Work = stored::Work;

    /// From codes.
    const ENGINES: &'a [Engine<Self, Self::Work>] = &[
        // The portable reference reads no words.
        Engine {
            name: "lanes",
            needs: |machine| machine.isa != Isa::Scalar,
            takes: by_lanes::takes,
            cost: by_lanes::cost,
            run: by_lanes::multiply,
        },
        Engine { name: "stored", needs: |_| true, takes: |_| true, cost: stored::cost, run: stored::multiply },
        #[cfg(target_arch = "x86_64")]
        Engine {
            name: "tiles of codes",
            needs: |machine| machine.isa == Isa::Amx,
            takes: amx::codes::takes,
            cost: amx::codes::cost,
            run: amx::codes::multiply,
        },
        // With panels of floats, as whichever engine for these is cheapest.
        Engine {
            name: PANELS,
            needs: |_| true,
            takes: |_| true,
            cost: |work, machine| cheapest::<Product>(&work.panelled, machine),
            run: matmul::by_panels,
        },
    ];

    fn work(&self, columns: usize, machine: &Machine) -> stored::Work {
        stored::Work::new(self, columns, machine)
    }
}

impl<'a> Priced<'a> for Product<'a> {
    type Work = Panelled;

    /// With panels of floats.
    const ENGINES: &'a [Engine<Self, Self::Work>] = &[
        #[cfg(target_arch = "x86_64")]
        Engine {
            name: "split panels",
            needs: |machine| machine.isa == Isa::Amx,
            takes: |_| true,
            cost: amx::panels::cost,
            run: amx::panels::multiply,
        },
        Engine { name: "fused panels", needs: |_| true, takes: |_| true, cost: tile::cost, run: tile::multiply },
    ];

    fn work(&self, columns: usize, machine: &Machine) -> Panelled {
        let shape = Shape { rows: self.x.rows(), columns, depth: self.x.columns() };
        Panelled { shape, panel: self.panels.cycles(machine) }
    }
}

impl<'a> Priced<'a> for IntegerProduct<'a> {
    type Work = integers::Work;

    /// Of integers.
    const ENGINES: &'a [Engine<Self, Self::Work>] = &[
        #[cfg(target_arch = "x86_64")]
        Engine {
            name: "rows of bytes",
            needs: |machine| machine.vnni,
            takes: vnni::rows::takes,
            cost: vnni::rows::cost,
            run: vnni::rows::multiply,
        },
        #[cfg(target_arch = "x86_64")]
        Engine {
            name: "tiles of bytes",
            needs: |machine| machine.isa == Isa::Amx && machine.vnni,
            takes: |product| vnni::takes(product) && vnni::is_whole_tiles(product),
            cost: vnni::tiles_cost,
            run: vnni::multiply_tiles,
        },
        #[cfg(target_arch = "x86_64")]
        Engine {
            name: "panels of bytes",
            needs: |machine| machine.vnni,
            takes: vnni::takes,
            cost: vnni::cost,
            run: vnni::multiply,
        },
        #[cfg(target_arch = "x86_64")]
        Engine {
            name: "words",
            needs: |machine| matches!(machine.isa, Isa::Avx2 | Isa::Avx512 | Isa::Amx),
            takes: by_words::takes,
            cost: by_words::cost,
            run: by_words::multiply,
        },
        Engine { name: "integers", needs: |_| true, takes: |_| true, cost: integers::cost, run: integers::multiply },
    ];

    fn work(&self, columns: usize, _: &Machine) -> integers::Work {
        integers::Work::new(self, columns)
    }
}

/// Lets the cheapest engine that can take the product; gives the rows that are written, at least one.
pub(crate) fn run<'a, P: Priced<'a>>(isa: Isa, product: &P, out: &mut Output<f32>) -> usize {
    let machine = &Machine::of(isa);
    let work = product.work(out.columns(), machine);
    // One bit for each engine that was tried.
    let mut tried = 0_u32;
    loop {
        let untried = costs::<P>(&work, machine).filter(|(i, ..)| tried & 1 << i == 0);
        let Some((i, engine, _)) = untried.min_by(|(.., a), (.., b)| a.total_cmp(b)) else { return 0 };
        tried |= 1 << i;
        // Last, as it may look at the numbers.
        if (engine.takes)(product) {
            let done = (engine.run)(product, isa, out);
            if done > 0 {
                return done;
            }
        }
    }
}

/// The engines that the machine has, each with its place in the table and what it costs.
pub(crate) fn costs<'a, P: Priced<'a>>(
    work: &P::Work,
    machine: &Machine,
) -> impl Iterator<Item = (usize, &'a Engine<P, P::Work>, f64)> {
    let engines = P::ENGINES.iter().enumerate();
    let engines = engines.filter(|(_, engine)| (engine.needs)(machine) && is_allowed(P::ENGINES, engine));
    let costs = engines.map(|(i, engine)| (i, engine, (engine.cost)(work, machine)));
    costs.filter(|(.., cost)| cost.is_finite())
}

/// What the cheapest engine that the machine has costs.
fn cheapest<'a, P: Priced<'a>>(work: &P::Work, machine: &Machine) -> f64 {
    costs::<P>(work, machine).map(|(.., cost)| cost).fold(f64::INFINITY, f64::min)
}

/// The engines that can take a product, and what they cost.
pub(crate) fn candidates<'a, P: Priced<'a>>(
    product: &P,
    columns: usize,
    machine: &Machine,
) -> Vec<(&'static str, f64)> {
    let work = product.work(columns, machine);
    let able = costs::<P>(&work, machine).filter(|(_, engine, _)| (engine.takes)(product));
    able.map(|(_, engine, cost)| (engine.name, cost)).collect()
}

/// The cycles of a product with so many columns.
pub(crate) fn cost<'a, P: Priced<'a>>(isa: Isa, product: &P, columns: usize) -> f64 {
    let machine = &Machine::of(isa);
    cheapest::<P>(&product.work(columns, machine), machine)
}

/// Computes all of a product of floats, which has rows and columns.
pub(crate) fn multiply(product: &Product, isa: Isa, out: &mut Output<f32>) {
    let mut done = 0;
    while done < out.rows() {
        let left = out.rows() - done;
        let rest = Product { x: product.x.rows_from(done), ..*product };
        done += run(isa, &rest, &mut out.rows_from(done, left));
    }
}

thread_local! {
    static ONLY: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f`, in which engines of these names take what they can, where a table has one of them.
///
/// Products that this thread starts, and no others. For measurements.
pub fn with_only<R>(names: &[&'static str], f: impl FnOnce() -> R) -> R {
    struct Restore(Vec<&'static str>);
    impl Drop for Restore {
        fn drop(&mut self) {
            ONLY.set(std::mem::take(&mut self.0));
        }
    }
    let _restore = Restore(ONLY.replace(names.to_vec()));
    f()
}

/// Whether an engine of a table is not passed over by [`with_only`].
fn is_allowed<P, W>(engines: &[Engine<P, W>], engine: &Engine<P, W>) -> bool {
    ONLY.with_borrow(|only| {
        only.is_empty() || only.contains(&engine.name) || !engines.iter().any(|engine| only.contains(&engine.name))
    })
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::fmt::Write;

    use expect_test::{Expect, expect};

    use super::*;
    use crate::{Codes, Matrix, Order, Orientation, Scales, nf4};

    /// Which engine takes each kind of product of a matrix of 4096 rows and columns on a machine.
    fn check(machine: &Machine, expected: &Expect) {
        const SIDE: usize = 4096;
        const ROWS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 512];
        let (bytes, scales) = (vec![0; SIDE * SIDE], vec![0.0; SIDE * SIDE / 64]);
        let signed = vec![0; SIDE * SIDE];
        let nf4 = Codes::Table { bytes: &bytes, bits: 4, order: Order::HighFirst, values: &nf4::CODEBOOK };
        let formats = [
            ("nf4", nf4, 64),
            ("affine4", Codes::Unsigned { bytes: &bytes, bits: 4 }, 64),
            ("affine3", Codes::Unsigned { bytes: &bytes, bits: 3 }, 64),
            ("int8", Codes::Signed { codes: &signed }, SIDE),
        ];
        let x = vec![0.0; 512 * SIDE];
        let mut text = String::new();
        for (name, codes, block) in formats {
            let biases = matches!(codes, Codes::Unsigned { .. }).then_some(Scales::F32(&scales));
            let matrix = &Matrix { n: SIDE, k: SIDE, codes, scales: Scales::F32(&scales), biases, block };
            for (orientation, way) in [(Orientation::Transposed, "x W^T"), (Orientation::Plain, "x W")] {
                let chosen = ROWS.map(|m| {
                    let x = &x[..m * SIDE];
                    let product = StoredProduct { x, m, matrix, orientation, threads: 1, cut_from: None };
                    let panelled = product.work(SIDE, machine).panelled;
                    match cheapest_of(candidates(&product, SIDE, machine)) {
                        PANELS => cheapest_of(
                            costs::<Product>(&panelled, machine).map(|(_, engine, cost)| (engine.name, cost)).collect(),
                        ),
                        name => name,
                    }
                });
                writeln!(text, "{name} {way}: {}", runs(&ROWS, &chosen)).unwrap();
            }
            if let (Ok(weights), None) = (&integers::Weights::new(&codes), biases) {
                let chosen = ROWS.map(|m| {
                    let rows = &integers::Rows { codes: Vec::new(), units: vec![1.0; m] };
                    let product = IntegerProduct { rows, matrix, weights, threads: 1 };
                    cheapest_of(candidates(&product, SIDE, machine))
                });
                writeln!(text, "{name} in 8 bits: {}", runs(&ROWS, &chosen)).unwrap();
            }
        }
        expected.assert_eq(&text);
    }

    fn cheapest_of(candidates: Vec<(&'static str, f64)>) -> &'static str {
        candidates.into_iter().min_by(|(_, a), (_, b)| a.total_cmp(b)).map_or("none", |(name, _)| name)
    }

    /// The engines in turn, each with the first number of rows that it takes.
    fn runs(rows: &[usize], chosen: &[&str]) -> String {
        let starts = (0..rows.len()).filter(|&i| i == 0 || chosen[i] != chosen[i - 1]);
        starts.map(|i| format!("from {} {}", rows[i], chosen[i])).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn five_machines_choose_by_what_they_have() {
        check(
            &Machine::new(Isa::Amx, true, 2 << 20),
            &expect![[r#"
                nf4 x W^T: from 1 stored, from 16 fused panels, from 32 tiles of codes, from 512 split panels
                nf4 x W: from 1 stored, from 4 fused panels, from 64 split panels
                nf4 in 8 bits: from 1 rows of bytes, from 2 words, from 32 tiles of bytes
                affine4 x W^T: from 1 stored, from 16 fused panels, from 32 tiles of codes, from 512 split panels
                affine4 x W: from 1 stored, from 2 fused panels, from 64 split panels
                affine3 x W^T: from 1 stored, from 64 split panels
                affine3 x W: from 1 stored, from 4 fused panels, from 64 split panels
                int8 x W^T: from 1 stored, from 16 tiles of codes
                int8 x W: from 1 stored, from 4 fused panels, from 64 split panels
                int8 in 8 bits: from 1 rows of bytes, from 2 words, from 32 tiles of bytes
            "#]],
        );
        check(
            &Machine::new(Isa::Avx512, true, 1 << 20),
            &expect![[r#"
                nf4 x W^T: from 1 stored, from 16 fused panels
                nf4 x W: from 1 stored, from 4 fused panels
                nf4 in 8 bits: from 1 rows of bytes, from 2 words, from 32 panels of bytes
                affine4 x W^T: from 1 stored, from 16 fused panels
                affine4 x W: from 1 stored, from 2 fused panels
                affine3 x W^T: from 1 stored, from 64 fused panels
                affine3 x W: from 1 stored, from 2 fused panels
                int8 x W^T: from 1 stored, from 16 fused panels
                int8 x W: from 1 stored, from 4 fused panels
                int8 in 8 bits: from 1 rows of bytes, from 2 words, from 32 panels of bytes
            "#]],
        );
        check(
            &Machine::new(Isa::Avx2, false, 256 << 10),
            &expect![[r#"
                nf4 x W^T: from 1 stored, from 16 fused panels
                nf4 x W: from 1 stored, from 4 fused panels
                nf4 in 8 bits: from 1 words
                affine4 x W^T: from 1 stored, from 16 fused panels
                affine4 x W: from 1 stored, from 2 fused panels
                affine3 x W^T: from 1 stored, from 32 fused panels
                affine3 x W: from 1 stored, from 2 fused panels
                int8 x W^T: from 1 stored, from 16 fused panels
                int8 x W: from 1 stored, from 4 fused panels
                int8 in 8 bits: from 1 words
            "#]],
        );
        check(
            &Machine::new(Isa::Neon, false, 1 << 20),
            &expect![[r#"
                nf4 x W^T: from 1 stored, from 16 fused panels
                nf4 x W: from 1 stored, from 4 fused panels
                nf4 in 8 bits: from 1 integers
                affine4 x W^T: from 1 stored, from 16 fused panels
                affine4 x W: from 1 stored, from 4 fused panels
                affine3 x W^T: from 1 stored, from 32 fused panels
                affine3 x W: from 1 stored, from 2 fused panels
                int8 x W^T: from 1 stored, from 16 fused panels
                int8 x W: from 1 stored, from 4 fused panels
                int8 in 8 bits: from 1 integers
            "#]],
        );
        check(
            &Machine::new(Isa::Scalar, false, 256 << 10),
            &expect![[r#"
                nf4 x W^T: from 1 stored, from 16 fused panels
                nf4 x W: from 1 fused panels
                nf4 in 8 bits: from 1 integers
                affine4 x W^T: from 1 stored, from 16 fused panels
                affine4 x W: from 1 fused panels
                affine3 x W^T: from 1 stored, from 16 fused panels
                affine3 x W: from 1 fused panels
                int8 x W^T: from 1 fused panels
                int8 x W: from 1 fused panels
                int8 in 8 bits: from 1 integers
            "#]],
        );
    }
}
