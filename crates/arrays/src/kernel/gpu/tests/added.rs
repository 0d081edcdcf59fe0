//! Stored matrices in sums with dense arrays, on a CPU that plays a GPU, in every format, against the CPU's kernel, bit for bit.

use mlx_rs::{Array, Dtype};
use tacit_core::Aval;
use tacit_core::kernel::{GpuBackend, Launch};

use super::{DTYPES, normal, on_cpu};
use crate::format::Nf4;
use crate::kernel::added::AddDense;
use crate::kernel::gpu::add_dense;
use crate::kernel::gpu::checks::{Checks, Within, avals};
use crate::kernel::gpu::source::{Parts, Target};
use crate::kernel::tests::{Case, case, cases};

/// The matrix by itself and times a number, with dense arrays whose types take turns.
fn kernels() -> impl Iterator<Item = (AddDense, Vec<Array>)> {
    cases().into_iter().enumerate().flat_map(|(turn, Case { layout, children })| {
        [false, true].map(|scaled| {
            let dtype = DTYPES[(turn + usize::from(scaled)) % 3];
            let x = normal(8, &[layout.n as i32, layout.k as i32]).as_dtype(dtype).expect("a float type");
            let factor = scaled.then(|| Array::from_f32(0.37));
            let inputs: Vec<Array> = [x].into_iter().chain(factor).chain(children.iter().cloned()).collect();
            (AddDense { layout, scaled }, inputs)
        })
    })
}

fn parts(AddDense { layout, scaled }: &AddDense, inputs: &[Array], target: Target) -> Option<Parts> {
    add_dense(layout, *scaled, &avals(inputs), target)
}

/// Every launch with its inputs and the dtypes of its results.
pub(super) fn launches(backend: GpuBackend) -> impl Iterator<Item = (Launch, Vec<Aval>, Vec<Dtype>)> {
    kernels().map(move |(kernel, inputs)| {
        let launch = parts(&kernel, &inputs, backend.into()).expect("has a source").launch();
        (launch, avals(&inputs), vec![inputs[0].dtype()])
    })
}

#[test]
fn sums_with_dense_arrays_are_those_of_the_kernel_of_a_cpu() {
    let mut checks = Checks::new("add_dense");
    for (kernel, inputs) in kernels() {
        let parts = parts(&kernel, &inputs, checks.target());
        let expected = on_cpu(kernel, &inputs);
        checks.add(parts, inputs, vec![expected], Within::Each(0.0));
    }
    checks.finish();
}

#[test]
fn dense_arrays_of_other_lengths_and_types_have_no_source() {
    let Case { layout, children } = case(&Nf4::from(32), 6, 64);
    let children = avals(&children);
    let has_source = |own: &[Aval]| {
        let inputs = [own, &children].concat();
        add_dense(&layout, own.len() > 1, &inputs, Target::Host).is_some()
    };
    let of = |count: i32, dtype| Aval::new(&[count], dtype);
    let x = of(384, Dtype::Bfloat16);
    assert!(has_source(std::slice::from_ref(&x)) && has_source(&[x.clone(), of(1, Dtype::Float32)]));
    assert!(!has_source(&[of(383, Dtype::Float32)]) && !has_source(&[of(384, Dtype::Int32)]));
    assert!(!has_source(&[x.clone(), of(1, Dtype::Float16)]) && !has_source(&[x, of(0, Dtype::Float32)]));
}
