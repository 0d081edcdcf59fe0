//! Derivatives of functions of arrays, for kernels whose vjp and jvp follow from those of other functions.

use mlx_rs::{Array, ops};
use tacit_core::transform::{jvp, vjp};
use tacit_core::tree::Gradient;
use tacit_core::{Result, Value};

type Function<'f> = dyn Fn(Vec<Array>) -> Result<Vec<Array>> + 'f;

/// The gradients of float arrays: the products of `cotangents`, one for each result, with the Jacobian of `f`.
pub(crate) fn gradients(primals: &[Array], cotangents: &[Array], f: &Function<'_>) -> Result<Vec<Array>> {
    let (_, gradients) = vjp(primals, cotangents, f)?;
    gradients.iter().map(|gradient| gradient.array().cloned()).collect()
}

/// The gradients of those of `primals` that `argnums` names, of a function of all of them: zeros where they are not float.
pub(crate) fn of_named(
    primals: &[Array],
    cotangents: &[Array],
    argnums: &[usize],
    f: impl Fn(&[Array]) -> Result<Vec<Array>>,
) -> Result<Vec<Array>> {
    let is_float = |&place: &usize| primals[argnums[place]].dtype().is_inexact();
    let places: Vec<usize> = (0..argnums.len()).filter(is_float).collect();
    let chosen: Vec<usize> = places.iter().map(|&place| argnums[place]).collect();
    let mut results = argnums.iter().map(|&at| Ok(ops::zeros_like(&primals[at])?)).collect::<Result<Vec<_>>>()?;
    if !chosen.is_empty() {
        let values: Vec<Array> = chosen.iter().map(|&at| primals[at].clone()).collect();
        let of_values = gradients(&values, cotangents, &of_chosen(primals, &chosen, f))?;
        for (place, gradient) in places.into_iter().zip(of_values) {
            results[place] = gradient;
        }
    }
    Ok(results)
}

/// The tangents of the results of `f`, where float arrays have these `tangents`.
pub(crate) fn tangents(primals: &[Array], tangents: &[Array], f: &Function<'_>) -> Result<Vec<Array>> {
    let tangents: Vec<Gradient> = tangents.iter().cloned().map(Gradient::Dense).collect();
    let (_, changes) = jvp(primals, tangents, f)?;
    changes.iter().map(Value::dense).collect()
}

/// A function of `primals` as one of the `chosen` alone.
pub(crate) fn of_chosen<'f>(
    primals: &'f [Array],
    chosen: &'f [usize],
    f: impl Fn(&[Array]) -> Result<Vec<Array>> + 'f,
) -> impl Fn(Vec<Array>) -> Result<Vec<Array>> + 'f {
    move |values| {
        let mut args = primals.to_vec();
        for (&at, array) in chosen.iter().zip(values) {
            args[at] = array;
        }
        f(&args)
    }
}
