//! The engines: every way in which a product is taken, what of the machine it needs, which products it takes, and what they
//! cost it.
//!
//! Nothing else chooses a product by the instruction set or by the number of rows. The engine that is cheapest by its own
//! account takes a product: an engine for a new instruction set is its file, with its cost beside its loop, and its line in
//! one of the tables.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::int8_lanes;
use crate::{
    Isa,
    engine::{Engine, Priced, cheapest},
    gemm::{self, PackedWork, Product},
    gemm_stored, gemv_lanes,
    integers::{self, IntegerProduct},
    machine::Machine,
    shape::Shape,
    stored::{self, StoredProduct},
};
#[cfg(target_arch = "x86_64")]
use crate::{amx, vnni};
#[cfg(target_arch = "aarch64")]
use crate::{int8_squares, simd::ByteSums};

/// The engine that leaves its product to one that packs.
pub(crate) const PACKED: &str = "packed";

impl<'a> Priced<'a> for StoredProduct<'a> {
    type Work = stored::Work;

    /// From codes.
    const ENGINES: &'a [Engine<Self, Self::Work>] = &[
        // The portable reference reads no words.
        Engine {
            name: "lanes",
            needs: |machine| machine.isa != Isa::Scalar,
            takes: gemv_lanes::takes,
            cost: gemv_lanes::cost,
            run: gemv_lanes::multiply,
        },
        Engine { name: "gemv", needs: |_| true, takes: |_| true, cost: stored::cost, run: stored::multiply },
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
            name: PACKED,
            needs: |_| true,
            takes: |_| true,
            cost: |work, machine| cheapest::<Product>(&work.packed, machine),
            run: gemm_stored::multiply,
        },
    ];

    fn work(&self, columns: usize, machine: &Machine) -> stored::Work {
        stored::Work::new(self, columns, machine)
    }
}

impl<'a> Priced<'a> for Product<'a> {
    type Work = PackedWork;

    /// With panels of floats.
    const ENGINES: &'a [Engine<Self, Self::Work>] = &[
        #[cfg(target_arch = "x86_64")]
        Engine {
            name: "split packed",
            needs: |machine| machine.isa == Isa::Amx,
            takes: |_| true,
            cost: amx::gemm::cost,
            run: amx::gemm::multiply,
        },
        Engine { name: "fused packed", needs: |_| true, takes: |_| true, cost: gemm::cost, run: gemm::multiply },
    ];

    fn work(&self, columns: usize, machine: &Machine) -> PackedWork {
        let shape = Shape { rows: self.x.rows(), columns, depth: self.x.columns() };
        PackedWork { shape, panel: self.panels.cycles(machine) }
    }
}

