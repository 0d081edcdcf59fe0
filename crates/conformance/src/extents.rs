//! Sums of thousands of terms in every dtype.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::{Aval, Value};

use crate::call::{Call, dense, text, transposed, transposed_if};
use crate::elements::floats;
use crate::exact::Exact;
use crate::report::Report;
use crate::subject::Subject;

/// How many terms are summed.
pub(crate) const TERMS: i32 = 4096;

/// Compares products and reductions over a long axis, in each dtype that the subject takes, with the same in f64.
///
/// The error of a sum is bounded by a few roundings of the result's dtype relative to the sum of its terms' magnitudes:
/// a sum that is kept in bf16 stops growing long before it is that near. Dense operands have the signs of the subject, so
/// that terms do not cancel. A reduction may err four times as much as MLX's own, which sums half types as they are, and so may
/// a product in `f32`, whose terms the BLAS at hand adds in an order of its own; calls that no handler takes are MLX's own
/// and not compared.
#[must_use]
pub fn extents(subject: &Subject) -> Report {
    let mut report = Report::new(format!("extents of {}", subject.name()));
    let Some(shapes) = report.shapes(subject) else { return report };
    for &dtype in &shapes.dtypes {
        for last in [true, false] {
            let aval = Aval::new(&shapes.long(TERMS, last), dtype);
            let Some(w) = subject.positive(&aval) else { continue };
            let name = |call: &Call| format!("{} of {aval}", call.name);
            match products(&w, last) {
                Ok(calls) => {
                    for call in &calls {
                        report.compare(name(call), || check(call, dtype == Dtype::Float32));
                    }
                }
                Err(found) => report.found(&aval, found),
            }
            for call in reductions(&w, if last { -1 } else { 0 }) {
                report.compare(name(&call), || check(&call, true));
            }
        }
    }
    report
}

fn check(call: &Call, grant_own: bool) -> Result<(), String> {
    if call.takers().map_err(text)?.is_empty() {
        return Ok(());
    }
    let operands = call.operands.iter().map(dense).collect::<Result<Vec<_>, _>>()?;
    let mut exact = Exact::compute(&*call.run, &operands)?;
    if grant_own {
        exact = exact.granting(&call.on_dense(&operands)?)?;
    }
    exact.near(&call.intercepted()?)
}

/// Products over the long axis, the last or the one before it.
fn products(w: &Value, last: bool) -> Result<Vec<Call>, String> {
    let signs = Signs::new(w, last)?;
    let mut calls = Vec::new();
    for m in [1, 3, 33] {
        let x = signs.operand(m);
        calls.push(Call::new(format!("x W with {m} rows"), vec![x, w.clone()], move |arrays| {
            arrays[0].matmul(transposed_if(&arrays[1], last)?)
        }));
    }
    let x = signs.operand(3);
    calls.push(Call::new("W x", vec![w.clone(), x.clone()], move |arrays| {
        transposed_if(&arrays[0], !last)?.matmul(transposed(&arrays[1])?)
    }));
    if signs.shape.len() == 2 {
        calls.push(Call::new("x W + c", vec![x, w.clone()], move |arrays| {
            let c = Array::from_f32(1.0).as_dtype(arrays[0].dtype())?;
            ops::addmm(c, &arrays[0], transposed_if(&arrays[1], last)?, 1.0, 1.0)
        }));
    }
    Ok(calls)
}

fn reductions(w: &Value, axis: i32) -> Vec<Call> {
    let call = |name: &str, run: fn(&Array, i32) -> Result<Array, mlx_rs::error::Exception>| {
        Call::new(name, vec![w.clone()], move |arrays| run(&arrays[0], axis))
    };
    vec![
        call("sum", |w, _| w.sum(None)),
        call("sum along the axis", |w, axis| w.sum_axis(axis, None)),
        call("mean along the axis", |w, axis| w.mean_axis(axis, None)),
    ]
}

/// The signs of a weight along its long axis, one row of them for each short extent.
struct Signs {
    shape: Vec<i32>,
    dtype: Dtype,
    terms: usize,
    rows: Vec<Vec<bool>>,
}

impl Signs {
    fn new(w: &Value, last: bool) -> Result<Self, String> {
        let w = dense(w)?;
        let (shape, dtype) = (w.shape().to_vec(), w.dtype());
        let rows = transposed_if(&w, !last).and_then(|rows| rows.contiguous()).map_err(text)?;
        let terms = rows.shape().last().copied().unwrap_or(1) as usize;
        let elements = floats(&rows).map_err(text)?;
        let rows = elements.chunks(terms).map(|row| row.iter().map(|w| *w < 0.0).collect()).collect();
        Ok(Self { shape, dtype, terms, rows })
    }

    /// `m` rows of terms, the first of which have the signs of the weight's rows.
    fn operand(&self, m: usize) -> Value {
        let sign = |row: usize, at: usize| if self.rows[row % self.rows.len()][at] { -1.0 } else { 1.0 };
        let size = |row: usize, at: usize| 0.5 + ((row + at) % 4) as f32 / 4.0;
        let elements: Vec<f32> =
            (0..m).flat_map(|row| (0..self.terms).map(move |at| sign(row, at) * size(row, at))).collect();
        let x = Array::from_slice(&elements, &[m as i32, self.terms as i32]);
        x.as_dtype(self.dtype).unwrap_or(x).into()
    }
}
