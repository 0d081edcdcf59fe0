//! Hadamard transforms on a CPU that plays a GPU, against the CPU's kernel, bit for bit.

use mlx_rs::{Array, Dtype};
use tacit_core::Aval;
use tacit_core::kernel::{GpuBackend, Launch};

use super::{DTYPES, normal, on_cpu};
use crate::kernel::gpu::checks::{Checks, Within};
use crate::kernel::gpu::hadamard;
use crate::kernel::gpu::source::{Parts, Target};
use crate::kernel::hadamard::Hadamard;

/// Powers of two, and multiples of small orders and of the largest; the longest is more than a group has without asking.
const LENGTHS: [i32; 12] = [1, 2, 4, 64, 1024, 12, 48, 20, 56, 148, 592, 14336];

/// Rows, whose types take turns.
fn arrays() -> impl Iterator<Item = Array> {
    let of_length = |(turn, n): (usize, i32)| {
        let x = normal(1, &[if n > 1024 { 1 } else { 3 }, n]);
        x.as_dtype(DTYPES[turn % 3]).expect("a float type")
    };
    LENGTHS.into_iter().enumerate().map(of_length)
}

fn parts(x: &Array, target: Target) -> Option<Parts> {
    let x = Aval::from(x);
    let orders = Hadamard::orders(&x).expect("has a transform");
    hadamard([orders.0, orders.1].map(|extent| extent as usize), &x, target)
}

/// Every launch with its inputs and the dtypes of its results.
pub(super) fn launches(backend: GpuBackend) -> impl Iterator<Item = (Launch, Vec<Aval>, Vec<Dtype>)> {
    let has_room = move |x: &Array| backend == GpuBackend::Cuda || x.dim(1) <= 8192;
    arrays().filter(has_room).map(move |x| {
        let launch = parts(&x, backend.into()).expect("has a source").launch();
        (launch, vec![Aval::from(&x)], vec![x.dtype()])
    })
}

#[test]
fn transforms_are_those_of_the_kernel_of_a_cpu() {
    let mut checks = Checks::new("hadamard");
    for x in arrays() {
        let expected = on_cpu(Hadamard, std::slice::from_ref(&x));
        checks.add(parts(&x, checks.target()), vec![x], vec![expected], Within::Each(0.0));
    }
    checks.finish();
}

#[test]
fn rows_that_no_group_has_room_for_have_no_source() {
    let memory = |target: Target, rows: i32, n: i32| {
        let x = Aval::new(&[rows, n], Dtype::Float32);
        hadamard([n as usize, 1], &x, target).map(|parts| parts.memory)
    };
    let metal = Target::Gpu(GpuBackend::Metal);
    assert_eq!([8192, 16384].map(|n| memory(metal, 2, n)), [Some(0), None]);
    assert_eq!([8192, 32768, 65536].map(|n| memory(Target::Host, 2, n)), [Some(0), Some(132_096), None]);
    assert_eq!(memory(Target::Host, 0, 64), None);
}
