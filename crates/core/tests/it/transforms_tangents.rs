//! `jvp` over trees, and functions with a jvp or a vjp of their own.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use expect_test::expect;
use mlx_rs::fft::{irfft, rfft};
use mlx_rs::ops::indexing::{IntoStrideBy, TryIndexOp};
use mlx_rs::{Array, Dtype, ops};
use tacit::transform::{custom_jvp, custom_vjp, grad, jvp};
use tacit::tree::Gradient;
use tacit::{Error, Result, Value};

use crate::transforms_shared::{check, product, registry};
use crate::types::{Left, Refusing, aval, numbers, vector, with_handlers};

fn tangent(values: &[f32]) -> Gradient {
    vector(values).into()
}

fn of(value: &Value) -> Vec<f32> {
    numbers(&value.dense().expect("dense"))
}

#[test]
fn a_jvp_has_the_tangents_that_are_given() {
    let args = || (vector(&[2.0, 3.0]), vector(&[5.0, 7.0]));
    let (value, change) = jvp(args(), (tangent(&[1.0, 0.0]), Gradient::Nothing), product).expect("runs");
    assert_eq!((of(&value), of(&change)), (vec![10.0, 21.0], vec![5.0, 0.0]));
    let (_, change) = jvp(args(), (tangent(&[1.0, 0.0]), tangent(&[0.0, 1.0])), product).expect("runs");
    assert_eq!(of(&change), [5.0, 3.0]);
    let (_, change) = jvp(args(), (Gradient::Nothing, Gradient::Nothing), product).expect("runs");
    assert_eq!(of(&change), [0.0, 0.0]);
}

/// MLX went behind the list of the tangents, and ended the process.
#[test]
fn a_pad_has_derivatives_by_its_value() {
    let pad =
        |(x, value): (Array, Array)| ops::pad(&x, &[(1, 2)], value, None)?.multiply(vector(&[1.0, 2.0, 3.0, 4.0, 5.0]));
    let args = || (vector(&[2.0, 3.0]), Array::from_f32(7.0));
    let by_value = || Gradient::from(Array::from_f32(1.0));
    let (value, change) = jvp(args(), (Gradient::Nothing, by_value()), pad).expect("runs");
    assert_eq!((of(&value), of(&change)), (vec![7.0, 4.0, 9.0, 28.0, 35.0], vec![1.0, 0.0, 0.0, 4.0, 5.0]));
    let (_, change) = jvp(args(), (tangent(&[1.0, 10.0]), by_value()), pad).expect("runs");
    assert_eq!(of(&change), [1.0, 2.0, 30.0, 4.0, 5.0]);
    let (_, change) = jvp(args(), (tangent(&[1.0, 10.0]), Gradient::Nothing), pad).expect("runs");
    assert_eq!(of(&change), [0.0, 2.0, 30.0, 0.0, 0.0]);
    let summed = |args: (Array, Array)| pad(args)?.sum(None);
    let (dx, dvalue) = grad(summed).call(args()).expect("runs");
    assert_eq!(numbers(dx.array().expect("there is one")), [2.0, 3.0]);
    assert_eq!(numbers(dvalue.array().expect("there is one")), [10.0]);
    let mut compiled =
        tacit::compile(|args: (Array, Array)| -> Result<Array> { Ok(grad(summed).call(args)?.1.array()?.clone()) });
    for _ in 0..2 {
        assert_eq!(of(&compiled.call(args()).expect("runs")), [10.0]);
    }
}

