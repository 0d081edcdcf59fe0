//! The kernel against plain ops, and mapped.

use mlx_rs::error::Exception;
use mlx_rs::{Array, transforms};
use tacit_conformance::oracle::relative_error;
use tacit_core::Policy;
use tacit_core::kernel::{Kernel, apply};
use tacit_kernels::Orientation;

use super::super::tests::{Case, cases, mapped_along, normal, stacks};
use super::{ProductScaleGradients, product_scale_gradients};
use crate::kernel::StackLayout;

/// Both sides of four products of two rows, and the matrix of each.
fn products(StackLayout { rows, count, .. }: StackLayout) -> [Array; 3] {
    let matrices: Vec<u32> = (0..4).map(|entry| (3 * entry + 1) % count as u32).collect();
    let side = |seed, extent: usize| normal(seed, &[4, 2, extent as i32]);
    [side(1, rows.n / count), side(2, rows.k), Array::from_slice(&matrices, &[4])]
}

fn near(found: &Array, expected: &Array, name: &str) {
    assert_eq!((found.shape(), found.dtype()), (expected.shape(), expected.dtype()), "{name}");
    let tolerance = if found.size() == 1 { 1e-3 } else { 1e-5 };
    let error = relative_error(found, expected).expect("floats");
    assert!(error <= tolerance, "{name}: {error}");
}

#[test]
fn they_equal_their_decomposition_and_a_loop_over_examples() {
    for Case { layout, children } in cases().into_iter().filter(|case| case.layout.scheme.is_scaled()) {
        for stack in stacks(layout) {
            let kernel = || ProductScaleGradients { rows: layout, count: stack.count };
            let [left, right, matrices] = products(stack);
            let operands = match stack.orientation {
                Orientation::Transposed => [&right, &left, &matrices],
                Orientation::Plain => [&left, &right, &matrices],
            };
            let codes = &children[0];
            let found = product_scale_gradients(operands, stack.orientation, codes, (layout, stack.count));
            let inputs = [left, right, matrices, codes.clone()];
            let expected = kernel().decompose(&inputs).expect("runs");
            for (found, expected) in found.expect("fits").iter().zip(&expected) {
                near(found, expected, kernel().name());
            }
            let examples = [normal(5, &[3, 4, 2, inputs[0].dim(2)]), inputs[1].clone(), inputs[2].clone()];
            let mapped = [&examples[..], &inputs[3..]].concat();
            let [fast, slow] = mapped_along(kernel, &mapped, &[Some(0), None, None, None]);
            near(&fast, &slow, kernel().name());
        }
    }
}

/// A derivative of gradients is that of the plain ops, which the policy is asked for.
#[test]
fn their_own_gradients_are_those_of_the_decomposition() {
    let _allow = Policy::Allow.scope();
    for Case { layout, children } in cases().into_iter().filter(|case| case.layout.scheme.biased) {
        let kernel = || ProductScaleGradients { rows: layout, count: 1 };
        let inputs = [normal(1, &[1, 2, layout.n as i32]), normal(2, &[1, 2, layout.k as i32])];
        let rest = [Array::from_slice(&[0u32], &[1]), children[0].clone()];
        let gradients = |f: &dyn Fn(&[Array]) -> Vec<Array>| {
            let loss = |sides: &[Array]| -> Result<Vec<Array>, Exception> {
                let results = f(&[sides, &rest].concat());
                Ok(vec![results[0].square()?.sum(None)?.add(results[1].square()?.sum(None)?)?])
            };
            transforms::value_and_grad_with_argnums(loss, &[0, 1][..])(&inputs).expect("a gradient").1
        };
        let found = gradients(&|inputs| apply(kernel(), inputs).expect("fits"));
        let expected = gradients(&|inputs| kernel().decompose(inputs).expect("runs"));
        for (found, expected) in found.iter().zip(&expected) {
            near(found, expected, kernel().name());
        }
    }
}