impl<'a> Priced<'a> for IntegerProduct<'a> {
    type Work = integers::Work;

    /// Of integers.
    const ENGINES: &'a [Engine<Self, Self::Work>] = &[
        #[cfg(target_arch = "x86_64")]
        Engine {
            name: "rows of bytes",
            needs: vnni::is_there,
            takes: vnni::rows::takes,
            cost: vnni::rows::cost,
            run: vnni::rows::multiply,
        },
        #[cfg(target_arch = "x86_64")]
        Engine {
            name: "tiles of bytes",
            needs: |machine| machine.isa == Isa::Amx && vnni::is_there(machine),
            takes: |product| vnni::takes(product) && vnni::is_whole_tiles(product),
            cost: vnni::tiles_cost,
            run: vnni::multiply_tiles,
        },
        #[cfg(target_arch = "x86_64")]
        Engine {
            name: "packed bytes",
            needs: vnni::is_there,
            takes: vnni::takes,
            cost: vnni::cost,
            run: vnni::multiply,
        },
        #[cfg(target_arch = "aarch64")]
        Engine {
            name: "squares of bytes",
            needs: |machine| machine.byte_sums >= ByteSums::Squares,
            takes: int8_squares::takes,
            cost: int8_squares::cost,
            run: int8_squares::multiply,
        },
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        Engine {
            name: "lanes of bytes",
            needs: |machine| machine.isa != Isa::Scalar,
            takes: int8_lanes::takes,
            cost: int8_lanes::cost,
            run: int8_lanes::multiply,
        },
        Engine { name: "integers", needs: |_| true, takes: |_| true, cost: integers::cost, run: integers::multiply },
    ];

    fn work(&self, columns: usize, _: &Machine) -> integers::Work {
        integers::Work::new(self, columns)
    }
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use std::fmt::Write;

    use expect_test::{Expect, expect};

    use super::*;
    use crate::Orientation;
    use crate::{
        Codes, Matrix, Order, Scales,
        engine::{candidates, costs},
        nf4,
        simd::ByteSums,
    };

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
                    let packed = product.work(SIDE, machine).packed;
                    match cheapest_of(candidates(&product, SIDE, machine)) {
                        PACKED => cheapest_of(
                            costs::<Product>(&packed, machine).map(|(_, engine, cost)| (engine.name, cost)).collect(),
                        ),
                        name => name,
                    }
                });
                writeln!(text, "{name} {way}: {}", runs(&ROWS, &chosen)).unwrap();
            }
            if let Ok(weights) = &integers::Weights::new(matrix) {
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

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn five_machines_choose_by_what_they_have() {
        check(
            &Machine::new(Isa::Amx, ByteSums::Fours, 2 << 20),
            &expect![[r#"
                nf4 x W^T: from 1 gemv, from 16 fused packed, from 32 tiles of codes, from 512 split packed
                nf4 x W: from 1 gemv, from 4 fused packed, from 64 split packed
                nf4 in 8 bits: from 1 rows of bytes, from 2 lanes of bytes, from 32 tiles of bytes
                affine4 x W^T: from 1 gemv, from 16 fused packed, from 32 tiles of codes, from 512 split packed
                affine4 x W: from 1 gemv, from 2 fused packed, from 64 split packed
                affine4 in 8 bits: from 1 rows of bytes, from 2 lanes of bytes, from 32 tiles of bytes
                affine3 x W^T: from 1 gemv, from 64 split packed
                affine3 x W: from 1 gemv, from 4 fused packed, from 64 split packed
                int8 x W^T: from 1 gemv, from 16 tiles of codes
                int8 x W: from 1 gemv, from 4 fused packed, from 64 split packed
                int8 in 8 bits: from 1 rows of bytes, from 2 lanes of bytes, from 32 tiles of bytes
            "#]],
        );
        check(
            &Machine::new(Isa::Avx512, ByteSums::Fours, 1 << 20),
            &expect![[r#"
                nf4 x W^T: from 1 gemv, from 16 fused packed
                nf4 x W: from 1 gemv, from 4 fused packed
                nf4 in 8 bits: from 1 rows of bytes, from 2 lanes of bytes, from 32 packed bytes
                affine4 x W^T: from 1 gemv, from 16 fused packed
                affine4 x W: from 1 gemv, from 2 fused packed
                affine4 in 8 bits: from 1 rows of bytes, from 2 lanes of bytes, from 32 packed bytes
                affine3 x W^T: from 1 gemv, from 64 fused packed
                affine3 x W: from 1 gemv, from 2 fused packed
                int8 x W^T: from 1 gemv, from 16 fused packed
                int8 x W: from 1 gemv, from 4 fused packed
                int8 in 8 bits: from 1 rows of bytes, from 2 lanes of bytes, from 32 packed bytes
            "#]],
        );
        check(
            &Machine::new(Isa::Avx2, ByteSums::Pairs, 256 << 10),
            &expect![[r#"
                nf4 x W^T: from 1 gemv, from 16 fused packed
                nf4 x W: from 1 gemv, from 4 fused packed
                nf4 in 8 bits: from 1 lanes of bytes
                affine4 x W^T: from 1 gemv, from 16 fused packed
                affine4 x W: from 1 gemv, from 2 fused packed
                affine4 in 8 bits: from 1 lanes of bytes
                affine3 x W^T: from 1 gemv, from 32 fused packed
                affine3 x W: from 1 gemv, from 2 fused packed
                int8 x W^T: from 1 gemv, from 16 fused packed
                int8 x W: from 1 gemv, from 4 fused packed
                int8 in 8 bits: from 1 lanes of bytes
            "#]],
        );
        check(
            &Machine::new(Isa::Neon, ByteSums::Pairs, 1 << 20),
            &expect![[r#"
                nf4 x W^T: from 1 gemv, from 16 fused packed
                nf4 x W: from 1 gemv, from 4 fused packed
                nf4 in 8 bits: from 1 lanes of bytes
                affine4 x W^T: from 1 gemv, from 16 fused packed
                affine4 x W: from 1 gemv, from 4 fused packed
                affine4 in 8 bits: from 1 lanes of bytes
                affine3 x W^T: from 1 gemv, from 32 fused packed
                affine3 x W: from 1 gemv, from 2 fused packed
                int8 x W^T: from 1 gemv, from 16 fused packed
                int8 x W: from 1 gemv, from 4 fused packed
                int8 in 8 bits: from 1 lanes of bytes
            "#]],
        );
        check(
            &Machine::new(Isa::Scalar, ByteSums::Pairs, 256 << 10),
            &expect![[r#"
                nf4 x W^T: from 1 gemv, from 16 fused packed
                nf4 x W: from 1 fused packed
                nf4 in 8 bits: from 1 integers
                affine4 x W^T: from 1 gemv, from 16 fused packed
                affine4 x W: from 1 fused packed
                affine4 in 8 bits: from 1 integers
                affine3 x W^T: from 1 gemv, from 16 fused packed
                affine3 x W: from 1 fused packed
                int8 x W^T: from 1 fused packed
                int8 x W: from 1 fused packed
                int8 in 8 bits: from 1 integers
            "#]],
        );
    }

    #[cfg(target_arch = "aarch64")]
    #[test]
    fn arm_machines_choose_by_what_they_have_for_bytes() {
        check(
            &Machine::new(Isa::Neon, ByteSums::Fours, 1 << 20),
            &expect![[r#"
                nf4 x W^T: from 1 gemv, from 16 fused packed
                nf4 x W: from 1 gemv, from 4 fused packed
                nf4 in 8 bits: from 1 lanes of bytes
                affine4 x W^T: from 1 gemv, from 16 fused packed
                affine4 x W: from 1 gemv, from 4 fused packed
                affine4 in 8 bits: from 1 lanes of bytes
                affine3 x W^T: from 1 gemv, from 32 fused packed
                affine3 x W: from 1 gemv, from 2 fused packed
                int8 x W^T: from 1 gemv, from 16 fused packed
                int8 x W: from 1 gemv, from 4 fused packed
                int8 in 8 bits: from 1 lanes of bytes
            "#]],
        );
        check(
            &Machine::new(Isa::Neon, ByteSums::Squares, 1 << 20),
            &expect![[r#"
                nf4 x W^T: from 1 gemv, from 16 fused packed
                nf4 x W: from 1 gemv, from 4 fused packed
                nf4 in 8 bits: from 1 squares of bytes
                affine4 x W^T: from 1 gemv, from 16 fused packed
                affine4 x W: from 1 gemv, from 4 fused packed
                affine4 in 8 bits: from 1 squares of bytes
                affine3 x W^T: from 1 gemv, from 32 fused packed
                affine3 x W: from 1 gemv, from 2 fused packed
                int8 x W^T: from 1 gemv, from 16 fused packed
                int8 x W: from 1 gemv, from 4 fused packed
                int8 in 8 bits: from 1 squares of bytes
            "#]],
        );
    }
}
