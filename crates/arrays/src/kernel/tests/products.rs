//! Products with each format's matrices.

use mlx_rs::{Array, Dtype, transforms};
use tacit_conformance::oracle::{floats, relative_error};
use tacit_kernels::Orientation;

use super::super::gather::GatherRows;
use super::super::gather_matmul::GatherMatmul;
use super::super::int8_matmul::{Int8Matmul, exact};
use super::super::matmul::Matmul;
use super::super::{Coding, StackLayout};
use super::{Case, cases, check, float_inputs, mapped, mapped_along, normal, stacks, weighted};

#[test]
fn matmul_equals_its_decomposition() {
    for Case { layout, children } in cases() {
        for (orientation, depth) in [(Orientation::Transposed, layout.k), (Orientation::Plain, layout.n)] {
            for rows in [&[1][..], &[3], &[20], &[], &[2, 3]] {
                let x = normal(2, &[rows, &[depth as i32]].concat());
                let inputs = [&[x], children.as_slice()].concat();
                let argnums = [vec![0], float_inputs(&children, 1)].concat();
                check(|| Matmul { layout, orientation, groups: None }, &inputs, &argnums, 1e-5);
            }
            for dtype in [Dtype::Float16, Dtype::Bfloat16] {
                let x = normal(2, &[3, depth as i32]).as_dtype(dtype).expect("a float type");
                let inputs = [&[x], children.as_slice()].concat();
                // One rounding of a sum in another order.
                check(|| Matmul { layout, orientation, groups: None }, &inputs, &[], 4e-3);
            }
        }
    }
}

/// `x`, which of its groups are chosen, and with which matrices they are multiplied.
fn chosen(stack: StackLayout, groups: &[i32], pairs: &[i32]) -> [Array; 3] {
    let depth = if stack.orientation == Orientation::Plain { stack.rows.n / stack.count } else { stack.rows.k };
    let x = normal(2, &[groups, &[2, depth as i32]].concat());
    let count = pairs.iter().product::<i32>() as u32;
    let indices = |of: u32| Array::from_slice(&(0..count).map(|i| (i * 7 + 3) % of).collect::<Vec<_>>(), pairs);
    [x, indices(*groups.last().expect("groups") as u32), indices(stack.count as u32)]
}

#[test]
fn gather_matmul_equals_its_decomposition() {
    for Case { layout, children } in cases() {
        for stack in stacks(layout) {
            let inputs = [&chosen(stack, &[3], &[5]), children.as_slice()].concat();
            let argnums = [vec![0], float_inputs(&children, 3)].concat();
            check(|| GatherMatmul { stack }, &inputs, &argnums, 1e-5);
            for dtype in [Dtype::Float16, Dtype::Bfloat16] {
                let mut inputs = inputs.clone();
                inputs[0] = inputs[0].as_dtype(dtype).expect("a float type");
                // One rounding of a sum in another order.
                check(|| GatherMatmul { stack }, &inputs, &[], 4e-3);
            }
        }
    }
}

#[test]
fn gather_matmul_mapped_over_any_input_equals_a_loop() {
    for Case { layout, children } in cases() {
        for stack in stacks(layout) {
            let [one_x, one_left, one_right] = chosen(stack, &[4], &[3]);
            let [x, ..] = chosen(stack, &[2, 4], &[3]);
            let [_, left, right] = chosen(stack, &[4], &[3, 2]);
            for (inputs, axes) in [
                ([&x, &one_left, &one_right], [Some(0), None, None]),
                ([&one_x, &one_left, &right], [None, None, Some(1)]),
                ([&one_x, &left, &one_right], [None, Some(1), None]),
                ([&x, &left, &right], [Some(0), Some(1), Some(1)]),
            ] {
                let inputs: Vec<Array> = inputs.into_iter().chain(&children).cloned().collect();
                let axes = [axes.as_slice(), &vec![None; children.len()]].concat();
                let [fast, slow] = mapped_along(|| GatherMatmul { stack }, &inputs, &axes);
                assert_eq!(fast.shape(), slow.shape());
                // All rows that chose a matrix are one product, whose sums may be taken in another order than those of one.
                let error = relative_error(&fast, &slow).expect("compares");
                assert!(error < 1e-5, "{} {error}", layout.scheme.kernel("GatherMatmul"));
            }
        }
    }
}

#[test]
fn int8_matmul_equals_its_decomposition_and_has_the_gradient_of_the_product() {
    for Case { layout, children } in cases() {
        let takes = match layout.scheme.coding {
            Coding::Table { bits: 4, .. } => !layout.scheme.is_grouped(),
            Coding::Signed | Coding::Unsigned { bits: 4 | 8 } => true,
            _ => false,
        };
        if !takes {
            continue;
        }
        let inputs = [&[normal(2, &[3, layout.k as i32])], children.as_slice()].concat();
        let kernel = || Int8Matmul { exact: exact(layout) };
        check(kernel, &inputs, &[], 1e-5);
        let batch = [&[normal(2, &[2, 3, layout.k as i32])], children.as_slice()].concat();
        check(kernel, &batch, &[], 1e-5);
        let gradient = |f: &dyn Fn(&[Array]) -> tacit_core::Result<Array>| {
            let argnums = [vec![0], float_inputs(&children, 1)].concat();
            let loss = |inputs: &[Array]| weighted(&f(inputs)?);
            transforms::value_and_grad_with_argnums(loss, argnums.as_slice())(&inputs).expect("a gradient").1
        };
        let found = gradient(&|inputs| super::super::int8_matmul(&inputs[0], layout, &inputs[1..]));
        let expected =
            gradient(&|inputs| super::super::matmul(&inputs[0], layout, &inputs[1..], Orientation::Transposed));
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(floats(found).expect("floats"), floats(expected).expect("floats"));
        }
        let x = [&[normal(7, &[3, 2, layout.k as i32])], children.as_slice()].concat();
        let [fast, slow] = mapped(kernel, &x, 1);
        assert!(relative_error(&fast, &slow).expect("compares") < 1e-6);
    }
}

#[test]
fn mapped_over_rows_they_equal_a_loop() {
    for Case { layout, children } in cases() {
        let (n, k) = (layout.n as i32, layout.k as i32);
        for (orientation, shape, axis) in [
            (Orientation::Transposed, [3, 2, k], 0),
            (Orientation::Transposed, [3, 2, k], 1),
            (Orientation::Plain, [3, n, 2], 2),
        ] {
            let inputs = [&[normal(7, &shape)], children.as_slice()].concat();
            let [fast, slow] = mapped(|| Matmul { layout, orientation, groups: None }, &inputs, axis);
            assert!(relative_error(&fast, &slow).expect("compares") < 1e-6);
        }
        let x = [&[normal(7, &[3, 2, 4, k])], children.as_slice()].concat();
        let [fast, slow] = mapped(|| Matmul { layout, orientation: Orientation::Transposed, groups: None }, &x, 1);
        assert_eq!(fast.shape(), [2, 3, 4, n]);
        assert!(relative_error(&fast, &slow).expect("compares") < 1e-5);
        let inputs = [&[Array::from_slice(&[0_u32, 2, 2, 2, 1, 0], &[3, 2])], children.as_slice()].concat();
        for axis in [0, 1] {
            let [fast, slow] = mapped(|| GatherRows { layout, dtype: Dtype::Float32 }, &inputs, axis);
            assert_eq!(fast.shape(), slow.shape());
            assert_eq!(floats(&fast).expect("evaluates"), floats(&slow).expect("evaluates"));
        }
    }
}
