//! Columns that are coded one after the other, on a CPU that plays a GPU, in every format, against the CPU's kernel, bit for bit.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::Aval;
use tacit_core::kernel::{GpuBackend, Launch, apply};

use super::normal;
use crate::format::{Format, Nf4, Nvfp4};
use crate::kernel::Scheme;
use crate::kernel::gpu::checks::{Checks, Within, avals};
use crate::kernel::gpu::round_columns;
use crate::kernel::gpu::source::Target;
use crate::kernel::quantize::Quantize;
use crate::kernel::round_columns::RoundColumns;
use crate::kernel::tests::schemes;

/// One of each rule: a column by itself has no blocks.
fn formats() -> impl Iterator<Item = (Scheme, usize)> {
    let all = schemes().into_iter().map(|(scheme, block, _)| (scheme, block));
    all.filter(|(scheme, block)| scheme.is_scaled() && *block <= 32).chain([(Nvfp4 { global: true }.scheme(), 16)])
}

/// Columns, a triangle whose other half counts for nothing, and scales of other elements.
fn inputs((scheme, block): (Scheme, usize), [n, width]: [i32; 2]) -> Vec<Array> {
    let global = scheme.is_relative().then(|| Array::from_f32(3.0));
    let others: Vec<Array> = [normal(1, &[width * n, block as i32])].into_iter().chain(global.clone()).collect();
    let results = apply(Quantize::new(scheme, block), &others).expect("quantizes");
    let stored = results[1..].iter().map(|numbers| numbers.reshape(&[width, n]).expect("one for each element"));
    let two = ops::eye::<f32>(width, None, None).and_then(|unit| unit.multiply(Array::from_f32(2.0))).expect("2");
    let spread = normal(3, &[width, width]).multiply(Array::from_f32(0.1)).expect("scales");
    let sides = [normal(2, &[n, width]), spread.add(two).expect("adds")];
    sides.into_iter().chain(stored).chain(global).collect()
}

/// Every launch with its inputs and the dtypes of its results.
pub(super) fn launches(backend: GpuBackend) -> impl Iterator<Item = (Launch, Vec<Aval>, Vec<Dtype>)> {
    formats().map(move |format| {
        let inputs = avals(&inputs(format, [3, 6]));
        let launch = round_columns(&format.0, &inputs, backend.into()).expect("has a source").launch();
        (launch, inputs, vec![Dtype::Float32; 2])
    })
}

#[test]
fn columns_and_errors_are_those_of_the_kernel_of_a_cpu() {
    let mut checks = Checks::new("round_columns");
    let mut check = |format: (Scheme, usize), shape| {
        let inputs = inputs(format, shape);
        let expected = apply(RoundColumns { scheme: format.0 }, &inputs).expect("rounds");
        let parts = round_columns(&format.0, &avals(&inputs), checks.target());
        checks.add(parts, inputs, expected, Within::Each(0.0));
    };
    // Rows for more than one group, fewer than a group has, and such as leave room for six.
    for format in formats() {
        check(format, [11, 6]);
        check(format, [3, 130]);
    }
    check((Nf4::from(32).scheme(), 32), [7, 1000]);
    checks.finish();
}

#[test]
fn rows_that_no_group_has_room_for_have_no_source() {
    let rows_of_a_group = |width: i32| {
        let f32s = |shape: &[i32]| Aval::new(shape, Dtype::Float32);
        let inputs = [f32s(&[9, width]), f32s(&[width, width]), f32s(&[width, 9])];
        round_columns(&Nf4::from(32).scheme(), &inputs, Target::Host).map(|parts| parts.threads / 32)
    };
    assert_eq!([128, 1000, 6144, 6145].map(rows_of_a_group), [Some(8), Some(6), Some(1), None]);
}
