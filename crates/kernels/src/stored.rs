//! Products with few rows of activations, read where the codes are stored, or decoded a part of a row at a time.

use crate::{
    Isa, Matrix, Orientation,
    by_columns::{ByColumns, MAX_COLUMNS, Step},
    by_rows::{Arrange, ByRows},
    codec::{Codec, Job, dispatch},
    decode::Parts,
    output::Output,
    simd::run,
    threads,
    tile::TASK_COLUMNS,
    unit::{Decode, Decoded, Layout, Units},
};

/// A product with a stored matrix, whose lengths were checked, none of them 0.
pub(crate) struct StoredProduct<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) m: usize,
    pub(crate) matrix: &'a Matrix<'a>,
    pub(crate) orientation: Orientation,
    pub(crate) threads: usize,
}

/// Computes all of the product.
pub(crate) fn multiply(product: &StoredProduct, isa: Isa, out: &mut Output<f32>) -> usize {
    dispatch(isa, product.matrix.codes, Multiply { product, isa, out });
    product.m
}

/// The same with rows that begin anywhere in a matrix, from element `first`; `product.matrix` has their number, and the
/// codes and scales of all.
pub(crate) fn multiply_from(product: &StoredProduct, first: usize, isa: Isa, out: &mut Output<f32>) {
    struct From<'a, 'o>(Multiply<'a, 'o>, usize);
    impl Job for From<'_, '_> {
        type Output = ();
        fn run<C: Codec>(self, codes: C) {
            let Self(mut multiply, first) = self;
            let parts = Parts { matrix: multiply.product.matrix, codes };
            let done = multiply.by_units(Decoded(&Shifted { parts: &parts, first }));
            debug_assert!(done, "floats fit every matrix");
        }
    }
    dispatch(isa, product.matrix.codes, From(Multiply { product, isa, out }, first));
}

/// Elements counted from one of a matrix.
struct Shifted<'a> {
    parts: &'a dyn Decode,
    first: usize,
}

impl Decode for Shifted<'_> {
    fn decode(&self, isa: Isa, start: usize, out: &mut [f32], ahead: usize) {
        self.parts.decode(isa, self.first + start, out, ahead);
    }
}

struct Multiply<'a, 'o> {
    product: &'a StoredProduct<'a>,
    isa: Isa,
    out: &'a mut Output<'o, f32>,
}

impl Job for Multiply<'_, '_> {
    type Output = ();

    fn run<C: Codec>(mut self, codes: C) {
        let &StoredProduct { x, matrix, .. } = self.product;
        // The sum with the codes and the one with the biases of a block could be opposite infinities.
        let apart = matrix.biases.is_none() || x.iter().all(|x| x.is_finite());
        let stored = apart && codes.stored().is_some_and(|units| self.by_units(units));
        // Floats fit every matrix.
        let done = stored || self.by_units(Decoded(&Parts { matrix, codes }));
        debug_assert!(done, "a matrix that no kernel takes");
    }
}

impl Multiply<'_, '_> {
    /// Computes the product and says so, if rows are whole bytes, and rows and blocks whole spans of these units.
    fn by_units<U: Units>(&mut self, units: U) -> bool {
        let Self { isa, product, .. } = *self;
        let &StoredProduct { x, m, matrix, orientation, threads } = product;
        if !(matrix.k * U::BITS).is_multiple_of(8) {
            return false;
        }
        let layout = &Layout::of(units);
        let width = |step: usize, most: usize| threads::share(self.out.columns(), threads, step, most);
        match orientation {
            Orientation::Transposed => {
                let Some(x) = &run(isa, Arrange { x, m, matrix, layout }) else { return false };
                let width = width(16, TASK_COLUMNS);
                self.out.for_each(threads, m, width, &|out| run(isa, ByRows { isa, x, matrix, units, out }));
            }
            Orientation::Plain => {
                let Some(step) = run(isa, Step(matrix, layout)) else { return false };
                let width = width(step, MAX_COLUMNS);
                self.out.for_each(threads, m, width, &|out| {
                    run(isa, ByColumns { isa, x, matrix, units, layout, out });
                });
            }
        }
        true
    }
}
