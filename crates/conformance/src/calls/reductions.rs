//! Reductions, scans and sorts.

use mlx_rs::error::Exception;
use mlx_rs::ops::indexing;
use mlx_rs::{Array, ops};
use tacit_core::primitives::{self, TypedPrimitive};

use super::scene::{Generator, Scene};
use crate::call::Call;

pub(super) const GENERATORS: &[(&str, Generator)] = &[
    (primitives::Sum::NAME, |scene| {
        along(scene, "sum", |w| ops::sum(w, None), |w, axis, keep| ops::sum_axis(w, axis, keep))
    }),
    (primitives::Prod::NAME, |scene| {
        along(scene, "prod", |w| ops::prod(w, None), |w, axis, keep| ops::prod_axis(w, axis, keep))
    }),
    (primitives::Max::NAME, |scene| {
        along(scene, "max", |w| ops::max(w, None), |w, axis, keep| ops::max_axis(w, axis, keep))
    }),
    (primitives::Min::NAME, |scene| {
        along(scene, "min", |w| ops::min(w, None), |w, axis, keep| ops::min_axis(w, axis, keep))
    }),
    (primitives::And::NAME, |scene| {
        along(scene, "all", |w| ops::all(w, None), |w, axis, keep| ops::all_axis(w, axis, keep))
    }),
    (primitives::Or::NAME, |scene| {
        along(scene, "any", |w| ops::any(w, None), |w, axis, keep| ops::any_axis(w, axis, keep))
    }),
    (primitives::ArgReduce::NAME, |scene| {
        along(scene, "argmax", |w| indexing::argmax(w, None), |w, axis, keep| indexing::argmax_axis(w, axis, keep))
    }),
    (primitives::LogSumExp::NAME, |scene| vec![scene.alone("logsumexp", |w| ops::logsumexp_axis(w, -1, true))]),
    (primitives::Softmax::NAME, |scene| vec![scene.alone("softmax", |w| ops::softmax_axis(w, -1, None))]),
    (primitives::CumSum::NAME, |scene| vec![scene.alone("cumsum", |w| ops::cumsum(w, 0, None, None))]),
    (primitives::CumProd::NAME, |scene| vec![scene.alone("cumprod", |w| ops::cumprod(w, -1, None, None))]),
    (primitives::CumMax::NAME, |scene| vec![scene.alone("cummax", |w| ops::cummax(w, 0, None, None))]),
    (primitives::CumMin::NAME, |scene| vec![scene.alone("cummin", |w| ops::cummin(w, -1, None, None))]),
    (primitives::Sort::NAME, |scene| vec![scene.alone("sort", |w| ops::sort_axis(w, -1))]),
    (primitives::ArgSort::NAME, |scene| vec![scene.alone("argsort", |w| ops::argsort_axis(w, 0))]),
];

/// The whole, and along the first and the last axis.
fn along(
    scene: &Scene,
    name: &str,
    whole: fn(&Array) -> Result<Array, Exception>,
    axis: fn(&Array, i32, bool) -> Result<Array, Exception>,
) -> Vec<Call> {
    vec![
        scene.alone(name, whole),
        scene.alone(&format!("{name} along the first axis"), move |w| axis(w, 0, false)),
        scene.alone(&format!("{name} along the last axis"), move |w| axis(w, -1, true)),
    ]
}
