//! Gradients by central finite differences, which know nothing of vjps.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use crate::device::on_the_cpu;
use crate::elements::doubles;

/// The gradient of the sum of `f`'s result with respect to one argument: `(f(x + h) - f(x - h)) / 2h`, element by element.
///
/// `f` is called with arguments of the dtypes that it is given, twice for each element of the chosen one. The sum, the
/// differences and the result are `f64`; the step between the two arguments is taken as they are rounded to their dtype.
/// With `f64` arguments, which MLX evaluates on the CPU, `1e-5` is a good step and the result is good to about ten
/// digits; with `f32` arguments `1e-2` and two to four digits.
///
/// ```
/// use mlx_rs::Array;
/// use tacit_conformance::difference::gradient;
///
/// let x = Array::from_slice_f64(&[1.0, 3.0], &[2]);
/// let slope = gradient(|args| args[0].square(), &[x], 0, 1e-5)?;
/// assert!((slope.as_slice::<f64>()[1] - 6.0).abs() < 1e-9);
/// # Ok::<(), mlx_rs::error::Exception>(())
/// ```
///
/// # Errors
///
/// `f` fails, or there is no float argument at `position`.
pub fn gradient<E: Into<Exception>>(
    mut f: impl FnMut(&[Array]) -> Result<Array, E>,
    args: &[Array],
    position: usize,
    step: f64,
) -> Result<Array, Exception> {
    let Some(chosen) = args.get(position).filter(|chosen| chosen.dtype().is_float()) else {
        return Err(Exception::custom(format!("there is no float argument at position {position}")));
    };
    let (shape, dtype) = (chosen.shape().to_vec(), chosen.dtype());
    let center = doubles(chosen)?;
    let mut args = args.to_vec();
    let mut f = |args: &[Array]| if dtype == Dtype::Float64 { on_the_cpu(|| f(args)) } else { f(args) };
    let mut slopes = Vec::with_capacity(center.len());
    for element in 0..center.len() {
        let mut side = |offset: f64| {
            let mut moved = center.clone();
            moved[element] += offset;
            let moved = array_of(&moved, &shape, dtype)?;
            let at = doubles(&moved)?[element];
            args[position] = moved;
            let value: f64 = doubles(&f(&args).map_err(Into::into)?)?.iter().sum();
            Ok::<_, Exception>((at, value))
        };
        let ((above, high), (below, low)) = (side(step)?, side(-step)?);
        slopes.push((high - low) / (above - below));
    }
    array_of(&slopes, &shape, Dtype::Float64)
}

fn array_of(values: &[f64], shape: &[i32], dtype: Dtype) -> Result<Array, Exception> {
    on_the_cpu(|| Array::from_slice_f64(values, &[values.len() as i32]).reshape(shape)?.as_dtype(dtype))
}

#[cfg(test)]
mod tests {
    use mlx_rs::{ops, transforms};

    use super::*;

    fn inputs(dtype: Dtype) -> Vec<Array> {
        let draw = |start: f32, shape: &[i32]| {
            let size = shape.iter().product::<i32>();
            let values: Vec<f32> = (0..size).map(|i| (start + i as f32 * 0.37).sin()).collect();
            Array::from_slice(&values, shape).as_dtype(dtype).unwrap_or_else(|error| panic!("{error}"))
        };
        vec![draw(0.3, &[2, 3]), draw(1.1, &[3, 2])]
    }

    /// `sum(tanh(x @ w) ** 2)`
    fn squashed(args: &[Array]) -> Result<Array, Exception> {
        ops::tanh(args[0].matmul(&args[1])?)?.square()?.sum(None)
    }

    fn distance(a: &Array, b: &Array) -> Result<f64, Exception> {
        let (a, b) = (doubles(a)?, doubles(b)?);
        assert_eq!(a.len(), b.len());
        Ok(a.iter().zip(&b).map(|(a, b)| (a - b).abs()).max_by(f64::total_cmp).expect("elements"))
    }

    #[test]
    fn a_polynomial_has_the_gradient_of_its_formula() -> Result<(), Exception> {
        let x = Array::from_slice_f64(&[-1.5, 0.0, 2.0], &[3]);
        let cube = |args: &[Array]| args[0].multiply(&args[0])?.multiply(&args[0]);
        let formula = x.square()?.multiply(Array::from_f64(3.0))?;
        assert!(distance(&gradient(cube, &[x], 0, 1e-5)?, &formula)? < 1e-9);
        Ok(())
    }

    #[test]
    fn mlx_and_the_differences_agree() -> Result<(), Exception> {
        for (dtype, step, tolerance) in [(Dtype::Float64, 1e-5, 1e-9), (Dtype::Float32, 1e-2, 1e-3)] {
            let args = inputs(dtype);
            for position in 0..2 {
                let one = Array::from_f32(1.0).as_dtype(dtype)?;
                let vjp = transforms::fallible_vjp(|args: &[Array]| Ok(vec![squashed(args)?]), &args, &[one])?.1;
                let differences = gradient(squashed, &args, position, step)?;
                assert_eq!(differences.shape(), args[position].shape());
                let distance = distance(&differences, &vjp[position])?;
                assert!(distance < tolerance, "{dtype:?} argument {position}: {distance}");
            }
        }
        Ok(())
    }

    #[test]
    fn an_argument_that_is_not_float_is_an_error() {
        let args = [Array::from_slice(&[1i32], &[1])];
        for position in [0, 1] {
            assert!(gradient(|args| args[0].square(), &args, position, 1e-3).is_err());
        }
    }
}
