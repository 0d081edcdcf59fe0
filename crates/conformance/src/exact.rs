//! The exact result of a function, in f64 or, where MLX has it in no wider dtype, in f32; and how near to it a result
//! in another dtype must be.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};
use tacit_core::{Aval, Error, dtype_name};

use crate::device::on_the_cpu;
use crate::elements::{doubles, unit};

/// The results of a function in a wide type, and how far others may be from them.
pub(crate) struct Exact {
    /// The dtype in which they were computed.
    dtype: Dtype,
    results: Vec<Vec<f64>>,
    /// The sum of the magnitudes of the terms of each element.
    terms: Vec<Vec<f64>>,
    /// The largest error that each result is granted in any case.
    granted: Vec<f64>,
}

/// Roundings of a result's own dtype that are granted: of a weight that is stored otherwise, of factors, of the result.
const ROUNDINGS: f64 = 8.0;

/// What the order of thousands of f32 additions makes of the sum of the magnitudes of their terms.
const ACCUMULATED: f64 = 1.0 / 65536.0;

impl Exact {
    /// Runs `f`, whose terms become positive where its arguments do, in f64; in f32 where MLX has it in no wider type.
    pub(crate) fn compute(
        f: impl Fn(&[Array]) -> Result<Vec<Array>, Exception>,
        arguments: &[Array],
    ) -> Result<Self, String> {
        Self::in_dtype(&f, arguments, Dtype::Float64).or_else(|_| Self::in_dtype(&f, arguments, Dtype::Float32))
    }

    fn in_dtype(
        f: impl Fn(&[Array]) -> Result<Vec<Array>, Exception>,
        arguments: &[Array],
        dtype: Dtype,
    ) -> Result<Self, String> {
        let wide = |array: &Array| if array.dtype().is_float() { array.as_dtype(dtype) } else { Ok(array.clone()) };
        let run = || -> Result<_, Exception> {
            let arguments = arguments.iter().map(wide).collect::<Result<Vec<_>, _>>()?;
            let magnitudes = arguments
                .iter()
                .map(|array| if array.dtype().is_float() { array.abs() } else { Ok(array.clone()) })
                .collect::<Result<Vec<_>, _>>()?;
            let results = f(&arguments)?.iter().map(doubles).collect::<Result<Vec<_>, _>>()?;
            let terms = f(&magnitudes)?.iter().map(doubles).collect::<Result<Vec<_>, _>>()?;
            Ok((results, terms))
        };
        let (results, terms) =
            on_the_cpu(run).map_err(|error| format!("the reference in a wide type fails: {}", Error::from(error)))?;
        Ok(Self { dtype, granted: vec![0.0; results.len()], results, terms })
    }

    /// Grants four times the largest error of `on_dense`, which are MLX's results on dense arrays.
    pub(crate) fn granting(mut self, on_dense: &[Array]) -> Result<Self, String> {
        for ((array, result), granted) in on_dense.iter().zip(&self.results).zip(&mut self.granted) {
            let elements = doubles(array).map_err(|error| error.to_string())?;
            let errors = elements.iter().zip(result).map(|(element, result)| (element - result).abs());
            *granted = 4.0 * errors.fold(0.0, f64::max);
        }
        Ok(self)
    }

    /// Demands of each element an error of a few roundings of its dtype, relative to the sum of the magnitudes of its terms.
    pub(crate) fn near(&self, found: &[Array]) -> Result<(), String> {
        if found.len() != self.results.len() {
            return Err(format!("{} results, expected {}", found.len(), self.results.len()));
        }
        for (i, array) in found.iter().enumerate() {
            let elements = doubles(array).map_err(|error| error.to_string())?;
            let (expected, terms) = (&self.results[i], &self.terms[i]);
            if elements.len() != expected.len() {
                return Err(format!("result {i} is {}, expected {} elements", Aval::from(array), expected.len()));
            }
            let relative = ROUNDINGS * f64::from(unit(array.dtype())) / 2.0 + ACCUMULATED;
            let bound = |at: usize| (relative * terms[at].abs()).max(self.granted[i]);
            let error = |at: usize| (elements[at] - expected[at]).abs();
            let far = (0..elements.len())
                .find(|&at| expected[at].is_finite() && (error(at) > bound(at) || error(at).is_nan()));
            if let Some(at) = far {
                return Err(format!(
                    "element {at} of {} is {:.6e}, expected {:.6e} of {}: {:.1e} off where {:.1e} is granted",
                    Aval::from(array),
                    elements[at],
                    expected[at],
                    dtype_name(self.dtype),
                    error(at),
                    bound(at),
                ));
            }
        }
        Ok(())
    }
}
