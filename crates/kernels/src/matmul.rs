//! Products of dense activations with a stored matrix.

use crate::{
    Dense, Factors, Floats, FloatsMut, Isa, KernelError, Matrix, Operand, Orientation,
    codec::{Codec, Job, dispatch},
    decode::Range,
    engine,
    matrix::{check_length, product},
    output::Output,
    panel::Turned,
    scales::widened,
    stored::StoredProduct,
    threads,
    tile::{Panels, Product},
};

/// Products smaller than this many multiplications do not wake a second thread.
pub(crate) const PARALLEL: usize = 1 << 17;

/// Multiplies `x` of `m` rows with `matrix` into `out`, never holding more than some tens of kilobytes of it as floats.
///
/// Sums are taken in `f32`, in an order that depends only on the sizes and the instruction set: the result has the
/// same bits whatever the number of threads. Activations of other types are widened first, and results rounded once, at
/// the end; so are scales of other types than `f32`, all of them where there are many rows of activations.
///
/// On [`Isa::Amx`], floats of large products are sums of three `bf16` numbers, whose products are exact. What is left out
/// of these is at most 2^-26 of a product; besides, a number of `x` or of a column of the matrix counts as fewer digits, or
/// as zero, where it is less than 2^-90 of the largest beside it. A NaN or an infinity in `x` has it, or the rows
/// beside it, multiplied as on [`Isa::Avx512`].
///
/// # Errors
/// A matrix whose lengths do not match its sizes, or a wrong length of `x` or `out`.
pub fn matmul<'x, 'o>(
    x: impl Into<Floats<'x>>,
    m: usize,
    matrix: &Matrix,
    orientation: Orientation,
    out: impl Into<FloatsMut<'o>>,
) -> Result<(), KernelError> {
    multiply(x.into(), m, matrix, orientation, out.into())
}

/// [`matmul`], compiled here once and not wherever it is called.
fn multiply(x: Floats, m: usize, matrix: &Matrix, orientation: Orientation, out: FloatsMut) -> Result<(), KernelError> {
    let isa = Isa::detect();
    let elements = matrix.check()?;
    let (depth, columns) = match orientation {
        Orientation::Transposed => (matrix.k, matrix.n),
        Orientation::Plain => (matrix.n, matrix.k),
    };
    check_length("x", x.len(), product(m, depth)?, "`m` rows as long as the side of the matrix that is summed over")?;
    out.check(product(m, columns)?, "`m` rows as long as the side of the matrix that remains")?;
    let x = x.widen();
    let threads = if m.saturating_mul(elements) < PARALLEL { 1 } else { threads::count() };
    out.rounded(|out| {
        if depth == 0 || out.is_empty() {
            return out.fill(0.0);
        }
        let product = StoredProduct { x: &x, m, matrix, orientation, threads };
        product.multiply(isa, &mut Output::new(out, columns));
    });
    Ok(())
}

impl StoredProduct<'_> {
    /// Computes all of the product, which has rows and columns.
    pub(crate) fn multiply(&self, isa: Isa, out: &mut Output<f32>) {
        if engine::run(StoredProduct::ENGINES, isa, self, out) == 0 {
            by_panels(self, isa, out);
        }
    }
}

/// Multiplies with panels of floats, made from the codes as they are needed.
fn by_panels(product: &StoredProduct, isa: Isa, out: &mut Output<f32>) {
    struct Multiply<'a> {
        range: Range<'a, ()>,
        orientation: Orientation,
        then: &'a mut dyn FnMut(&dyn Panels),
    }
    impl Job for Multiply<'_> {
        type Output = ();
        fn run<C: Codec>(self, codes: C) {
            let Range { matrix, scales, biases, first, .. } = self.range;
            let range = Range { matrix, codes, scales, biases, first };
            (self.then)(&Turned { range, orientation: self.orientation });
        }
    }
    let &StoredProduct { x, m, matrix, orientation, threads } = product;
    let blocks = (matrix.n * matrix.k).div_ceil(matrix.block);
    let scales = widened(isa, &matrix.scales, blocks, threads);
    let biases = matrix.biases.map(|biases| widened(isa, &biases, blocks, threads));
    let range = Range { matrix, codes: (), scales: &scales, biases: biases.as_deref(), first: 0 };
    let depth = x.len() / m;
    let then = &mut |panels: &dyn Panels| {
        let matrix = Dense { values: x, rows: m, columns: depth, stride: depth };
        let x = Operand { matrix, orientation: Orientation::Plain };
        let columns = out.columns();
        engine::multiply(&Product { x, panels, columns, factors: Factors::default(), threads }, isa, out);
    };
    dispatch(isa, matrix.codes, Multiply { range, orientation, then });
}
