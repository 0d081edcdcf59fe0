//! Codes that a key draws, on a CPU that plays a GPU, in every format, against the CPU's kernels, bit for bit.

use mlx_rs::{Array, Dtype};
use tacit_core::Aval;
use tacit_core::kernel::{GpuBackend, Kernel, Launch, apply};

use super::normal;
use crate::format::{Format, Nf4};
use crate::kernel::draw::Draw;
use crate::kernel::gpu::checks::{Checks, Within, avals};
use crate::kernel::gpu::draw;
use crate::kernel::gpu::encode_tests::{all_schemes, numbers};
use crate::kernel::gpu::source::Target;
use crate::kernel::quantize::Quantize;
use crate::kernel::{Coding, Layout, Scheme};

/// All formats; scales come as floats, so that what they are relative to makes no other kernel.
fn drawn() -> impl Iterator<Item = (Scheme, usize)> {
    all_schemes().into_iter().filter(|(scheme, _)| !scheme.is_relative())
}

/// `x` and a key, with the scales and biases of other elements, of which all are in the range, half of them, or few.
fn inputs(scheme: Scheme, block: usize, x: &[f32]) -> Vec<Array> {
    let count = x.len() as i32;
    let mut inputs = vec![Array::from_slice(x, &[count]), Array::from_slice(&[0x9e37_79b9_u32, 7], &[2])];
    if scheme.is_scaled() {
        let other = normal(7, &[count]).multiply(Array::from_f32(1.5)).expect("scales");
        let results = apply(Quantize::new(scheme, block), &[other]).expect("quantizes");
        let layout = Layout { scheme, n: 1, k: x.len(), block };
        let mut numbers = layout.numbers(&results[1..]).expect("has some");
        if matches!(scheme.coding, Coding::Signed) {
            numbers[0] = numbers[0].divide(Array::from_f32(127.0)).expect("divides");
        }
        inputs.extend(numbers);
    }
    inputs
}

/// Every launch with its inputs and the dtypes of its results.
pub(super) fn launches(backend: GpuBackend) -> impl Iterator<Item = (Launch, Vec<Aval>, Vec<Dtype>)> {
    drawn().map(move |(scheme, block)| {
        let count = if scheme.is_grouped() { 4 * block } else { block * 9 / 4 };
        let inputs = avals(&inputs(scheme, block, &vec![1.0; count]));
        let launch = draw(&scheme, block, &inputs, backend.into()).expect("has a source").launch();
        (launch, inputs, vec![scheme.storage])
    })
}

#[test]
fn codes_that_a_key_draws_are_those_of_the_kernels_of_a_cpu() {
    let mut checks = Checks::new("draw");
    for (scheme, block) in drawn() {
        let x = numbers(&scheme, block, Dtype::Float32);
        let sizes = [x.len(), 1, 2, 7, 8, 9, block + 1];
        for &size in &sizes[..if scheme.is_grouped() { 1 } else { sizes.len() }] {
            let inputs = inputs(scheme, block, &x[x.len() - size.min(x.len())..]);
            let expected = apply(Draw { scheme, block }, &inputs).expect("draws");
            let parts = draw(&scheme, block, &avals(&inputs), checks.target());
            checks.add(parts, inputs, expected, Within::Each(0.0));
        }
    }
    checks.finish();
}

#[test]
fn what_a_cpu_refuses_is_drawn_as_by_the_decomposition() {
    let mut checks = Checks::new("draw_not_finite");
    for (scheme, block) in drawn().filter(|(_, block)| *block <= 64) {
        let mut x = normal(5, &[8 * block as i32]).as_slice::<f32>().to_vec();
        (x[block / 2], x[2 * block], x[3 * block], x[6 * block - 1]) =
            (f32::NAN, f32::INFINITY, -f32::INFINITY, -f32::NAN);
        let inputs = inputs(scheme, block, &x);
        let mut expected = Draw { scheme, block }.decompose(&inputs).expect("draws");
        // By its value, since NaN has several codes.
        if let Some(half) = scheme.half() {
            expected[0] = expected[0].view_dtype(half).expect("as wide");
        }
        checks.add(draw(&scheme, block, &avals(&inputs), checks.target()), inputs, expected, Within::Each(0.0));
    }
    checks.finish();
}

#[test]
fn what_is_no_key_has_no_source() {
    let scheme = Nf4::from(32).scheme();
    let f32s = |count| Aval::new(&[count], Dtype::Float32);
    let has_source =
        |key: Aval, rest: &[Aval]| draw(&scheme, 32, &[&[f32s(64), key], rest].concat(), Target::Host).is_some();
    let key = |count| Aval::new(&[count], Dtype::Uint32);
    assert!(has_source(key(2), &[f32s(2)]));
    assert!(!has_source(key(1), &[f32s(2)]) && !has_source(f32s(2), &[f32s(2)]));
    assert!(!has_source(key(2), &[]) && !has_source(key(2), &[f32s(3)]));
}
