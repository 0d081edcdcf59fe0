//! Products with activations in 8 bits: faster than floats, and less exact.
//!
//! A row of `x` becomes integers from -127 to 127 in units of its largest magnitude over 127. A table of values becomes
//! integers in units of its largest magnitude over whichever of 64 to 127 rounds them least; other codes are integers
//! already. Products of integers are summed exactly over the elements of a row that share a scale, at most 512 at a time.
//! Each such sum is an `f32` and is multiplied by the scale. If there are biases, `sum (q s + b) x` is
//! `s sum q x + b sum x`: the exact sum of the integers of `x` is multiplied by the bias, and added to that product. These
//! terms are added from the front of the row to its end, and the result is multiplied by the two units. Every instruction
//! set computes the same integers and rounds in the same places.
//!
//! Where signed bytes are multiplied, an unsigned one is taken as `q - 128`, and the sum begins with 128 times that of `x`.
//! That is an integer as well, so that no bias is rounded for it.

use crate::{
    Floats, FloatsMut, Isa, KernelError, Matrix, Orientation, engine, int8_unpacked,
    integers::{IntegerProduct, Rows, Stream, Weights},
    machine::threads_for,
    matrix::{check_length, product},
    output::Output,
};

/// Multiplies `x: [m, k]` with the transpose of `matrix: [n, k]` into `out: [m, n]`, rounding `x` to 8 bits.
///
/// The codes of `matrix` are a table of 4 bits, or integers: of 2 to 8 bits, unsigned or in offset binary, or signed ones of 8. Integers may
/// have biases. An element of `x` is rounded to within 1/254 of the largest of its row, and a value of the table to within
/// 1/128 of the table's; integers are not rounded. On normally distributed `x` and NF4 weights the result differs from that of
/// [`matmul`](crate::matmul) by about 3e-3 of its largest magnitude in the root mean square, and by 1e-2 at worst in blocks of
/// 64. A row of `x` with a NaN or an infinity gives a row of NaN; one whose
/// largest magnitude is below 1e-39 has fewer digits.
///
/// The result has the same bits on every instruction set and for every number of threads.
///
/// ```
/// use tacit_kernels::{Codes, Matrix, Orientation, Scales, int8_matmul};
///
/// let codes = Codes::Signed { codes: &[127, 0, 0, 127] };
/// let matrix = Matrix { n: 2, k: 2, codes, scales: Scales::F32(&[1.0 / 127.0; 2]), biases: None, block: 2 };
/// let mut y = [0.0; 2];
/// int8_matmul(&[1.0, 0.5][..], 1, &matrix, Orientation::Transposed, &mut y[..])?;
/// assert!(y[0] == 1.0 && (y[1] - 0.5).abs() < 1.0 / 254.0);
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
///
/// # Errors
/// Other codes, biases of a table, [`Orientation::Plain`], a matrix whose lengths do not match its sizes, or a wrong length
/// of `x` or `out`.
pub fn int8_matmul<'x, 'o>(
    x: impl Into<Floats<'x>>,
    m: usize,
    matrix: &Matrix,
    orientation: Orientation,
    out: impl Into<FloatsMut<'o>>,
) -> Result<(), KernelError> {
    let isa = Isa::detect();
    matrix.check()?;
    if orientation != Orientation::Transposed {
        return Err(KernelError::Int8 { what: "the plain orientation" });
    }
    let stream = Stream::from_codes(&matrix.codes);
    let weights = if stream.is_some() { None } else { Some(Weights::new(matrix)?) };
    let (x, out) = (x.into(), out.into());
    check_length("x", x.len(), product(m, matrix.k)?, "`m` rows as long as the rows of the matrix")?;
    out.check(product(m, matrix.n)?, "`m` rows of one number for each row of the matrix")?;
    let mut rows = Rows::new(isa, &x, matrix.k);
    let mut out = Output::rounded(out, matrix.n);
    if matrix.k == 0 {
        out.for_each(1, 1, matrix.n, &|mut out| out.row(out.rows().start).fill(0.0));
    } else if m == 0 || matrix.n == 0 {
        return Ok(());
    } else if let Some(stream) = stream {
        int8_unpacked::multiply(stream, isa, &rows, matrix, &mut out);
    } else if let Some(weights) = &weights {
        rows.units.iter_mut().for_each(|unit| *unit *= weights.unit);
        multiply(isa, &rows, matrix, weights, &mut out);
    }
    Ok(())
}

/// Computes all of a product that has results and terms.
pub(crate) fn multiply(isa: Isa, rows: &Rows, matrix: &Matrix, weights: &Weights, out: &mut Output<f32>) {
    let mut product = IntegerProduct { rows, matrix, weights, threads: 1 };
    product.threads = threads_for(engine::cost(isa, &product, matrix.n));
    engine::run(isa, &product, out);
}
