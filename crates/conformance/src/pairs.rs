//! Two subjects in one call.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::{Aval, Error, Value};

use crate::call::{Call, Depth};
use crate::report::Report;
use crate::subject::Subject;

/// Compares calls of a subject with each of the list to dense: products, sums, joins and a choice.
///
/// A type that refuses to be materialized, and two types of which each has a default handler, may end in their error.
#[must_use]
pub fn pairs(first: &Subject, subjects: &[Subject]) -> Report {
    let mut report = Report::new(format!("pairs of {}", first.name()));
    for second in subjects {
        let calls = pair_calls(first, second);
        if calls.is_empty() {
            report.found(format_args!("{} and {}", first.name(), second.name()), "no shapes for a common call");
        }
        for call in calls {
            report.compare(format_args!("{} and {}: {}", first.name(), second.name(), call.name), || {
                match call.takers() {
                    Err(Error::TwoDefaults { .. } | Error::Refused { .. }) => Ok(()),
                    _ if first.tolerance > second.tolerance => call.check(first, Depth::EAGER),
                    _ => call.check(second, Depth::EAGER),
                }
            });
        }
    }
    report
}

/// The calls of two subjects, of the first shapes that fit both.
pub(crate) fn pair_calls(first: &Subject, second: &Subject) -> Vec<Call> {
    let shapes: [&[i32]; 6] = [&[32, 32], &[64, 64], &[128, 128], &[2, 32, 32], &[2, 64, 64], &[64]];
    let normal = |subject: &Subject, shape: &[i32], seed| subject.normal(&Aval::new(shape, Dtype::Float32), seed);
    let common = shapes.iter().find_map(|shape| Some((normal(first, shape, 1)?, normal(second, shape, 2)?)));
    let apart = || {
        // A matrix and a stack of matrices of the same extents.
        let mut pairs = shapes.iter().flat_map(|one| shapes.iter().map(move |other| (one, other)));
        pairs.find_map(|(one, other)| {
            let fit = one.last() == other.last() && one.len() > 1 && other.len() > 1;
            if fit { Some((normal(first, one, 1)?, normal(second, other, 2)?)) } else { None }
        })
    };
    let Some((a, b)) = common.or_else(apart) else { return Vec::new() };
    calls(&a, &b)
}

fn calls(a: &Value, b: &Value) -> Vec<Call> {
    let both = || vec![a.clone(), b.clone()];
    let shapes =
        (a.aval().map(|aval| aval.shape).unwrap_or_default(), b.aval().map(|aval| aval.shape).unwrap_or_default());
    let mut calls = vec![
        Call::new("a + b", both(), |arrays| ops::add(&arrays[0], &arrays[1])),
        Call::new("a * b", both(), |arrays| ops::multiply(&arrays[0], &arrays[1])),
        Call::new("where(a > 0, a, b)", both(), |arrays| {
            ops::select(arrays[0].gt(Array::from_f32(0.0))?, &arrays[0], &arrays[1])
        }),
    ];
    if shapes.0.len() > 1 && shapes.1.len() > 1 {
        calls.push(Call::new("a b", both(), |arrays| arrays[0].matmul(&arrays[1])));
        calls.push(Call::new("a b^T", both(), |arrays| arrays[0].matmul(arrays[1].swap_axes(-1, -2)?)));
        calls.push(Call::new("a^T b", both(), |arrays| arrays[0].swap_axes(-1, -2)?.matmul(&arrays[1])));
        calls.push(Call::new("a b + 1", both(), |arrays| {
            ops::addmm(Array::from_f32(1.0), &arrays[0], &arrays[1], 1.0, 1.0)
        }));
    }
    // The gradient of a scale goes over every element of a product, and each is a sum itself.
    let terms: i32 = shapes.0.iter().chain(shapes.1.last()).product();
    for call in &mut calls {
        call.terms = terms as u32;
    }
    if shapes.0 == shapes.1 {
        calls.push(Call::new("concatenate(a, b)", both(), |arrays| ops::concatenate(arrays, 0)));
        calls.push(Call::new("concatenate(a, b, axis=-1)", both(), |arrays| ops::concatenate(arrays, -1)));
    }
    calls
}
