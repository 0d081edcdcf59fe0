//! Checks that a product does not build the dense array.

use mlx_rs::{Array, memory as mlx_memory, transforms};
use tacit_core::{Aval, Error, Policy, Result, Value};

use crate::call::{product, text};
use crate::report::Report;
use crate::subject::{Subject, normal};

/// Measures the peak of MLX's active memory while a few rows are multiplied with a large subject under [`Policy::Deny`],
/// and while the product is differentiated with respect to the rows.
///
/// It must stay below the bytes of the dense array: a handler that decodes the whole weight in plain ops is materialization
/// that no policy sees. A product that the policy denies is no finding.
#[must_use]
pub fn memory(subject: &Subject) -> Report {
    let mut report = Report::new(format!("memory of {}", subject.name()));
    let Some(shapes) = report.shapes(subject) else { return report };
    let aval = Aval::new(&shapes.large(1024, 2048), shapes.dtypes[0]);
    let Some(w) = subject.normal(&aval, 1) else { return report };
    for transposed in [true, false] {
        let name = if transposed { "x W^T" } else { "x W" };
        let axis = aval.shape.len().saturating_sub(if transposed { 1 } else { 2 });
        let x = normal(3, &[4, aval.shape[axis]], aval.dtype);
        report
            .compare_alone(format_args!("{name} of {aval}"), || below_dense(&w, &aval, || product(&x, &w, transposed)));
        report.compare_alone(format_args!("the gradient of {name} of {aval}"), || {
            below_dense(&w, &aval, || {
                let loss = |x: &[Array]| Ok(vec![product(&x[0], &w, transposed)?.square()?.sum(None)?]);
                let both = transforms::value_and_grad_with_argnums(loss, &[0][..])(std::slice::from_ref(&x))?;
                Ok(both.1[0].clone())
            })
        });
    }
    report
}

/// How often a peak is measured, since whatever else the process does counts too.
const ATTEMPTS: usize = 5;

fn below_dense(w: &Value, aval: &Aval, f: impl Fn() -> Result<Array>) -> Result<(), String> {
    let dense = aval.nbytes();
    let mut least = usize::MAX;
    for _ in 0..ATTEMPTS {
        let grown = match grown(&f) {
            Ok(grown) => grown,
            Err(Error::MaterializationDenied { .. } | Error::Refused { .. }) => return Ok(()),
            Err(error) => return Err(text(error)),
        };
        least = least.min(grown);
        if least < dense {
            return Ok(());
        }
    }
    Err(format!(
        "{least} bytes were allocated for a product with {w} of {} bytes, expected fewer than the {dense} of the dense array",
        w.nbytes()
    ))
}

/// By how much MLX's active memory grows at most while `f` is computed.
fn grown(f: impl Fn() -> Result<Array>) -> Result<usize> {
    let _deny = Policy::Deny.scope();
    mlx_memory::reset_peak_memory()?;
    let before = mlx_memory::active_memory()?;
    f()?.eval()?;
    Ok(mlx_memory::peak_memory()?.saturating_sub(before))
}
