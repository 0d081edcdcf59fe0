//! Errors of codes on a CPU that plays a GPU, in every format.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::Aval;
use tacit_core::kernel::{GpuBackend, Launch, apply};

use super::normal;
use crate::format::{Affine, F16, Granularity, Int8, Nf4};
use crate::kernel::Layout;
use crate::kernel::deviations::Deviations;
use crate::kernel::gpu::checks::{Checks, Within, avals};
use crate::kernel::gpu::deviations;
use crate::kernel::gpu::source::{Parts, Target};
use crate::kernel::quantize::Quantize;
use crate::kernel::tests::{Case, case, cases};

/// Squares and a power of errors, in every format with scales and in blocks of a whole group.
fn kernels() -> impl Iterator<Item = (Deviations, Vec<Array>)> {
    let long = [
        case(&Int8 { granularity: Granularity::Block(4099) }, 9, 1000),
        case(&Nf4::from(2048), 8, 2048),
        case(&Affine { bits: 4, group: 64 }, 70, 128),
    ];
    let scaled = cases().into_iter().chain(long).filter(|case| case.layout.scheme.is_scaled());
    scaled.flat_map(|Case { layout, children }| {
        // Other numbers than those that were coded, of which some are beyond the range.
        let x = normal(8, &[layout.n as i32, layout.k as i32]);
        let blocks = (layout.n * layout.k).div_ceil(layout.block) as i32;
        let weights = normal(9, &[blocks]).abs().expect("abs");
        [None, Some(0.7)].map(|power| {
            let weights = power.map(|_| weights.clone());
            let inputs: Vec<Array> = [x.clone()].into_iter().chain(weights).chain(children.iter().cloned()).collect();
            (Deviations { layout, power }, inputs)
        })
    })
}

fn parts(Deviations { layout, power }: &Deviations, inputs: &[Array], target: Target) -> Option<Parts> {
    deviations(layout, *power, &avals(inputs), target)
}

/// Every launch with its inputs and the dtypes of its results.
pub(super) fn launches(backend: GpuBackend) -> impl Iterator<Item = (Launch, Vec<Aval>, Vec<Dtype>)> {
    kernels().map(move |(kernel, inputs)| {
        let launch = parts(&kernel, &inputs, backend.into()).expect("has a source").launch();
        (launch, avals(&inputs), vec![Dtype::Float32; 5])
    })
}

#[test]
fn errors_of_codes_are_those_of_the_kernel_of_a_cpu() {
    let mut checks = Checks::new("deviations");
    for (kernel, inputs) in kernels() {
        let parts = parts(&kernel, &inputs, checks.target());
        let expected = apply(kernel, &inputs).expect("measures");
        // As in the tests of the CPU's kernel.
        checks.add(parts, inputs, expected, Within::All(1e-5));
    }
    checks.finish();
}

#[test]
fn codes_that_equal_what_they_stand_for_have_no_error() {
    let mut checks = Checks::new("deviations_exact");
    for power in [None, Some(0.7)] {
        let Case { layout, children } = case(&Affine { bits: 8, group: 32 }, 5, 96);
        let x = layout.decoded(&children).expect("decodes");
        let weights = power.map(|_| Array::from_slice(&[1.0_f32; 15], &[15]));
        let inputs: Vec<Array> = [x].into_iter().chain(weights).chain(children).collect();
        let kernel = Deviations { layout, power };
        let parts = parts(&kernel, &inputs, checks.target());
        let expected = apply(kernel, &inputs).expect("measures");
        let zeros = Array::from_slice(&[0.0_f32; 15], &[15]);
        for sums in [&expected[0], &expected[3], &expected[4]] {
            assert!(sums.eq_exact(&zeros).expect("evaluates"));
        }
        checks.add(parts, inputs, expected, Within::All(1e-5));
    }
    checks.finish();
}

/// All numbers are powers of two, so that no sum is rounded.
#[test]
fn squares_beyond_the_greatest_float_are_infinite_as_on_a_cpu() {
    let mut checks = Checks::new("deviations_infinite");
    let far = 2_f32.powi(100);
    for (block, [stored, x]) in [(32, [1.0, far]), (32, [far, 1.0]), (4096, [1.0, far]), (4096, [far, 1.0])] {
        let layout = case(&Nf4::from(block), 2, block).layout;
        let filled = |x: f32| ops::full::<f32>(&[2, block as i32], Array::from_f32(x)).expect("fills");
        let children = apply(Quantize::new(layout.scheme, block), &[filled(stored)]).expect("quantizes");
        let inputs = [&[filled(x)], children.as_slice()].concat();
        let kernel = Deviations { layout, power: None };
        let parts = parts(&kernel, &inputs, checks.target());
        let expected = apply(kernel, &inputs).expect("measures");
        assert!(expected[0].as_slice::<f32>().iter().all(|error| *error == f32::INFINITY));
        checks.add(parts, inputs, expected, Within::Each(0.0));
    }
    checks.finish();
}

#[test]
fn what_has_no_scales_or_other_lengths_has_no_source() {
    let has_source = |case: &Case, layout: Layout, power, own: &[i32]| {
        let own = own.iter().map(|&count| Aval::new(&[count], Dtype::Float32));
        let inputs: Vec<Aval> = own.chain(avals(&case.children)).collect();
        deviations(&layout, power, &inputs, Target::Host).is_some()
    };
    let (nf4, f16) = (case(&Nf4::from(32), 6, 64), case(&F16, 6, 64));
    let layout = nf4.layout;
    assert!(has_source(&nf4, layout, None, &[384]) && has_source(&nf4, layout, Some(0.7), &[384, 12]));
    assert!(!has_source(&nf4, layout, None, &[383]) && !has_source(&nf4, layout, Some(0.7), &[384, 11]));
    assert!(!has_source(&nf4, Layout { block: (1 << 20) + 1, ..layout }, None, &[384]));
    assert!(!has_source(&f16, f16.layout, None, &[384]));
}
