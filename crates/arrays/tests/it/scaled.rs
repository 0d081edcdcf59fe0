//! An array times a number.

use std::slice::from_ref;

use expect_test::expect;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::{Diagonal, Nf4Array, Scaled, ScaledChannels, ste};
use tacit_conformance::oracle::floats;
use tacit_core::tree::Gradient;
use tacit_core::{Counters, Policy, Result, Value, implicit};

use crate::messages::said_of;
use crate::operands::{FLOATS, both, check_built, mxfp4, normal, normal_of, oracle};

const F32: Dtype = Dtype::Float32;

fn scaled(w: Value) -> Value {
    let dtype = w.aval().expect("given").dtype;
    Scaled::new(w, &Array::from_f32(0.375).as_dtype(dtype).expect("a scalar")).expect("fits").into()
}

#[test]
fn products_are_scaled() {
    for dtype in FLOATS {
        for w in both(dtype, 1, &[40, 96]).map(scaled) {
            let x = |rows, columns| Value::from(normal_of(dtype, 2, &[rows, columns]));
            let c = Value::from(normal_of(dtype, 3, &[40]));
            // Plain MLX sums the gradient of the scalar in its own type; see below.
            let oracle = if dtype == F32 { oracle(dtype) } else { oracle(dtype).values_only() };
            oracle.check("x W^T", &[x(3, 96), w.clone()], |a| Ok(vec![a[0].matmul(a[1].t())?]));
            oracle.check("W x", &[x(96, 3), w.clone()], |a| Ok(vec![a[1].matmul(&a[0])?]));
            oracle.check("addmm", &[x(3, 96), w.clone(), c], |a| {
                Ok(vec![ops::addmm(&a[2], &a[0], a[1].t(), 0.5, -2.0)?])
            });
            oracle.check("addmm, left", &[x(96, 3), w, x(40, 3)], |a| {
                Ok(vec![ops::addmm(&a[2], &a[1], &a[0], 0.5, -2.0)?])
            });
        }
    }
}

#[test]
fn the_gradient_of_a_half_scalar_is_near_that_of_single_precision() {
    // That for the scales inside builds the dense array.
    let _allow = Policy::Allow.scope();
    for (w, wide) in both(Dtype::Bfloat16, 1, &[40, 96]).into_iter().zip(both(F32, 1, &[40, 96])) {
        let gradient = |w: Value| {
            let dtype = w.aval().expect("given").dtype;
            let x = normal_of(dtype, 2, &[3, 96]);
            let loss = move |w: Array| x.matmul(w.t())?.as_dtype(F32)?.square()?.sum(None);
            let found = tacit_core::transform::grad(loss).call(scaled(w)).expect("is handled");
            let Gradient::Node { children, .. } = found else { panic!("of a view") };
            children[1].1.array().expect("dense").as_dtype(F32).expect("f32").item_exact::<f32>()
        };
        let (found, expected) = (gradient(w), gradient(wide));
        assert!((found - expected).abs() < 0.02 * expected.abs(), "{found} {expected}");
    }
}

#[test]
fn a_scalar_factor_keeps_the_fused_product() {
    let x = Value::from(normal(2, &[3, 96]));
    let s = Value::from(Array::from_f32(0.5));
    let operands = [x, mxfp4(&normal(1, &[40, 96])), s];
    oracle(F32).check("x (W s)^T", &operands, |a| Ok(vec![a[0].matmul(a[1].multiply(&a[2])?.t())?]));
    oracle(F32).check("x (s W)^T", &operands, |a| Ok(vec![a[0].matmul(a[2].multiply(&a[1])?.t())?]));
    oracle(F32).check("x (W / s)^T", &operands, |a| Ok(vec![a[0].matmul(a[1].divide(&a[2])?.t())?]));
    oracle(F32).check("x (-(W s) s)^T", &operands, |a| {
        Ok(vec![a[0].matmul(a[1].multiply(&a[2])?.negative()?.multiply(&a[2])?.t())?])
    });
}

#[test]
fn two_scalars_are_one() {
    let _deny = Policy::Deny.scope();
    let w = implicit(mxfp4(&normal(1, &[4, 32])), |w| w.multiply(Array::from_f32(2.0))?.multiply(Array::from_f32(4.0)))
        .expect("is handled");
    let w = w.downcast::<Scaled>().expect("a view");
    assert_eq!(w.inner().to_string(), "Mxfp4(f32[4,32])");
    assert!(w.scale().eq_exact(Array::from_f32(8.0)).expect("evaluates"));
}

#[test]
fn an_array_factor_is_built() {
    let operands = [mxfp4(&normal(1, &[4, 32])), normal(2, &[32]).into()];
    let multiply = |a: Vec<Array>| Ok(vec![a[0].multiply(&a[1])?]);
    check_built("W * row", &operands, multiply);
}

#[test]
fn integers_are_not_scaled() {
    let w = tacit_conformance::opaque::Opaque::new(Array::from_slice(&[1i32, 2, 3, 4], &[2, 2]));
    let operands = [Value::from(w)];
    let twice = |a: Vec<Array>| Ok(vec![a[0].multiply(Array::from_int(2))?]);
    check_built("2 W", &operands, twice);
}

