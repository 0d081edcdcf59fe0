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
use crate::{amx, int8_rows, vnni};
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

    /// The engines for products of integers.
    const ENGINES: &'a [Engine<Self, Self::Work>] = &[
        #[cfg(target_arch = "x86_64")]
        Engine {
            name: "rows of bytes",
            needs: vnni::is_there,
            takes: int8_rows::takes::<64>,
            cost: int8_rows::cost::<64>,
            run: int8_rows::multiply::<64>,
        },
        #[cfg(target_arch = "x86_64")]
        Engine {
            name: "rows of bytes",
            needs: |machine| !matches!(machine.isa, Isa::Scalar | Isa::Neon) && !vnni::is_there(machine),
            takes: int8_rows::takes::<32>,
            cost: int8_rows::cost::<32>,
            run: int8_rows::multiply::<32>,
        },
        #[cfg(target_arch = "x86_64")]
        Engine {
            name: "tiles of bytes",
            needs: |machine| machine.isa == Isa::Amx && vnni::is_there(machine),
            takes: |product| vnni::takes(product) && vnni::is_whole_tiles(product),
            cost: vnni::tiles_cost,
            run: vnni::multiply::<true>,
        },
        #[cfg(target_arch = "x86_64")]
        Engine {
            name: "packed bytes",
            needs: vnni::is_there,
            takes: vnni::takes,
            cost: vnni::cost,
            run: vnni::multiply::<false>,
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
