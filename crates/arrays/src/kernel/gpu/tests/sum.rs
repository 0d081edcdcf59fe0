//! Sums that are quantized without being built, on a CPU that plays a GPU.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::Aval;
use tacit_core::kernel::{GpuBackend, Launch, apply};

use crate::format::{Affine, Binary, Dynamic, Format, Granularity, Int8, Mxfp8, Nf4, Nvfp4, mx::ScaleRule};
use crate::kernel::gpu::checks::{Checks, Within, avals, bytes, numbers};
use crate::kernel::gpu::source::{Parts, Target};
use crate::kernel::gpu::{measure, quantize_sum};
use crate::kernel::sum::{MeasureSum, QuantizeSum};
use crate::kernel::tests::{cases, sums};
use crate::kernel::{Measure, Scheme, Summands};

/// One format of each rule that sums are quantized to, in blocks that these columns have.
fn formats(k: usize) -> Vec<(Scheme, usize)> {
    let granularity = Granularity::Block(7);
    let dynamic = Dynamic { bits: 4, block: 7, unsigned: false }.scheme();
    let mut all = vec![(Nf4::from(32).scheme(), 32), (dynamic.reaching().expect("a table"), 7)];
    all.extend([Int8 { granularity }.scheme(), Binary { granularity }.scheme()].map(|scheme| (scheme, 7)));
    if k.is_multiple_of(32) {
        all.push((Affine { bits: 3, group: 32 }.scheme(), 32));
        all.push((Mxfp8 { rule: ScaleRule::Ceil }.scheme(), 32));
        all.push((Nvfp4 { global: true }.scheme(), 16));
    }
    all
}

/// Sums on every stored base and on a dense one, each quantized to one format.
fn quantized() -> impl Iterator<Item = (QuantizeSum, Vec<Array>)> {
    let all = cases().into_iter().flat_map(sums).enumerate();
    all.map(|(turn, sum): (usize, Summands)| {
        let (read, mut inputs) = sum.inputs();
        let formats = formats(read.k);
        let (scheme, block) = formats[turn % formats.len()];
        let relative = scheme.is_relative();
        inputs.extend(relative.then(|| Array::from_f32(40.0)));
        inputs.extend(sum.base.iter().cloned());
        (QuantizeSum { read, scheme, block, relative }, inputs)
    })
}

fn parts(kernel: &QuantizeSum, inputs: &[Array], target: Target) -> Parts {
    let QuantizeSum { read, scheme, block, .. } = kernel;
    quantize_sum(scheme, *block, read, &avals(inputs), target).expect("has a source")
}

/// The inputs of each sum that is measured, of which some have numbers whose squares are beyond floats, and how.
fn measured() -> impl Iterator<Item = (MeasureSum, Vec<Array>)> {
    let all = cases().into_iter().flat_map(sums).enumerate();
    all.flat_map(|(turn, sum): (usize, Summands)| {
        let (read, mut inputs) = sum.inputs();
        let factor = [1.0, 1e30, 1e-32, 0.0][turn % 4];
        inputs.extend(sum.base.iter().cloned());
        if read.factors {
            inputs[2] = inputs[2].multiply(Array::from_f32(factor)).expect("scales");
        }
        [Measure::Norm, Measure::Absmax].map(|by| (MeasureSum { read, by }, inputs.clone()))
    })
}

/// Every launch with its inputs and the dtypes of its results.
pub(super) fn launches(backend: GpuBackend) -> impl Iterator<Item = (Launch, Vec<Aval>, Vec<Dtype>)> {
    let lengths = measured().map(move |(MeasureSum { read, by }, inputs)| {
        let launch = measure(by, &read, &avals(&inputs), backend.into()).expect("has a source").launch();
        (launch, avals(&inputs), vec![Dtype::Float32])
    });
    let coded = quantized().map(move |(kernel, inputs)| {
        let launch = parts(&kernel, &inputs, backend.into()).launch();
        let shape = [kernel.read.n as i32, kernel.read.k as i32];
        let dtypes = kernel.scheme.output_avals(&shape, kernel.block).iter().map(|aval| aval.dtype).collect();
        (launch, avals(&inputs), dtypes)
    });
    coded.chain(lengths)
}

#[test]
fn rows_of_sums_measure_what_the_kernel_of_a_cpu_measures() {
    let mut checks = Checks::new("measure_sum");
    for (kernel, inputs) in measured() {
        let MeasureSum { read, by } = kernel;
        let tolerance = if by == Measure::Norm { 2e-7 } else { 0.0 };
        let parts = measure(by, &read, &avals(&inputs), checks.target());
        let expected = apply(kernel, &inputs).expect("measures");
        checks.add(parts, inputs, expected, Within::Each(tolerance));
    }
    checks.finish();
}

#[test]
fn rows_have_lengths_where_subnormal_numbers_are_zero() {
    let mut checks = Checks::new("measure_flushed").flushing();
    let magnitudes = [3e38, 2_f32.powi(127), 1e38, 1.0, 1e-30];
    let element = |magnitude: f32, at: i32| if at == 7 { magnitude } else { magnitude * 0.1 * (at as f32).sin() };
    let base = magnitudes.into_iter().flat_map(|magnitude| (0..40).map(move |at| element(magnitude, at)));
    let of = |shape: &[i32]| ops::zeros::<f32>(shape).expect("zeros");
    let base = vec![Array::from_iter(base, &[5, 40])];
    let (read, inputs) =
        Summands { layout: None, base: base.clone(), left: of(&[5, 1]), right: of(&[1, 40]), factors: None }.inputs();
    let inputs = [inputs, base].concat();
    let parts = measure(Measure::Norm, &read, &avals(&inputs), checks.target());
    let expected = apply(MeasureSum { read, by: Measure::Norm }, &inputs).expect("measures");
    assert!(numbers(&bytes(&expected[0]), Dtype::Float32).iter().all(|length| length.is_finite()));
    checks.add(parts, inputs, expected, Within::Each(2e-7));
    checks.finish();
}

#[test]
fn codes_of_sums_are_those_of_the_kernel_of_a_cpu() {
    let mut checks = Checks::new("quantize_sum");
    for (kernel, inputs) in quantized() {
        let parts = parts(&kernel, &inputs, checks.target());
        let expected = apply(kernel, &inputs).expect("quantizes");
        checks.add(Some(parts), inputs, expected, Within::Each(0.0));
    }
    checks.finish();
}