#[test]
fn views_and_rows_are_scaled() {
    let rows = || Value::from(Array::from_slice(&[3u32, 0, 39], &[3]));
    for w in both(F32, 1, &[40, 96]).map(scaled) {
        oracle(F32).check("W^T", from_ref(&w), |a| Ok(vec![a[0].t()]));
        oracle(F32).check("rows", &[w, rows()], |a| Ok(vec![a[0].take_axis(&a[1], 0)?]));
    }
}

#[test]
fn what_is_linear_builds_at_most_the_inner_array() {
    type Op = fn(&Array) -> Result<Array>;
    let cases: [(&str, Op); 6] = [
        ("sum", |w| Ok(w.sum_axis(0, None)?)),
        ("reshape", |w| Ok(w.reshape(&[-1])?)),
        ("slice", |w| Ok(w.try_index((1..3, 2..9))?)),
        ("split", |w| Ok(w.split_equal(2, 0)?.swap_remove(1))),
        ("broadcast", |w| Ok(ops::broadcast_to(w, &[2, 40, 96])?)),
        ("absolute value", |w| Ok(w.abs()?)),
    ];
    for w in both(F32, 1, &[40, 96]).map(scaled) {
        for (name, f) in cases {
            oracle(F32).allowing().check(name, from_ref(&w), move |a| Ok(vec![f(&a[0])?]));
        }
    }
}

/// No factor of `f64` is one of what it scales as floats, and the floats may be beyond `f32` where the multiple is not.
#[test]
fn doubles_are_scaled_before_they_are_cast() -> Result<()> {
    let _allow = Policy::Allow.scope();
    let square = |array: Array| array.as_dtype(Dtype::Float64)?.square();
    let large = square(Array::from_slice(&[2f32.powi(100); 2], &[2]))?;
    let small = square(Array::from_f32(2f32.powi(-100)))?;
    let diagonal = Value::from(Diagonal::new(large.clone())?);
    for (w, expected) in [(Value::from(large), &[1.0, 1.0][..]), (diagonal, &[1.0, 0.0, 0.0, 1.0][..])] {
        let y = implicit(Scaled::new(w, &small)?, |w| w.as_dtype(F32))?.dense()?;
        assert_eq!(floats(&y)?, expected);
    }
    Ok(())
}

#[test]
fn casts() {
    for w in both(F32, 1, &[40, 96]).map(scaled) {
        oracle(F32).check("narrower", from_ref(&w), |a| Ok(vec![a[0].as_dtype(Dtype::Bfloat16)?]));
        oracle(F32).allowing().check("integer", &[w], |a| Ok(vec![a[0].as_dtype(Dtype::Int32)?]));
    }
    for w in both(Dtype::Bfloat16, 1, &[40, 96]).map(scaled) {
        oracle(F32).values_only().check("wider", from_ref(&w), |a| Ok(vec![a[0].as_dtype(F32)?]));
        let x = Value::from(normal(2, &[3, 96]));
        oracle(Dtype::Bfloat16)
            .values_only()
            .check("x W^T", &[x, w], |a| Ok(vec![a[0].matmul(a[1].as_dtype(F32)?.t())?]));
    }
}

#[test]
fn a_straight_through_weight_is_scaled() {
    let master = normal(1, &[40, 96]);
    let w = ste(&master, |w| Nf4Array::quantize(w, 64)).expect("quantizes");
    let operands = [normal(2, &[3, 96]).into(), w];
    oracle(F32).check("x (2 W)^T", &operands, |a| Ok(vec![a[0].matmul(a[1].multiply(Array::from_f32(2.0))?.t())?]));
}

#[test]
fn what_is_no_scale() {
    let w = || Nf4Array::quantize(&normal(1, &[4, 32]), 32).expect("quantizes");
    let said = [
        said_of(Scaled::new(w(), &normal(2, &[4]))),
        said_of(Scaled::new(w(), &Array::from_int(2))),
        said_of(Scaled::new(Array::from_slice(&[1i32, 2], &[2]), &Array::from_int(2))),
    ];
    expect![[r#"
        the scale is f32[4], and that of f32[4,32] is f32[]
        help: give a scalar of the array's dtype
        the scale is i32[], and that of f32[4,32] is f32[]
        help: give a scalar of the array's dtype
        i32[2] cannot be scaled
        help: scale a float array
    "#]]
    .assert_eq(&said.concat());
}

#[test]
fn what_is_split_is_built_once() {
    let _allow = Policy::Allow.scope();
    let w = Scaled::new(Nf4Array::quantize(&normal(1, &[96, 64]), 64).expect("quantizes"), &Array::from_f32(0.5));
    let (parts, counters) =
        Counters::during(|| implicit(w.expect("a factor"), |w| w.split_equal(3, 0)).expect("is split"));
    assert_eq!((parts.len(), counters.materialized), (3, 1));
}

#[test]
fn scaled_channels_without_elements_are_dense() -> Result<()> {
    let w = Nf4Array::quantize(&normal(1, &[8, 64]), 64)?;
    let w = ScaledChannels::new(w, &normal(2, &[64]), -1)?;
    let none = implicit(&w, |w| ops::broadcast_to(w, &[0, 8, 64]))?;
    assert_eq!(none.dense()?.shape(), [0, 8, 64]);
    Ok(())
}
