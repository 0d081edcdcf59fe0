//! Products with activations in 8 bits on a CPU that plays a GPU, in every format that has them.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::Aval;
use tacit_core::kernel::{GpuBackend, Launch};

use super::{DTYPES, LONG, ROWS, is_full, normal, on_cpu, tolerance};
use crate::format::{Affine, E4m3, Granularity, Int8, Nf4, Symmetric};
use crate::kernel::Layout;
use crate::kernel::gpu::checks::{Checks, Within, avals};
use crate::kernel::gpu::source::Target;
use crate::kernel::int8_matmul::{Int8Matmul, exact};
use crate::kernel::tests::{Case, case, cases};

fn kernel(layout: Layout) -> Int8Matmul {
    Int8Matmul { exact: exact(layout) }
}

/// Few rows of activations and such as are multiplied in tiles, whose types take turns. Of the short matrices they are a third, unless
/// all are asked for.
fn kernels() -> impl Iterator<Item = (Int8Matmul, Vec<Array>)> {
    let long = [
        case(&Nf4::from(64), 24, 576),
        case(&Int8 { granularity: Granularity::Block(576) }, 24, 576),
        case(&Affine { bits: 4, group: 64 }, 24, 576),
        case(&Symmetric { bits: 3, group: 32 }, 24, 640),
    ];
    let integers = cases().into_iter().chain(long).filter(|case| case.layout.scheme.has_integers());
    integers.enumerate().flat_map(|(turn, Case { layout, children })| {
        let in_turn = ROWS.into_iter().enumerate();
        let chosen = in_turn.filter(move |(at, _)| layout.k > LONG || is_full() || (turn + at) % 3 == 0);
        chosen.map(move |(at, m)| {
            let dtype = DTYPES[(turn / 3 + at) % 3];
            let x = normal(2, &[m, layout.k as i32]).as_dtype(dtype).expect("a float type");
            (kernel(layout), [&[x], children.as_slice()].concat())
        })
    })
}

/// Every launch with its inputs and the dtypes of its results.
pub(super) fn launches(backend: GpuBackend) -> impl Iterator<Item = (Launch, Vec<Aval>, Vec<Dtype>)> {
    kernels().map(move |(kernel, inputs)| {
        let parts = kernel.parts(&avals(&inputs), backend.into()).expect("has a source");
        (parts.launch(), avals(&inputs), vec![inputs[0].dtype()])
    })
}

#[test]
fn products_of_rounded_rows_are_those_of_the_kernel_of_a_cpu() {
    let mut checks = Checks::new("int8_matmul");
    for (kernel, inputs) in kernels() {
        let parts = kernel.parts(&avals(&inputs), checks.target());
        let within = Within::All(tolerance(inputs[0].dtype()));
        let expected = on_cpu(kernel, &inputs);
        checks.add(parts, inputs, vec![expected], within);
    }
    checks.finish();
}

#[test]
fn rows_of_any_magnitude_are_rounded() {
    let mut checks = Checks::new("int8_rows");
    for Case { layout, children } in [case(&Nf4::from(32), 6, 64), case(&Affine { bits: 4, group: 32 }, 5, 96)] {
        let row = normal(3, &[1, layout.k as i32]);
        let times = |factor: f32| row.multiply(Array::from_f32(factor)).expect("scales");
        let with = |number: f32| {
            let mut numbers = row.as_slice::<f32>().to_vec();
            numbers[layout.k / 2] = number;
            Array::from_slice(&numbers, row.shape())
        };
        // 127 over the largest of the first is no float.
        let some = [times(1e-35), times(1e30)].map(|x| (x, Within::Each(1e-4)));
        let none = [with(f32::NAN), with(-f32::INFINITY), times(0.0)].map(|x| (x, Within::Each(0.0)));
        for (x, within) in some.into_iter().chain(none) {
            let inputs = [&[x], children.as_slice()].concat();
            let parts = kernel(layout).parts(&avals(&inputs), checks.target());
            let expected = on_cpu(kernel(layout), &inputs);
            checks.add(parts, inputs, vec![expected], within);
        }
    }
    checks.finish();
}

#[test]
fn rows_of_subnormal_numbers_that_are_zero_give_zeros() {
    let mut checks = Checks::new("int8_rows_flushed").flushing();
    for Case { layout, children } in [case(&Nf4::from(32), 6, 64), case(&Affine { bits: 4, group: 32 }, 5, 96)] {
        let row = normal(3, &[1, layout.k as i32]);
        let tiny = row.multiply(Array::from_f32(1e-42)).expect("scales");
        // Beside the first row what the second one gives is nothing, but not if it is NaN.
        let x = ops::concatenate(&[&row, &tiny], 0).expect("rows of a length");
        let inputs = [&[x], children.as_slice()].concat();
        let parts = kernel(layout).parts(&avals(&inputs), checks.target());
        let expected = on_cpu(kernel(layout), &inputs);
        checks.add(parts, inputs, vec![expected], Within::All(tolerance(Dtype::Float32)));
    }
    checks.finish();
}

#[test]
fn codes_that_stand_for_no_integers_have_no_source() {
    let has_source = |Case { layout, children }: Case| {
        let x = Aval::new(&[2, layout.k as i32], Dtype::Float32);
        kernel(layout).parts(&[vec![x], avals(&children)].concat(), Target::Host).is_some()
    };
    assert!(has_source(case(&Nf4::from(32), 6, 64)) && !has_source(case(&E4m3 { block: 32 }, 6, 64)));
}
