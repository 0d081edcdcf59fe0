//! Products of integers of 8 bits: both sides are there already, as they are in the backward pass of a product in 8 bits.

use std::cell::Cell;

use crate::{
    Codes, FloatsMut, Isa, KernelError, Matrix, Orientation, Scales,
    int8_matmul::multiply,
    integers::{KEPT, Rows, Weights},
    machine::threads_for,
    matrix::{check_length, product},
    output::Output,
    threads,
};

/// Multiplies rows of integers, `codes: [units.len(), depth]`, with `matrix: [n, k]` of signed bytes, or with its transpose.
///
/// A result is the sum of the products of integers, times the scale of the matrix's row and the unit of its own row. Sums are those
/// of [`int8_matmul`](crate::int8_matmul), which rounds its rows to such integers: exact over 512 elements, and the same
/// bits on every instruction set and for every number of threads. The plain product sums over rows of the matrix, whose scales must
/// be [one](Scales::One): what they are is a factor of the elements before these become integers.
///
/// ```
/// use tacit_kernels::{Codes, Matrix, Orientation, Scales, int8_product};
///
/// let codes = Codes::Signed { codes: &[1, 2, 3, 4] };
/// let matrix = Matrix { n: 2, k: 2, codes, scales: Scales::One, biases: None, block: 4 };
/// let mut y = [0.0; 2];
/// int8_product(&[10, 1], &[0.5], &matrix, Orientation::Plain, &mut y[..])?;
/// assert_eq!(y, [6.5, 12.0]);
/// int8_product(&[10, 1], &[0.5], &matrix, Orientation::Transposed, &mut y[..])?;
/// assert_eq!(y, [6.0, 17.0]);
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
///
/// # Errors
///
/// Other codes, biases, scales in a plain product, -128 among the integers of a row, a matrix whose lengths do not match its sizes,
/// or a wrong length of `codes` or `out`.
pub fn int8_product<'o>(
    codes: &[i8],
    units: &[f32],
    matrix: &Matrix,
    orientation: Orientation,
    out: impl Into<FloatsMut<'o>>,
) -> Result<(), KernelError> {
    let isa = Isa::detect();
    matrix.check()?;
    let &Matrix { n, k, .. } = matrix;
    let refused = |what| Err(KernelError::Int8 { what });
    let Codes::Signed { codes: weights } = matrix.codes else { return refused("codes that are not signed bytes") };
    if matrix.biases.is_some() {
        return refused("biases of signed bytes");
    }
    if orientation == Orientation::Plain && !matches!(matrix.scales, Scales::One) {
        return refused("scales in the plain orientation");
    }
    let (depth, columns) = orientation.sides(n, k);
    let out = out.into();
    check_length("codes", codes.len(), product(units.len(), depth)?, "one for each element of as many rows as units")?;
    out.check(product(units.len(), columns)?, "as many rows as units, of one number for each column")?;
    // Some machines add two products in 16 bits, in which only one side may have it.
    if codes.contains(&i8::MIN) {
        return refused("rows with -128");
    }
    let mut out = Output::rounded(out, columns);
    if depth == 0 {
        out.for_each(1, 1, columns, &|mut out| out.row(out.rows().start).fill(0.0));
        return Ok(());
    }
    if units.is_empty() || columns == 0 {
        return Ok(());
    }
    let rows = &Rows::from_codes(codes, units);
    // A scale a row is what engines read fastest.
    let ones = if matches!(matrix.scales, Scales::One) { vec![1.0; columns] } else { Vec::new() };
    match orientation {
        Orientation::Transposed => {
            let matrix = if ones.is_empty() { *matrix } else { with_ones(weights, &ones, depth) };
            multiply(isa, rows, &matrix, &Weights::signed(weights), &mut out);
        }
        Orientation::Plain => {
            let mut by_column = TRANSPOSED.take();
            by_column.resize(weights.len(), 0);
            transpose(weights, k, &mut by_column);
            let matrix = with_ones(&by_column, &ones, depth);
            multiply(isa, rows, &matrix, &Weights::signed(&by_column), &mut out);
            if by_column.len() <= KEPT {
                TRANSPOSED.set(by_column);
            }
        }
    }
    Ok(())
}

/// The matrix of rows of so many signed bytes, each with its scale.
fn with_ones<'a>(codes: &'a [i8], ones: &'a [f32], k: usize) -> Matrix<'a> {
    let (codes, scales) = (Codes::Signed { codes }, Scales::F32(ones));
    Matrix { n: ones.len(), k, codes, scales, biases: None, block: k }
}

thread_local! {
    static TRANSPOSED: Cell<Vec<i8>> = const { Cell::new(Vec::new()) };
}

/// Bytes of a side of the squares that are transposed in registers.
const SIDE: usize = 8;

/// Columns that one task transposes: a cache line of each row.
const COLUMNS: usize = 64;

/// Writes the transpose of `from: [n, k]`, which has elements.
fn transpose(from: &[i8], k: usize, to: &mut [i8]) {
    let n = from.len() / k;
    let parts = to.chunks_mut(COLUMNS * n).enumerate();
    threads::for_each_part(threads_for(from.len() as f64 / 2.0), parts, &|(part, to)| {
        let (first, columns) = (part * COLUMNS, to.len() / n);
        for row in (0..n).step_by(SIDE) {
            let height = SIDE.min(n - row);
            for column in (0..columns).step_by(SIDE) {
                let width = SIDE.min(columns - column);
                let mut square = [0; SIDE];
                for (at, word) in square.iter_mut().enumerate().take(height) {
                    let rest = &from[(row + at) * k + first + column..];
                    let bytes = rest.first_chunk().copied().unwrap_or_else(|| {
                        let mut bytes = [0; SIDE];
                        bytes[..width].copy_from_slice(&rest[..width]);
                        bytes
                    });
                    *word = u64::from_le_bytes(bytes.map(i8::cast_unsigned));
                }
                for (at, word) in transposed(square).into_iter().enumerate().take(width) {
                    let bytes = word.to_le_bytes().map(u8::cast_signed);
                    let to = &mut to[(column + at) * n + row..][..height];
                    match to.first_chunk_mut() {
                        Some(to) => *to = bytes,
                        None => to.copy_from_slice(&bytes[..height]),
                    }
                }
            }
        }
    });
}

/// A square of bytes, a row in each word from its lowest byte on, transposed.
fn transposed(mut rows: [u64; SIDE]) -> [u64; SIDE] {
    // Each step swaps the upper right quarter of squares with the lower left one.
    for (side, mask) in [(4, 0x0000_0000_ffff_ffff), (2, 0x0000_ffff_0000_ffff), (1, 0x00ff_00ff_00ff_00ff)] {
        let shift = 8 * side;
        for at in (0..SIDE).filter(|at| at & side == 0) {
            let (upper, lower) = (rows[at], rows[at + side]);
            rows[at] = (upper & mask) | ((lower & mask) << shift);
            rows[at + side] = ((upper >> shift) & mask) | (lower & !mask);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_takes_its_place() {
        for (n, k) in [(1, 1), (8, 8), (3, 70), (70, 3), (17, 129), (64, 64)] {
            let from: Vec<i8> = (0..n * k).map(|at| (at * 37 % 251) as u8 as i8).collect();
            let mut to = vec![0; n * k];
            transpose(&from, k, &mut to);
            for (at, code) in from.iter().enumerate() {
                assert_eq!(to[at % k * n + at / k], *code, "{n} {k} {at}");
            }
        }
    }
}
