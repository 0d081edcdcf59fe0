//! The identity matrix.

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::{Diagonal, Identity};
use tacit_core::{Policy, Value, implicit};

use crate::messages::check;
use crate::operands::{check_built, normal, oracle};
use crate::structured::identity;

const F32: Dtype = Dtype::Float32;

fn x(shape: &[i32]) -> Value {
    normal(1, shape).into()
}

#[test]
fn products_are_the_other_operand() {
    for left in [&[3, 5][..], &[2, 3, 5], &[5]] {
        oracle(F32).check("x I", &[x(left), identity()], |a| Ok(vec![a[0].matmul(a[1].t())?]));
    }
    for right in [&[5, 3][..], &[5]] {
        oracle(F32).check("I x", &[identity(), x(right)], |a| Ok(vec![a[0].matmul(&a[1])?]));
    }
    for (alpha, beta) in [(1.0, 1.0), (0.5, -2.0)] {
        oracle(F32).check("x I + c", &[x(&[3, 5]), identity(), x(&[5])], move |a| {
            Ok(vec![ops::addmm(&a[2], &a[0], &a[1], alpha, beta)?])
        });
        oracle(F32).check("I x + c", &[identity(), x(&[5, 3]), x(&[5, 1])], move |a| {
            Ok(vec![ops::addmm(&a[2], &a[0], &a[1], alpha, beta)?])
        });
    }
}

#[test]
fn a_power_of_it_is_itself() {
    let _deny = Policy::Deny.scope();
    let y = implicit(identity(), |a| a.matmul(&a)?.matmul(a.t())).expect("is handled");
    assert_eq!(y.to_string(), "Identity(f32[5,5])");
}

#[test]
fn multiplied_it_is_diagonal() {
    let _deny = Policy::Deny.scope();
    let y = implicit(identity(), |a| a.multiply(Array::from_f32(2.0))).expect("is handled");
    assert!(y.downcast::<Diagonal>().is_some());
    for operand in [x(&[]), x(&[5, 5]), x(&[5])] {
        oracle(F32).check("I x", &[identity(), operand], |a| Ok(vec![a[1].multiply(&a[0])?]));
    }
}

#[test]
fn every_type() {
    for dtype in [Dtype::Float16, Dtype::Int32, Dtype::Bool, Dtype::Float32] {
        oracle(F32).check("astype", &[identity()], move |a| Ok(vec![a[0].as_dtype(dtype)?]));
    }
}

#[test]
fn integers_multiplied_are_built() {
    let w = Value::from(Identity::new(5, Dtype::Int32).expect("rows"));
    check_built("2 I", &[w], |a| Ok(vec![a[0].multiply(Array::from_int(2))?]));
}

#[test]
fn bad_arguments() {
    check(
        Identity::new(0, F32),
        expect![[r#"
            an identity matrix cannot be f32[0,0]
            help: give it one row or more"#]],
    );
    check(
        Identity::new(-3, F32),
        expect![[r#"
            an identity matrix cannot be f32[-3,-3]
            help: give it one row or more"#]],
    );
}
