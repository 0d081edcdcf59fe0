//! Derivatives of functions from arrays to arrays, for rules that follow from those of other functions.

use mlx_rs::Array;
use tacit_core::transform::{jvp, vjp};
use tacit_core::tree::Gradient;
use tacit_core::{Result, Value};

type Function<'f> = dyn Fn(Vec<Array>) -> Result<Vec<Array>> + 'f;

/// The gradients of float arrays: the products of `cotangents`, one for each result, with the Jacobian of `f`.
pub(crate) fn gradients(primals: &[Array], cotangents: &[Array], f: &Function<'_>) -> Result<Vec<Array>> {
    let (_, gradients) = vjp(primals, cotangents, f)?;
    gradients.iter().map(|gradient| gradient.array().cloned()).collect()
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
    move |given| {
        let mut all = primals.to_vec();
        for (&at, array) in chosen.iter().zip(given) {
            all[at] = array;
        }
        f(&all)
    }
}
