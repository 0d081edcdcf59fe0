//! Constants.

use expect_test::expect;
use mlx_rs::ops::indexing::IndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::Constant;
use tacit_core::{ImplicitArray, Materialize, Policy, Result, Value, implicit};

use crate::messages::check;
use crate::operands::{check_built, normal, oracle};
use crate::structured::constant;

const F32: Dtype = Dtype::Float32;

type Plain = fn(&Array) -> Result<Array>;

fn of(shape: &[i32], value: f32) -> Value {
    Constant::full(shape, &Array::from_f32(value)).expect("one number").into()
}

#[test]
fn elementwise_primitives_and_views_keep_it() {
    let _deny = Policy::Deny.scope();
    let plain: [(&str, Plain); 9] = [
        ("exp", |a| Ok(a.exp()?)),
        ("as_dtype", |a| Ok(a.as_dtype(Dtype::Float16)?)),
        ("t", |a| Ok(a.t())),
        ("reshape", |a| Ok(a.reshape(&[2, 3, 4])?)),
        ("expand and squeeze", |a| Ok(a.expand_dims(1)?.squeeze_axes(&[1])?)),
        ("flatten and unflatten", |a| Ok(ops::unflatten(a.flatten(None, None)?, 0, &[12, 2])?)),
        ("slice", |a| Ok(a.index((1..3, ..)))),
        ("broadcast", |a| Ok(ops::broadcast_to(a, &[2, 4, 6])?)),
        ("reciprocal", |a| Ok(a.negative()?.square()?.rsqrt()?)),
    ];
    for (name, f) in plain {
        let y = implicit(constant(), move |a| f(&a)).expect(name);
        assert!(y.downcast::<Constant>().is_some(), "{name} of a constant is {y}");
        oracle(F32).check(name, &[constant()], move |a| Ok(vec![f(&a[0])?]));
    }
}

#[test]
fn reductions_count() {
    for axes in [&[0][..], &[1], &[0, 1], &[-1]] {
        let f = move |a: Vec<Array>| {
            Ok(vec![
                a[0].sum_axes(axes, true)?,
                a[0].mean_axes(axes, false)?,
                a[0].prod_axes(axes, false)?,
                a[0].max_axes(axes, false)?,
                a[0].min_axes(axes, true)?,
            ])
        };
        oracle(F32).check("reductions", &[constant()], f);
        oracle(F32).check("reductions", &[of(&[4, 6], -1.25)], f);
    }
}

#[test]
fn a_sum_of_more_elements_than_a_half_type_counts() {
    let _deny = Policy::Deny.scope();
    let tiny = Array::from_f32(0.001).as_dtype(Dtype::Float16).expect("f16");
    let w = Constant::full(&[1000, 1000], &tiny).expect("one number");
    let y = implicit(w, |a| a.sum(None)).expect("is handled");
    let found = Value::from(y.downcast::<Constant>().expect("a constant").value()).dense().expect("dense");
    let found = found.as_dtype(F32).expect("f32").item_exact::<f32>();
    assert!((found - 1000.0).abs() < 2.0, "{found}");
}

/// A sum of ninety thousand gradients is beyond the integers of every half type, and beyond the range of f16.
#[test]
fn the_gradient_of_the_element_is_summed_in_f32() {
    for half in [Dtype::Float16, Dtype::Bfloat16] {
        let whole = |w: &Array| Constant::full(&[300, 300], w);
        let plain: [(&str, Plain, f32); 6] = [
            ("a cast", |w| Ok(w.add(Array::from_f32(0.0))?), 90_000.0),
            ("a function", |w| Ok(w.negative()?), -90_000.0),
            ("a complex array", |w| Ok(w.as_dtype(Dtype::Complex64)?.real()?), 90_000.0),
            ("two constants", |w| Ok(w.add(w)?), 180_000.0),
            ("a dense array", |w| Ok(ops::zeros_dtype(&[300, 300], w.dtype())?.subtract(w)?), -90_000.0),
            ("a maximum", |w| Ok(ops::broadcast_to(w.max(None)?, &[300, 300])?), 90_000.0),
        ];
        for (name, f, expected) in plain {
            let loss = move |w: &Array| -> Result<Array> {
                implicit(whole(w)?, |w| f(&w.as_dtype(half)?)?.as_dtype(F32)?.sum(None))?.dense()
            };
            let mut gradient = mlx_rs::transforms::grad(move |w: &Array| Ok(loss(w)?));
            let found = gradient(&Array::from_f32(1.0)).expect("a gradient").item_exact::<f32>();
            assert_eq!(found.to_bits(), expected.to_bits(), "{name} in {half:?}");
        }
    }
}

#[test]
fn half_types_round_as_dense_arrays_do() {
    for half in [Dtype::Float16, Dtype::Bfloat16] {
        let w = |value: f32| {
            let value = Array::from_f32(value).as_dtype(half).expect("a half type");
            Value::from(Constant::full(&[4, 6], &value).expect("one number"))
        };
        let f = |a: Vec<Array>| {
            let c = a[0].multiply(&a[0])?.add(a[1].exp()?)?;
            Ok(vec![c.sum(None)?, c.t().as_dtype(F32)?, c.subtract(&a[2])?, a[2].matmul(c.t())?])
        };
        oracle(half).check(
            "half types",
            &[w(0.7), w(-1.3), normal(1, &[4, 6]).as_dtype(half).expect("a half type").into()],
            f,
        );
    }
}