/// MLX takes an inverse transform of odd length for an even one.
#[test]
fn real_transforms_of_odd_length_have_tangents() -> Result<()> {
    let inverse = |x: Array| irfft(&x.as_dtype(Dtype::Complex64)?, 5, -1);
    let (x, along) = (vector(&[1.0, 2.0, 3.0]), [0.5, -1.0, 2.0]);
    let (value, change) = jvp(x, tangent(&along), inverse)?;
    assert_eq!(value.dense()?.shape(), [5]);
    let (change, expected) = (of(&change), numbers(&inverse(vector(&along))?));
    assert!(change.len() == 5 && change.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6), "{change:?}");
    let gradient = |x: Array| {
        let power = |x: Array| {
            let result = rfft(&x, None, None)?;
            result.real()?.square()?.add(result.imag()?.square()?)?.sum(None)
        };
        Ok::<_, Error>(grad(power).call(x)?.array()?.clone())
    };
    // The sum of squares is quadratic, so the tangent of its gradient is the gradient there.
    let along = [0.5, -1.0, 2.0, 0.25, 3.0];
    let (_, change) = jvp(vector(&[1.0, 2.0, 3.0, -1.0, 0.5]), tangent(&along), gradient)?;
    let (change, expected) = (of(&change), numbers(&gradient(vector(&along))?));
    assert!(change.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-4), "{change:?} {expected:?}");
    Ok(())
}

/// MLX takes the view of the tangent as that lies, and refused it in the eval.
#[test]
fn a_view_by_strides_has_the_tangent_of_one_number() {
    let view = |x: Array| ops::as_strided(ops::broadcast_to(x, &[2, 2])?, &[2, 2], &[2, 1], 0);
    let along = Gradient::from(Array::from_f32(5.0));
    let (value, change) = jvp(Array::from_f32(2.0), along, view).expect("runs");
    assert_eq!((of(&value), of(&change)), (vec![2.0; 4], vec![5.0; 4]));
}

/// MLX takes each part of what goes backwards for its first number.
#[test]
fn parts_have_tangents_that_go_backwards() -> Result<()> {
    let along = vector(&[1.0, 2.0, 3.0, 4.0]).try_index((..).stride_by(-1))?;
    let second = |x: Array| x.split_equal(2, 0)?.swap_remove(1).negative();
    let (_, change) = jvp(vector(&[0.0; 4]), Gradient::from(along), second)?;
    assert_eq!(of(&change), [-2.0, -1.0]);
    Ok(())
}

#[test]
fn a_jvp_goes_through_the_children_of_an_implicit_array() {
    let _scopes = with_handlers(registry());
    let args = || (Left::of(&vector(&[2.0, 3.0])), vector(&[5.0, 7.0]));
    let children = vec![("array".to_owned(), tangent(&[1.0, 0.0]))];
    let dw = Gradient::Node { name: "test.Left", children };
    let (_, change) = jvp(args(), (dw, tangent(&[0.0, 1.0])), product).expect("runs");
    assert_eq!(of(&change), [5.0, 3.0]);
    let (_, change) = jvp(args(), (Gradient::Nothing, tangent(&[0.0, 1.0])), product).expect("runs");
    assert_eq!(of(&change), [0.0, 3.0]);
}

#[test]
fn a_result_that_is_not_float_has_a_zero_tangent() {
    let f = |x: Array| Ok::<_, Error>((ops::indexing::argmax(&x, None)?, x.square()?));
    let (_, (first, second)) = jvp(vector(&[2.0, 3.0]), tangent(&[1.0, 1.0]), f).expect("runs");
    assert_eq!((first.to_string(), of(&second)), ("u32[]".to_owned(), vec![4.0, 6.0]));
}

