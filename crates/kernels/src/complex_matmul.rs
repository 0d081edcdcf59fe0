//! Products of dense matrices of complex numbers, as four products of their real and imaginary parts.

use crate::{
    Dense, Factors, KernelError, Operand,
    dense_matmul::{check, dense_matmul},
};

/// A real and an imaginary part.
pub type Complex = [f32; 2];

/// [`dense_matmul`](crate::dense_matmul()) of complex numbers, of which those of `a` and `b` are conjugated where it says so.
///
/// The parts are copied apart, so that for a moment there are twice the operands and the output.
///
/// # Errors
/// Sizes that do not fit each other, or the lengths.
#[allow(clippy::float_cmp, reason = "a factor that is exactly nothing has its operand not looked at")]
pub fn complex_matmul(
    (a, conjugate_a): (Operand<Complex>, bool),
    (b, conjugate_b): (Operand<Complex>, bool),
    out: Dense<&mut [Complex]>,
    factors: Factors<Complex>,
) -> Result<(), KernelError> {
    check(&a, &b, &out)?;
    let Dense { values, rows, columns, stride } = out;
    let Factors { alpha, beta } = factors;
    if rows == 0 || columns == 0 {
        return Ok(());
    }
    let mut parts = [vec![0.0; rows * columns], vec![0.0; rows * columns]];
    if alpha != [0.0; 2] && a.columns() > 0 {
        let (a, b) = (Parts::new(&a, conjugate_a), Parts::new(&b, conjugate_b));
        let [real, imaginary] = &mut parts;
        let add = |of_a: usize, of_b: usize, to: &mut [f32], factors: Factors| {
            dense_matmul(a.part(of_a), b.part(of_b), Dense { values: to, rows, columns, stride: columns }, factors)
        };
        add(1, 1, real, Factors { alpha: -1.0, beta: 0.0 })?;
        add(0, 0, real, Factors { alpha: 1.0, beta: 1.0 })?;
        add(0, 1, imaginary, Factors { alpha: 1.0, beta: 0.0 })?;
        add(1, 0, imaginary, Factors { alpha: 1.0, beta: 1.0 })?;
    }
    let [real, imaginary] = parts;
    let product = real.into_iter().zip(imaginary).map(|(real, imaginary)| [real, imaginary]);
    let places = (0..rows).flat_map(|row| row * stride..row * stride + columns);
    for (place, product) in places.zip(product) {
        let value = &mut values[place];
        *value =
            if beta == [0.0; 2] { times(alpha, product) } else { plus(times(alpha, product), times(beta, *value)) };
    }
    Ok(())
}

/// The parts of a matrix, row after row as it is stored.
struct Parts<'a> {
    of: Operand<'a, Complex>,
    parts: [Vec<f32>; 2],
}

impl<'a> Parts<'a> {
    fn new(of: &Operand<'a, Complex>, conjugate: bool) -> Self {
        let sign = if conjugate { -1.0 } else { 1.0 };
        let numbers = (0..of.matrix.rows).flat_map(|row| of.matrix.row(row));
        let parts = numbers.map(|[real, imaginary]| (*real, sign * imaginary)).unzip();
        Self { of: *of, parts: parts.into() }
    }

    /// The real part or the imaginary one.
    fn part(&self, part: usize) -> Operand<'_> {
        let Operand { matrix: Dense { rows, columns, .. }, orientation } = self.of;
        Operand { matrix: Dense { values: &self.parts[part], rows, columns, stride: columns }, orientation }
    }
}

/// The product with a factor. One without an imaginary part multiplies each part alone: nothing times an infinite part is NaN.
fn times([a, b]: Complex, [c, d]: Complex) -> Complex {
    if b == 0.0 { [a * c, a * d] } else { [a * c - b * d, a * d + b * c] }
}

fn plus([a, b]: Complex, [c, d]: Complex) -> Complex {
    [a + c, b + d]
}
