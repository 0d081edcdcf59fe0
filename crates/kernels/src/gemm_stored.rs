//! Products with stored matrices whose panels of floats are made from the codes as they are needed.

use crate::{
    Dense, Factors, Isa, Operand, Orientation,
    codec::Codec,
    codec_of::{Job, dispatch},
    decode::Range,
    engine,
    gemm::{PackB, Product},
    output::Output,
    packed_b::StoredB,
    stored::StoredProduct,
    widened::widened,
};

pub(crate) fn multiply(product: &StoredProduct, isa: Isa, out: &mut Output<f32>) -> usize {
    struct Multiply<'a> {
        range: Range<'a, ()>,
        orientation: Orientation,
        then: &'a mut dyn FnMut(&dyn PackB),
    }
    impl Job for Multiply<'_> {
        type Output = ();
        fn run<C: Codec>(self, codes: C) {
            let Range { matrix, scales, biases, first, .. } = self.range;
            let range = Range { matrix, codes, scales, biases, first };
            (self.then)(&StoredB { range, orientation: self.orientation });
        }
    }
    let &StoredProduct { x, m, matrix, orientation, threads, .. } = product;
    let blocks = (matrix.n * matrix.k).div_ceil(matrix.block);
    let scales = widened(isa, &matrix.scales, blocks, threads);
    let biases = matrix.biases.map(|biases| widened(isa, &biases, blocks, threads));
    let range = Range { matrix, codes: (), scales: &scales, biases: biases.as_deref(), first: 0 };
    let depth = x.len() / m;
    let then = &mut |panels: &dyn PackB| {
        let matrix = Dense { values: x, rows: m, columns: depth, stride: depth };
        let x = Operand { matrix, orientation: Orientation::Plain };
        let columns = out.columns();
        engine::multiply(&Product { x, panels, columns, factors: Factors::default(), threads }, isa, out);
    };
    dispatch(isa, matrix.codes, Multiply { range, orientation, then });
    m
}
