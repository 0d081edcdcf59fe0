//! The gradients of scales of products on a CPU that plays a GPU, in every format.

use mlx_rs::{Array, Dtype};
use tacit_core::Aval;
use tacit_core::kernel::{GpuBackend, Launch, apply};

use super::normal;
use crate::format::{Affine, Granularity, Int8, Mxfp8, Nf4, Symmetric, mx::ScaleRule};
use crate::kernel::Layout;
use crate::kernel::gpu::checks::{Checks, Within, avals};
use crate::kernel::gpu::product_scale_gradients;
use crate::kernel::gpu::source::{Parts, Target};
use crate::kernel::product_scale_gradients::ProductScaleGradients;
use crate::kernel::tests::{Case, case, cases, stacks};

/// Matrices of the same format, one below the other: their layout, how many there are, and their codes.
type Stack = (Layout, usize, Array);

/// The formats of the CPU's tests as stacks of every kind in turn, matrices of which eight rows share what is read, and blocks of a
/// whole group.
fn all_stacks() -> Vec<Stack> {
    let [short, long] = [32, 4099].map(|block| Int8 { granularity: Granularity::Block(block) });
    let more = [
        (case(&Nf4::from(64), 48, 128), 3),
        (case(&Affine { bits: 3, group: 32 }, 48, 64), 2),
        (case(&Symmetric { bits: 4, group: 64 }, 16, 128), 1),
        (case(&short, 24, 64), 3),
        (case(&Mxfp8 { rule: ScaleRule::Ceil }, 48, 32), 2),
        (case(&Nf4::from(2048), 8, 2048), 1),
        (case(&long, 9, 1000), 1),
    ];
    let of_turn = |(turn, case): (usize, Case)| {
        let counts: Vec<usize> = stacks(case.layout).map(|stack| stack.count).collect();
        (counts[turn % counts.len()], case)
    };
    let in_turn = cases().into_iter().filter(|case| case.layout.scheme.is_scaled()).enumerate().map(of_turn);
    let all = in_turn.chain(more.into_iter().map(|(case, count)| (count, case)));
    all.map(|(count, Case { layout, mut children })| (layout, count, children.swap_remove(0))).collect()
}

/// Both sides of four products of two rows, the matrix of each, and the codes. The last matrix is called by a number that is so much
/// greater.
fn inputs((rows, count, codes): &Stack, beyond: u32) -> Vec<Array> {
    let last = *count as u32 - 1;
    let matrices = [1, 4, 7, 10].map(|entry| entry % (last + 1));
    let matrices = matrices.map(|matrix| if matrix == last { matrix + beyond } else { matrix });
    let side = |seed, extent: usize| normal(seed, &[4, 2, extent as i32]);
    vec![side(1, rows.n / count), side(2, rows.k), Array::from_slice(&matrices, &[4]), codes.clone()]
}

fn parts((rows, count, _): &Stack, inputs: &[Array], target: Target) -> Option<Parts> {
    product_scale_gradients(rows, *count, &avals(inputs), target)
}

/// Every launch with its inputs and the dtypes of its results.
pub(super) fn launches(backend: GpuBackend) -> impl Iterator<Item = (Launch, Vec<Aval>, Vec<Dtype>)> {
    all_stacks().into_iter().map(move |stack| {
        let inputs = inputs(&stack, 0);
        let launch = parts(&stack, &inputs, backend.into()).expect("has a source").launch();
        (launch, avals(&inputs), vec![Dtype::Float32; 2])
    })
}

#[test]
fn gradients_of_scales_of_products_are_those_of_the_kernel_of_a_cpu() {
    let mut checks = Checks::new("product_scale_gradients");
    let mut shared = 0;
    for stack in all_stacks() {
        let (rows, count, _) = stack;
        let expected = apply(ProductScaleGradients { rows, count }, &inputs(&stack, 0)).expect("sums");
        // As in the tests of the CPU's kernel.
        let within = Within::All(if expected[0].size() == 1 { 1e-3 } else { 1e-5 });
        // A matrix that is not there is the last.
        for beyond in [0, 5] {
            let inputs = inputs(&stack, beyond);
            let parts = parts(&stack, &inputs, checks.target());
            shared += usize::from(parts.as_ref().is_some_and(|parts| parts.label.ends_with("_r8")));
            checks.add(parts, inputs, expected.clone(), within);
        }
    }
    assert_eq!(shared, 12);
    checks.finish();
}

#[test]
fn products_that_are_not_those_of_the_matrices_have_no_source() {
    let layout = case(&Nf4::from(32), 6, 64).layout;
    let has_source = |layout: &Layout, count: usize, left: &[i32], right: &[i32]| {
        let side = |shape: &[i32]| Aval::new(shape, Dtype::Float32);
        let codes = Aval::new(&[192], Dtype::Uint8);
        let inputs = [side(left), side(right), Aval::new(&[4], Dtype::Uint32), codes];
        product_scale_gradients(layout, count, &inputs, Target::Host).is_some()
    };
    assert!(has_source(&layout, 3, &[4, 5, 2], &[4, 5, 64]));
    assert!(!has_source(&layout, 2, &[4, 5, 2], &[4, 5, 64]) && !has_source(&layout, 3, &[4, 5, 2], &[4, 5, 63]));
    assert!(!has_source(&layout, 3, &[3, 5, 2], &[4, 5, 64]) && !has_source(&layout, 3, &[4, 0, 2], &[4, 0, 64]));
    assert!(!has_source(&Layout { block: (1 << 20) + 1, ..layout }, 3, &[4, 5, 2], &[4, 5, 64]));
}
