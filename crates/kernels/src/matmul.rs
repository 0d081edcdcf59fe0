//! Products of dense activations with a stored matrix.

use half::{bf16, f16};

use crate::{
    Floats, FloatsMut, KernelError, Matrix, Orientation,
    matrix::{check_length, product},
};

/// Multiplies `x` of `m` rows with `matrix` into `out`, never holding more than some tens of kilobytes of it as floats.
///
/// Sums are taken in `f32`, in an order that depends only on the sizes and the instruction set: the result has the
/// same bits whatever the number of threads.
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
    matrix.check()?;
    let (x, out) = (x.into(), out.into());
    let (depth, columns) = match orientation {
        Orientation::Transposed => (matrix.k, matrix.n),
        Orientation::Plain => (matrix.n, matrix.k),
    };
    check_length("x", x.len(), product(m, depth)?, "`m` rows as long as the side of the matrix that is summed over")?;
    out.check(product(m, columns)?, "`m` rows as long as the side of the matrix that remains")?;
    let x: Vec<f32> = match x {
        Floats::F32(x) => x.to_vec(),
        Floats::F16(x) => x.iter().map(|x| x.to_f32()).collect(),
        Floats::Bf16(x) => x.iter().map(|x| x.to_f32()).collect(),
    };
    let mut y = vec![0.0; m * columns];
    for d in 0..depth {
        for j in 0..columns {
            let w = matrix.element(if orientation == Orientation::Transposed {
                j * matrix.k + d
            } else {
                d * matrix.k + j
            });
            for i in 0..m {
                y[i * columns + j] += x[i * depth + d] * w;
            }
        }
    }
    match out {
        FloatsMut::F32(out) => out.copy_from_slice(&y),
        FloatsMut::F16(out) => out.iter_mut().zip(y).for_each(|(out, y)| *out = f16::from_f32(y)),
        FloatsMut::Bf16(out) => out.iter_mut().zip(y).for_each(|(out, y)| *out = bf16::from_f32(y)),
    }
    Ok(())
}