#[test]
fn tangents_that_do_not_fit_are_an_error() {
    let _scopes = with_handlers(registry());
    let args = || (Left::of(&vector(&[2.0, 3.0])), Value::from(vector(&[5.0, 7.0])));
    check(
        &expect![[r#"
        the tangents do not fit the primals: Left -> an array at `0`
        help: give one tangent for each leaf, of its shape and dtype, or `Gradient::Nothing`"#]],
        jvp(args(), (tangent(&[1.0, 0.0]), Gradient::Nothing), product),
    );
    check(
        &expect![[r#"
        the tangent of `1` is f32[1], and the array f32[2]
        help: give one tangent for each leaf, of its shape and dtype, or `Gradient::Nothing`"#]],
        jvp(args(), (Gradient::Nothing, tangent(&[1.0])), product),
    );
    let sum = |list: Vec<Array>| list[0].sum(None);
    let list = || vec![args().1];
    check(
        &expect![[r#"
        the tangents do not fit the primals: list of 1 -> list at the root
        help: give one tangent for each leaf, of its shape and dtype, or `Gradient::Nothing`"#]],
        jvp(list(), Vec::<Gradient>::new(), sum),
    );
    check(
        &expect![[r#"
        the tangents do not fit the primals: list of 1 -> list of 2 at the root
        help: give one tangent for each leaf, of its shape and dtype, or `Gradient::Nothing`"#]],
        jvp(list(), vec![tangent(&[1.0, 0.0]), tangent(&[1.0, 0.0])], sum),
    );
    let keyed =
        |map: BTreeMap<String, Array>| map.values().next().map_or_else(|| Ok(Array::from_f32(0.0)), |x| x.sum(None));
    check(
        &expect![[r#"
        the tangents do not fit the primals: map with the keys w -> map with the keys x at the root
        help: give one tangent for each leaf, of its shape and dtype, or `Gradient::Nothing`"#]],
        jvp(
            BTreeMap::from([("w".to_owned(), args().1)]),
            BTreeMap::from([("x".to_owned(), tangent(&[1.0, 0.0]))]),
            keyed,
        ),
    );
    let index = Value::from(Array::from_int(1));
    check(
        &expect![[r#"
        no argument is float
        help: differentiate with respect to a float array"#]],
        jvp(index, Gradient::Nothing, |x: Array| x.sum(None)),
    );
}

#[test]
fn a_custom_vjp_takes_over() {
    let calls = Rc::new(Cell::new(0));
    let counted = Rc::clone(&calls);
    let mut scaled = custom_vjp(product, move |(w, x): (Array, Array), y: Array, cotangent: Array| {
        counted.set(counted.get() + 1);
        let back = cotangent.multiply(Array::from_f32(10.0))?;
        Ok::<_, Error>((back.multiply(x)?, back.multiply(w)?.add(y.multiply(Array::from_f32(0.0))?)?))
    });
    let mut gradient = grad(move |(w, x): (Array, Array)| scaled.call((w, x))?.dense()?.sum(None));
    for _ in 0..2 {
        let (dw, dx) = gradient.call((vector(&[2.0, 3.0]), vector(&[5.0, 7.0]))).expect("runs");
        assert_eq!(numbers(dw.array().expect("dense")), [50.0, 70.0]);
        assert_eq!(numbers(dx.array().expect("dense")), [20.0, 30.0]);
    }
    assert_eq!(calls.get(), 2);
}

#[test]
fn a_custom_vjp_of_an_implicit_argument_goes_on_to_its_children() {
    let _scopes = with_handlers(registry());
    let loss = |array: &Array| -> Result<Array> {
        let mut scaled = custom_vjp(product, |(w, x): (Array, Array), _: Array, cotangent: Array| {
            let back = cotangent.multiply(Array::from_f32(10.0))?;
            // Both are intercepted: `w` is implicit here too.
            Ok::<_, Error>((back.multiply(&x)?, w.multiply(back)?))
        });
        Ok(scaled.call((Left::of(array), vector(&[5.0, 7.0])))?.dense()?.sum(None)?)
    };
    let gradient = grad(move |w: Array| loss(&w)).call(vector(&[2.0, 3.0])).expect("runs");
    assert_eq!(numbers(gradient.array().expect("dense")), [50.0, 70.0]);
}

#[test]
fn integers_of_a_custom_vjp_have_no_gradient() {
    let mut rows = custom_vjp(
        |(x, rows): (Array, Array)| x.take_axis(rows, 0),
        |(x, rows): (Array, Array), _: Array, _: Array| Ok::<_, Error>((ops::ones_like(&x)?, rows)),
    );
    let mut gradient = grad(move |(x, indices): (Array, Array)| rows.call((x, indices))?.dense()?.sum(None));
    let (dx, nothing) = gradient.call((vector(&[2.0, 3.0]), Array::from_slice(&[1i32], &[1]))).expect("runs");
    assert_eq!((numbers(dx.array().expect("dense")), nothing.is_nothing()), (vec![1.0, 1.0], true));
}

#[test]
fn a_custom_vjp_that_gives_wrong_gradients_is_an_error() {
    let x = || Value::from(vector(&[1.0, 2.0]));
    let of = |backward: fn(Array, Array, Array) -> Result<Array>| {
        let mut f = custom_vjp(|x: Array| x.square(), backward);
        grad(move |x: Array| f.call(x)?.dense()?.sum(None))
    };
    check(
        &expect![[r#"
        a custom vjp gave f32[] as the gradient of the root, which is f32[2]
        help: return a gradient of the argument's shape and dtype, zeros where there is none"#]],
        of(|x, _, _| Ok(x.sum(None)?)).call(x()),
    );
    check(
        &expect![[r#"
        the type refuses to be materialized: of its own
        help: write a handler for this primitive and this type"#]],
        of(|_, _, _| Err(Error::refuse("of its own"))).call(x()),
    );
    let mut list =
        custom_vjp(|list: Vec<Array>| list[0].square(), |_: Vec<Array>, _: Array, _: Array| Ok::<_, Error>(Vec::new()));
    check(
        &expect![[r#"
            the gradients of a custom vjp do not fit the arguments: list of 1 -> list at the root
            help: return the structure of the arguments with a gradient at each leaf"#]],
        grad(move |x: Array| list.call(vec![x])?.dense()?.sum(None)).call(x()),
    );
    let nothing = |_: Array| Ok::<_, Error>(Vec::<Array>::new());
    let mut empty = custom_vjp(nothing, |x: Array, _: Vec<Array>, _: Vec<Array>| Ok::<_, Error>(x));
    check(
        &expect![[r#"
            the function returns no array
            help: return at least one"#]],
        empty.call(x()),
    );
}

#[test]
fn a_type_that_refuses_needs_no_materialization_without_float_children() {
    let mut f = custom_vjp(
        |(_, x): (Array, Array)| x.square(),
        |(_, x): (Array, Array), _: Array, cotangent: Array| {
            Ok::<_, Error>((Array::from_int(0), cotangent.multiply(x)?))
        },
    );
    let refusing = || Value::from(Refusing { aval: aval(&[2]) });
    let mut gradient = grad(move |x: Array| f.call((refusing(), x))?.dense()?.sum(None));
    let gradient = gradient.call(vector(&[5.0])).expect("runs");
    assert_eq!(numbers(gradient.array().expect("dense")), [5.0]);
}

#[test]
fn a_custom_jvp_takes_over_in_both_modes() {
    let square = || {
        custom_jvp(
            |x: Array| x.square(),
            |x: Array, tangent: Array| x.multiply(tangent)?.multiply(Array::from_f32(20.0)),
        )
    };
    let mut f = square();
    let (value, change) = jvp(vector(&[3.0]), tangent(&[1.0]), move |x: Array| f.call(x)?.dense()).expect("runs");
    assert_eq!((of(&value), of(&change)), (vec![9.0], vec![60.0]));
    let mut f = square();
    let gradient = grad(move |x: Array| f.call(x)?.dense()?.sum(None)).call(vector(&[3.0])).expect("runs");
    assert_eq!(numbers(gradient.array().expect("dense")), [60.0]);
}

/// The documentation of JAX's `custom_jvp`: a logarithm of a sum whose derivative is stable, and `f(x, y) = x sin y` with
/// rules for both arguments.
#[test]
fn the_examples_of_jax_have_the_gradients_that_it_documents() {
    let mut log1pexp = custom_jvp(
        |x: Array| x.exp()?.log1p(),
        |x: Array, dx: Array| {
            let weight = Array::from_f32(1.0).subtract(x.exp()?.add(Array::from_f32(1.0))?.reciprocal()?)?;
            weight.multiply(dx)
        },
    );
    // `exp(100)` is infinite, and the derivative of the plain function not a number there.
    let gradient = grad(move |x: Array| log1pexp.call(x)?.dense()?.sum(None)).call(vector(&[0.0, 100.0]));
    assert_eq!(numbers(gradient.expect("runs").array().expect("dense")), [0.5, 1.0]);
    let mut f = custom_jvp(
        |(x, y): (Array, Array)| x.sin()?.multiply(y),
        |(x, y): (Array, Array), (dx, dy): (Array, Array)| {
            x.cos()?.multiply(dx)?.multiply(y)?.add(x.sin()?.multiply(dy)?)
        },
    );
    let mut gradient = grad(move |(x, y): (Array, Array)| f.call((x, y))?.dense()?.sum(None));
    let (dx, dy) = gradient.call((vector(&[2.0]), vector(&[3.0]))).expect("runs");
    assert_eq!(numbers(dx.array().expect("dense")), [2f32.cos() * 3.0]);
    assert_eq!(numbers(dy.array().expect("dense")), [2f32.sin()]);
}

#[test]
fn a_custom_jvp_is_transposed_for_an_implicit_argument_and_beside_integers() {
    let _scopes = with_handlers(registry());
    let loss = |(w, x): (Array, Array)| -> Result<Array> {
        let mut f = custom_jvp(
            |(w, i, x): (Array, Array, Array)| Ok::<_, Error>((i, product((w, x))?)),
            |(w, i, x): (Array, Array, Array), (dw, _, dx): (Array, Array, Array)| {
                let tangent = w.multiply(dx)?.add(x.multiply(dw)?.multiply(Array::from_f32(100.0))?)?;
                Ok::<_, Error>((ops::zeros_like(&i)?, tangent))
            },
        );
        let whole = Array::from_slice(&[1, 2], &[2]);
        Ok(f.call((Left::of(&w), whole, x))?.1.dense()?.sum(None)?)
    };
    let (dw, dx) = grad(loss).call((vector(&[2.0, 3.0]), vector(&[5.0, 7.0]))).expect("runs");
    assert_eq!(numbers(dw.array().expect("dense")), [500.0, 700.0]);
    assert_eq!(numbers(dx.array().expect("dense")), [2.0, 3.0]);
}

#[test]
fn a_gradient_of_a_gradient_goes_through_the_rule_of_a_custom_jvp() {
    let first = |x: Array| -> Result<Array> {
        let mut f = custom_jvp(|x: Array| x.square(), |x: Array, dx: Array| x.multiply(&x)?.multiply(dx));
        let gradient = grad(move |x: Array| f.call(x)?.dense()?.sum(None)).call(x)?;
        Ok(gradient.array()?.sum(None)?)
    };
    // The rule says `x^2`, whose own derivative is `2 x`.
    let second = grad(first).call(vector(&[3.0])).expect("runs");
    assert_eq!(numbers(second.array().expect("dense")), [6.0]);
}

#[test]
fn a_custom_jvp_sees_the_tangent_of_the_dense_array() {
    let _scopes = with_handlers(registry());
    let f = |w: Array| -> Result<Array> {
        let mut f = custom_jvp(product, |(w, _): (Array, Array), (dw, dx): (Array, Array)| {
            w.multiply(dx)?.add(dw.multiply(Array::from_f32(100.0))?)
        });
        f.call((Left::of(&w), vector(&[5.0, 7.0])))?.dense()
    };
    let (_, change) = jvp(vector(&[2.0, 3.0]), tangent(&[1.0, 2.0]), f).expect("runs");
    assert_eq!(of(&change), [100.0, 200.0]);
}

#[test]
fn a_custom_jvp_that_gives_wrong_tangents_is_an_error() {
    let of = |forward: fn(Array, Array) -> Result<Array>| {
        let mut f = custom_jvp(|x: Array| x.square(), forward);
        jvp(vector(&[1.0, 2.0]), tangent(&[1.0, 2.0]), move |x: Array| f.call(x)?.dense())
    };
    check(
        &expect!["the jvp of the function gave f32[] as the tangent of result 0, which is f32[2]"],
        of(|_, tangent| Ok(tangent.sum(None)?)),
    );
    check(
        &expect![[r#"
        the type refuses to be materialized: of its own
        help: write a handler for this primitive and this type"#]],
        of(|_, _| Err(Error::refuse("of its own"))),
    );
    let mut f = custom_jvp(|x: Array| x.square(), |_: Array, dx: Array| dx.sum(None));
    let gradient = grad(move |x: Array| f.call(x)?.dense()?.sum(None)).call(vector(&[1.0, 2.0]));
    check(&expect!["the jvp of the function gave f32[] as the tangent of result 0, which is f32[2]"], gradient);
}
