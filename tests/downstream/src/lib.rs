//! Two computations through MLX, small enough to know the results by heart.

use mlx_rs::Array;
use mlx_rs::error::Exception;
use mlx_rs::ops::matmul;
use mlx_rs::transforms::compile::compile;

/// Returns `[[1, 2], [3, 4]]` times its own transpose.
///
/// ```
/// assert_eq!(downstream::gram().unwrap(), [5.0, 11.0, 11.0, 25.0]);
/// ```
pub fn gram() -> Result<Vec<f32>, Exception> {
    let matrix = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2]);
    let product = matmul(&matrix, matrix.t())?;
    product.eval()?;
    Ok(product.as_slice::<f32>().to_vec())
}

/// Returns `|x| * x + x` for `x = [-1, 0, 2]`, which MLX's `compile` fuses into one kernel made by the C++ compiler.
pub fn fused() -> Result<Vec<f32>, Exception> {
    let function = |x: &Array| x.abs()?.multiply(x)?.add(x);
    let input = Array::from_slice(&[-1.0f32, 0.0, 2.0], &[3]);
    let output = compile(function, None)(&input)?;
    output.eval()?;
    Ok(output.as_slice::<f32>().to_vec())
}