/// Files of earlier versions have the element of a half type in that type; any other type is refused.
#[test]
fn an_element_in_the_half_type_itself_is_taken() -> Result<()> {
    let array = Constant::full(&[2, 3], &Array::from_f32(0.7).as_dtype(Dtype::Float16)?)?;
    for (dtype, fits) in [(F32, true), (Dtype::Float16, true), (Dtype::Bfloat16, false), (Dtype::Int32, false)] {
        let other = array.with_children(vec![Array::from_f32(0.75).as_dtype(dtype)?.into()])?;
        let other = Value::from(other);
        let other = other.downcast::<Constant>().expect("a constant");
        assert_eq!(other.check().is_ok(), fits, "{dtype:?}");
        if fits {
            oracle(Dtype::Float16).check("of a file", &[other.clone().into()], |a| Ok(vec![a[0].exp()?.sum(None)?]));
        }
    }
    Ok(())
}

#[test]
fn indices_that_are_implicit_are_looked_at() {
    let table = || Value::from(Constant::full(&[4, 6], &Array::from_f32(0.5)).expect("one number"));
    let rows = |row: i32| Value::from(Constant::full(&[3], &Array::from_int(row)).expect("one number"));
    oracle(F32).allowing().values_only().check("take", &[table(), rows(2)], |a| Ok(vec![a[0].take_axis(&a[1], 0)?]));
}

#[test]
fn integers_and_booleans() {
    let w = || Value::from(Constant::full(&[4, 6], &Array::from_int(3)).expect("one number"));
    oracle(F32).check("sum", &[w()], |a| Ok(vec![a[0].sum(None)?, a[0].max(None)?]));
    oracle(F32).check("compared", &[w(), of(&[4, 6], 3.0)], |a| Ok(vec![a[0].eq(&a[1])?]));
    let flag = Constant::full(&[4, 6], &Array::from_bool(true)).expect("one flag");
    oracle(F32).check("count", &[flag.into()], |a| Ok(vec![a[0].sum(None)?, a[0].logical_not()?]));
}

#[test]
fn two_constants_make_one() {
    let f = |a: Vec<Array>| Ok(vec![a[0].multiply(&a[1])?.add(a[1].exp()?)?.power(&a[0])?, a[0].lt(&a[1])?]);
    oracle(F32).check("a b + exp b", &[constant(), of(&[4, 6], 2.0)], f);
    // Broadcast against each other.
    oracle(F32).check("a b + exp b", &[constant(), of(&[6], 2.0)], f);
}

#[test]
fn a_constant_with_a_dense_array_on_either_side() {
    let x = Value::from(normal(1, &[4, 6]));
    oracle(F32).check("elementwise", &[constant(), x], |a| {
        let (c, x) = (&a[0], &a[1]);
        Ok(vec![c.add(x)?, x.subtract(c)?, c.subtract(x)?, x.divide(c)?, ops::maximum(c, x)?, x.gt(c)?])
    });
}

#[test]
fn a_product_is_a_sum_over_rows_or_columns() {
    let x = |shape: &[i32]| Value::from(normal(1, shape));
    for left in [&[3, 4][..], &[2, 3, 4], &[4]] {
        oracle(F32).check("x C", &[x(left), constant()], |a| Ok(vec![a[0].matmul(&a[1])?]));
    }
    for right in [&[6, 3][..], &[6]] {
        oracle(F32).check("C x", &[constant(), x(right)], |a| Ok(vec![a[0].matmul(&a[1])?]));
    }
    oracle(F32).check("C C^T", &[constant(), constant()], |a| Ok(vec![a[0].matmul(a[1].t())?]));
    let batch = [of(&[2, 4, 6], 0.5), x(&[2, 6, 3])];
    oracle(F32).check("a batch", &batch, |a| Ok(vec![a[0].matmul(&a[1])?]));
    oracle(F32).check("x C + c", &[x(&[3, 4]), constant(), x(&[6])], |a| {
        Ok(vec![ops::addmm(&a[2], &a[0], &a[1], 0.5, -2.0)?])
    });
}

#[test]
fn nan_and_infinity_stay() {
    for value in [f32::NAN, f32::INFINITY] {
        let f = |a: Vec<Array>| Ok(vec![a[0].sum(None)?, ops::tanh(&a[0])?]);
        oracle(F32).values_only().check("sum, tanh", &[of(&[2, 3], value)], f);
    }
}

#[test]
fn what_may_tell_elements_apart_is_built() {
    let f = |a: Vec<Array>| Ok(vec![a[0].cumsum(1, None, None)?]);
    check_built("cumsum", &[constant()], f);
}

#[test]
fn nothing_to_sum() {
    let f = |a: Vec<Array>| Ok(vec![a[0].sum(None)?, a[0].t()]);
    oracle(F32).allowing().values_only().check("sum", &[of(&[0, 3], 1.0)], f);
}

#[test]
fn zeros_and_ones() {
    let ones = Constant::ones(&[2], F32).expect("ones").value().as_slice::<f32>().to_vec();
    let zeros = Constant::zeros(&[2], F32).expect("zeros").value().as_slice::<f32>().to_vec();
    assert_eq!([ones, zeros].concat(), [1.0, 0.0]);
}

#[test]
fn bad_arguments() {
    check(
        Constant::full(&[2], &normal(1, &[2])),
        expect![[r#"
            the value of a constant is f32[2], which is not one element
            help: give a scalar, such as `Array::from_f32(0.5)`"#]],
    );
    check(
        Constant::zeros(&[2, -1], F32),
        expect![[r#"
            f32[2,-1] has a negative extent
            help: count extents from 0"#]],
    );
}
