//! The gradients of scales on a CPU that plays a GPU, in every format.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::Aval;
use tacit_core::kernel::{GpuBackend, Launch, apply};

use super::normal;
use crate::format::{Affine, Granularity, Int8, Mxfp8, Nvfp4, Symmetric, mx::ScaleRule};
use crate::kernel::Scaling;
use crate::kernel::gpu::checks::{Checks, Within, avals};
use crate::kernel::gpu::source::{Parts, Target};
use crate::kernel::quantize::Quantize;
use crate::kernel::scale_gradients::ScaleGradients;
use crate::kernel::tests::{Case, case, cases};

/// Cases with scales that are trained, and blocks of a whole group and of several.
fn trained() -> Vec<Case> {
    let is_trained = |case: &Case| {
        let scaling = case.layout.scheme.scaling;
        !matches!(scaling, Scaling::One | Scaling::Nested { .. } | Scaling::Integers { .. })
    };
    let granularity = Granularity::Block(4099);
    let long = [
        case(&Int8 { granularity }, 9, 1000),
        case(&Affine { bits: 4, group: 64 }, 70, 128),
        case(&Symmetric { bits: 4, group: 64 }, 70, 128),
        case(&Mxfp8 { rule: ScaleRule::Ceil }, 33, 128),
        case(&Nvfp4::default(), 33, 128),
    ];
    cases().into_iter().chain(long).filter(is_trained).collect()
}

/// Other numbers than those that were coded, of which some are beyond the range, with their gradients.
fn inputs(Case { layout, children }: &Case) -> Vec<Array> {
    let shape = [layout.n as i32, layout.k as i32];
    [&[normal(8, &shape), normal(9, &shape)], children.as_slice()].concat()
}

fn parts(case: &Case, target: Target) -> Option<Parts> {
    ScaleGradients { layout: case.layout }.parts(&avals(&inputs(case)), target)
}

/// Every launch with its inputs and the dtypes of its results.
pub(super) fn launches(backend: GpuBackend) -> impl Iterator<Item = (Launch, Vec<Aval>, Vec<Dtype>)> {
    trained().into_iter().map(move |case| {
        let launch = parts(&case, backend.into()).expect("has a source").launch();
        let results = launch.outputs.iter().map(|_| Dtype::Float32).collect();
        (launch, avals(&inputs(&case)), results)
    })
}

#[test]
fn gradients_of_scales_are_those_of_the_kernel_of_a_cpu() {
    let mut checks = Checks::new("scale_gradients");
    for case in trained() {
        let given = inputs(&case);
        let expected = apply(ScaleGradients { layout: case.layout }, &given).expect("runs");
        checks.add(parts(&case, checks.target()), given, expected, Within::Each(1e-6));
    }
    checks.finish();
}

#[test]
fn products_beyond_the_greatest_float_are_infinite_as_on_a_cpu() {
    let mut checks = Checks::new("scale_gradients_infinite");
    for block in [32, 4096] {
        let Case { layout, .. } = case(&Int8 { granularity: Granularity::Block(block) }, 2, block);
        let filled = |x: f32| ops::full::<f32>(&[2, block as i32], Array::from_f32(x)).expect("fills");
        let children = apply(Quantize::new(layout.scheme, block), &[filled(1.0)]).expect("quantizes");
        // Elements beyond the range give their scale what their code stands for times their gradient.
        let inputs = [&[filled(200.0), filled(2_f32.powi(125))], children.as_slice()].concat();
        let kernel = ScaleGradients { layout };
        let parts = kernel.parts(&avals(&inputs), checks.target());
        let expected = apply(kernel, &inputs).expect("runs");
        assert!(expected[1].as_slice::<f32>().iter().all(|gradient| *gradient == f32::INFINITY));
        checks.add(parts, inputs, expected, Within::Each(0.0));
    }
    checks.finish();
}

#[test]
fn scales_that_are_stored_otherwise_have_no_source() {
    let untrained = cases()
        .into_iter()
        .filter(|case| !matches!(case.layout.scheme.scaling, Scaling::Float | Scaling::E8m0 | Scaling::E4m3));
    let sources: Vec<bool> = untrained.map(|case| parts(&case, Target::Host).is_some()).collect();
    assert!(sources.len() > 4 && !sources.contains(&true), "{sources:?}");
}
