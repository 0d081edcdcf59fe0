//! The engines: every way in which a product is taken, what of the machine it needs, and which products it takes.
//!
//! Nothing else chooses a product by the instruction set, and every number of rows at which a choice turns stands here. An
//! engine for a new instruction set is its file and its line in one of the tables.

use std::ops::RangeInclusive;

#[cfg(target_arch = "x86_64")]
use crate::{
    Codes, Orientation, amx, by_words,
    simd::{has_dot, has_vnni},
    vnni,
};
use crate::{
    Isa, by_lanes,
    integers::{self, IntegerProduct},
    output::Output,
    stored::{self, StoredProduct},
    tile::{self, Product},
};

/// One way in which products of a kind are taken.
pub(crate) struct Engine<P> {
    /// Whether an instruction set, and the machine that has it, are what the engine is written for.
    needs: fn(Isa) -> bool,
    /// The rows of activations at which it is the fastest.
    rows: RangeInclusive<usize>,
    /// Whether a product is of a form that it takes.
    takes: fn(&P) -> bool,
    /// Writes rows of the product, from the first, and says how many: fewer than all of them where the numbers in the next
    /// ones do not fit, which leaves those to the next engine.
    run: fn(&P, Isa, &mut Output<f32>) -> usize,
}

/// Any number of rows.
const ALL: RangeInclusive<usize> = 1..=usize::MAX;

impl<'a> StoredProduct<'a> {
    /// The most rows that are multiplied with codes as they lie.
    pub(crate) const FEW: usize = 8;

    /// From codes; products that none takes are those of floats with panels of the matrix.
    pub(crate) const ENGINES: &'a [Engine<Self>] = &[
        // The portable reference reads no words.
        Engine {
            needs: |isa| isa != Isa::Scalar,
            rows: 1..=Self::FEW,
            takes: by_lanes::takes,
            run: by_lanes::multiply,
        },
        Engine { needs: |_| true, rows: 1..=Self::FEW, takes: |_| true, run: stored::multiply },
        // Nothing is made of codes that are `bf16` numbers but tiles.
        #[cfg(target_arch = "x86_64")]
        Engine {
            needs: |isa| isa == Isa::Amx,
            rows: 16..=usize::MAX,
            takes: |product| {
                let is_bf16 = matches!(product.matrix.codes, Codes::Bf16 { .. });
                is_bf16 && product.orientation == Orientation::Transposed && amx::codes::takes(product, 1)
            },
            run: amx::codes::multiply,
        },
        // Where there are more rows, panels serve more of them each time they are made.
        #[cfg(target_arch = "x86_64")]
        Engine {
            needs: |isa| isa == Isa::Amx,
            rows: 16..=192,
            takes: |product| product.orientation == Orientation::Transposed && amx::codes::takes(product, 1),
            run: amx::codes::multiply,
        },
        #[cfg(target_arch = "x86_64")]
        Engine {
            needs: |isa| isa == Isa::Amx,
            rows: 16..=96,
            takes: |product| product.orientation == Orientation::Transposed && amx::codes::takes(product, amx::PIECES),
            run: amx::codes::multiply,
        },
    ];
}

impl<'a> Product<'a> {
    /// With panels of floats.
    pub(crate) const ENGINES: &'a [Engine<Self>] = &[
        // Fewer rows are not worth splitting panels.
        #[cfg(target_arch = "x86_64")]
        Engine { needs: |isa| isa == Isa::Amx, rows: 56..=usize::MAX, takes: |_| true, run: amx::panels::multiply },
        Engine { needs: |_| true, rows: ALL, takes: |_| true, run: tile::multiply },
    ];
}

impl<'a> IntegerProduct<'a> {
    /// Of integers.
    pub(crate) const ENGINES: &'a [Engine<Self>] = &[
        #[cfg(target_arch = "x86_64")]
        Engine {
            needs: |isa| matches!(isa, Isa::Avx512 | Isa::Amx) && vnni::is_available(),
            rows: 1..=1,
            takes: vnni::rows::takes,
            run: vnni::rows::multiply,
        },
        // More rows are worth a panel.
        #[cfg(target_arch = "x86_64")]
        Engine { needs: has_vnni, rows: 1..=8, takes: by_words::takes, run: by_words::multiply },
        #[cfg(target_arch = "x86_64")]
        Engine {
            needs: |isa| isa == Isa::Amx && vnni::is_available(),
            rows: 8..=usize::MAX,
            takes: |product| vnni::takes(product) && vnni::is_whole_tiles(product),
            run: vnni::multiply_tiles,
        },
        #[cfg(target_arch = "x86_64")]
        Engine {
            needs: |isa| matches!(isa, Isa::Avx512 | Isa::Amx) && vnni::is_available(),
            rows: ALL,
            takes: vnni::takes,
            run: vnni::multiply,
        },
        #[cfg(target_arch = "x86_64")]
        Engine { needs: has_dot, rows: ALL, takes: by_words::takes, run: by_words::multiply },
        Engine { needs: |_| true, rows: ALL, takes: |_| true, run: integers::multiply },
    ];
}

/// Lets the first engine of a table that can take the product; gives the rows that are written.
pub(crate) fn run<P>(engines: &[Engine<P>], isa: Isa, product: &P, out: &mut Output<f32>) -> usize {
    let rows = out.rows();
    let fits = |engine: &&Engine<P>| (engine.needs)(isa) && engine.rows.contains(&rows) && (engine.takes)(product);
    engines.iter().filter(fits).map(|engine| (engine.run)(product, isa, out)).find(|done| *done > 0).unwrap_or(0)
}

/// Computes all of a product of floats, which has rows and columns.
pub(crate) fn multiply(product: &Product, isa: Isa, out: &mut Output<f32>) {
    let mut done = 0;
    while done < out.rows() {
        let left = out.rows() - done;
        let rest = Product { x: product.x.rows_from(done), ..*product };
        done += run(Product::ENGINES, isa, &rest, &mut out.rows_from(done, left));
    }
}
