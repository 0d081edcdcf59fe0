//! One matrix for all entries of a batch.

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::{Repeated, Sparse24};
use tacit_core::{Policy, Result, Value, implicit};

use crate::messages::check;
use crate::operands::{both, nf4, normal, oracle};

const F32: Dtype = Dtype::Float32;

fn repeated(w: impl Into<Value>) -> Value {
    Repeated::new(w, &[2]).expect("a matrix").into()
}

#[test]
fn products_are_those_of_the_matrix() {
    for w in both(F32, 1, &[40, 96]).map(repeated) {
        let x = |rows, columns| Value::from(normal(2, &[2, rows, columns]));
        oracle(F32).check("x W", &[x(3, 40), w.clone()], |a| Ok(vec![a[0].matmul(&a[1])?]));
        oracle(F32).check("x W^T", &[x(3, 96), w.clone()], |a| Ok(vec![a[0].matmul(a[1].swap_axes(-1, -2)?)?]));
        oracle(F32).check("W x", &[x(96, 3), w.clone()], |a| Ok(vec![a[1].matmul(&a[0])?]));
        oracle(F32).check("of another batch", &[normal(2, &[3, 2, 5, 40]).into(), w.clone()], |a| {
            Ok(vec![a[0].matmul(ops::broadcast_to(&a[1], &[3, 2, 40, 96])?)?])
        });
        oracle(F32).check("of one entry", &[normal(2, &[5, 40]).into(), w], |a| {
            Ok(vec![a[0].matmul(a[1].split_equal(2, 0)?.swap_remove(1).squeeze_axes(&[0])?)?])
        });
    }
}

#[test]
fn a_matrix_without_products_is_built_for_one() -> Result<()> {
    let w = repeated(Sparse24::prune(&normal(1, &[8, 16]))?);
    let x = normal(2, &[2, 3, 16]);
    let product = |(x, w): (Array, Array)| x.matmul(w.swap_axes(-1, -2)?);
    let denied = {
        let _deny = Policy::Deny.scope();
        implicit((&x, &w), product)
    };
    let error = denied.expect_err("it is built").to_string();
    assert!(error.contains("Sparse24(f32[16,8])"), "{error}");
    oracle(F32).allowing().check("x W^T", &[x.into(), w], |a| Ok(vec![a[0].matmul(a[1].swap_axes(-1, -2)?)?]));
    Ok(())
}

#[test]
fn only_matrices_are_repeated() {
    check(
        Repeated::new(normal(1, &[2, 3, 4]), &[2]),
        expect![[r#"
            f32[2,3,4] is not repeated for a batch of shape [2]
            help: give a matrix, and count extents from 0"#]],
    );
    check(
        Repeated::new(nf4(&normal(1, &[8, 32]), 32), &[-1]),
        expect![[r#"
            Nf4(f32[8,32]) is not repeated for a batch of shape [-1]
            help: give a matrix, and count extents from 0"#]],
    );
}
