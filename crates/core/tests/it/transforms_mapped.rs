//! `vmap` and `checkpoint` over trees.

use std::cell::Cell;
use std::rc::Rc;

use expect_test::expect;
use mlx_rs::error::Exception;
use mlx_rs::fft::{irfft, rfft};
use mlx_rs::ops::indexing::{self, IntoStrideBy, TryIndexMutOp, TryIndexOp};
use mlx_rs::{Array, Dtype, Stream, linalg, ops, with_stream};
use tacit::transform::{checkpoint, custom_jvp, custom_vjp, grad, jvp, vmap};
use tacit::tree::Gradient;
use tacit::{Counters, Error, Policy, Result, Value};
use tacit_conformance::oracle::relative_error;

use crate::transforms_shared::{check, product, registry};
use crate::types::{Left, error, matrix, numbers, said_of, vector, with_handlers};

fn of(value: &Value) -> Vec<f32> {
    numbers(&value.dense().expect("dense"))
}

#[test]
fn a_function_of_one_example_is_mapped() {
    let (x, w) = (matrix(3, 2), vector(&[1.0, 10.0]));
    let dot = |(w, x): (Array, Array)| w.multiply(x)?.sum(None);
    let rows = vmap([None, Some(0)], 0, dot).call((w.clone(), x.clone())).expect("runs");
    assert_eq!(of(&rows), [21.0, 43.0, 65.0]);
    let both = vmap(-1, 0, dot).call((x.clone(), x)).expect("runs");
    assert_eq!(of(&both), [35.0, 56.0]);
}

#[test]
fn results_have_the_axis_where_it_is_asked_for() {
    let x = || Value::from(matrix(3, 2));
    let two = |x: Array| Ok::<_, Error>((x.clone(), x));
    let (first, second) = vmap(0, [Some(1), Some(0)], two).call(x()).expect("runs");
    assert_eq!((first.to_string(), second.to_string()), ("f32[2,3]".to_owned(), "f32[3,2]".to_owned()));
    assert_eq!(of(&first), [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
    assert_eq!(vmap(0, -1, |x: Array| x.square()).call(x()).expect("runs").to_string(), "f32[2,3]");
}

/// MLX takes each part of what goes backwards for its first number.
#[test]
fn parts_of_examples_that_go_backwards_are_their_elements() {
    let x = matrix(2, 4).try_index(((..).stride_by(-1), (..).stride_by(-1))).expect("a view");
    let second = vmap(0, 0, |x: Array| x.split_equal(2, 0)?.swap_remove(1).negative()).call(x).expect("runs");
    assert_eq!(of(&second), [-6.0, -5.0, -2.0, -1.0]);
}

#[test]
fn a_mapped_function_keeps_the_vjp_of_its_own() {
    // The identity, whose gradient is cut at one; and a product with a shared argument.
    let clipped = || {
        custom_vjp(
            |(x, w): (Array, Array)| x.multiply(w),
            |(x, w): (Array, Array), _: Array, cotangent: Array| -> Result<(Array, Array)> {
                Ok((ops::clip(&cotangent, (-1.0, 1.0))?.multiply(w)?, x))
            },
        )
    };
    let loss = |(x, w): (Array, Array)| -> Result<Array> {
        let mut one = clipped();
        let mut mapped = vmap([Some(0), None], 0, move |(x, w): (Array, Array)| one.call((x, w))?.dense());
        Ok(mapped.call((x, w))?.dense()?.multiply(Array::from_f32(5.0))?.sum(None)?)
    };
    let (dx, dw) = grad(loss).call((matrix(3, 2), vector(&[2.0, 3.0]))).expect("runs");
    assert_eq!(numbers(dx.array().expect("dense")), [2.0, 3.0, 2.0, 3.0, 2.0, 3.0]);
    assert_eq!(numbers(dw.array().expect("dense")), [9.0, 12.0]);
}

#[test]
fn gradients_of_half_floats_that_all_examples_share_are_summed_in_f32() {
    let half = |array: Array| array.as_dtype(Dtype::Bfloat16).expect("casts");
    let loss = |(x, w): (Array, Array)| -> Result<Array> {
        let mut one = custom_vjp(
            |(x, w): (Array, Array)| x.multiply(w),
            |(x, w): (Array, Array), _: Array, cotangent: Array| -> Result<(Array, Array)> {
                Ok((cotangent.multiply(w)?, cotangent.multiply(x)?))
            },
        );
        let mut mapped = vmap([Some(0), None], 0, move |(x, w): (Array, Array)| one.call((x, w))?.dense());
        Ok(mapped.call((x, w))?.dense()?.as_dtype(Dtype::Float32)?.sum(None)?)
    };
    let (x, w) = (half(ops::ones::<f32>(&[1024]).expect("ones")), half(Array::from_f32(1.0)));
    let (_, dw) = grad(loss).call((x, w)).expect("runs");
    let dw = dw.array().expect("dense");
    // Ones that are added in `bf16` stay at 256.
    assert_eq!((dw.dtype(), numbers(&dw.as_dtype(Dtype::Float32).expect("casts"))), (Dtype::Bfloat16, vec![1024.0]));
}

#[test]
fn a_mapped_function_keeps_the_jvp_of_its_own() {
    let mapped = |x: Array| -> Result<Array> {
        let mut tenfold = custom_jvp(
            |x: Array| x.square(),
            |_: Array, dx: Array| -> Result<Array> { Ok(dx.multiply(Array::from_f32(10.0))?) },
        );
        vmap(1, 0, move |x: Array| tenfold.call(x)?.dense()).call(x)?.dense()
    };
    let tangent = Gradient::Dense(matrix(2, 3));
    let (value, change) = jvp(matrix(2, 3), tangent, mapped).expect("runs");
    assert_eq!(of(&value), [1.0, 16.0, 4.0, 25.0, 9.0, 36.0]);
    assert_eq!(of(&change), [10.0, 40.0, 20.0, 50.0, 30.0, 60.0]);
}

#[test]
fn an_implicit_array_goes_to_every_example_whole() {
    let _scopes = with_handlers(registry());
    let _deny = Policy::Deny.scope();
    let args = (Left::of(&vector(&[1.0, 10.0])), matrix(3, 2));
    let (outcome, counters) = Counters::during(|| vmap([None, Some(0)], 0, product).call(args));
    assert_eq!(of(&outcome.expect("is handled")), [1.0, 20.0, 3.0, 40.0, 5.0, 60.0]);
    assert_eq!(counters.handled, 1);
}

#[test]
fn axes_that_do_not_fit_are_an_error() {
    let x = || Value::from(matrix(3, 2));
    let w = || Left::of(&vector(&[1.0, 10.0]));
    let said = [
        said_of(vmap(0, 0, product).call((w(), x()))),
        said_of(vmap([Some(0)], 0, product).call((x(), x()))),
        said_of(vmap([Some(0), Some(1)], 0, product).call((x(), x()))),
        said_of(vmap([Some(2), None], 0, product).call((x(), x()))),
        said_of(vmap(0, 0, product).call((Array::from_f32(1.0), x()))),
        said_of(vmap(None, 0, product).call((x(), x()))),
        said_of(vmap(0, 3, product).call((x(), x()))),
        said_of(vmap(0, None, product).call((x(), x()))),
        said_of(vmap(0, [Some(0), Some(0)], product).call((x(), x()))),
    ];
    expect![[r#"
        axis 0 of `0` is to be mapped, and Left(f32[2]) is implicit
        help: give it no axis, as in `[Some(0), None]`: it goes to every example whole
        1 axes do not fit the arguments (*, *), whose leaves are 2
        help: give one axis for each `*`, `None` for a leaf that is not mapped, or one axis for all
        axis 1 of `1`, which is f32[3,2], has the length 2, and the mapped axis of `0` 3
        help: map over axes of one length
        axis 2 is out of range for the argument at `0`, f32[3,2]
        help: choose an axis from -2 to 1
        axis 0 is out of range for the argument at `0`, f32[]
        help: give it no axis: a scalar has none
        no argument is mapped
        help: give at least one leaf an axis, or call the function itself
        axis 3 is out of range for the result at the root, f32[2] of each example
        help: choose an axis from -2 to 1
        the result at the root, f32[2] of each example, has no axis to go to
        help: give every result an axis, as in `0`
        2 axes do not fit the results *, whose leaves are 1
        help: give one axis for each `*`, `None` for a leaf that is not mapped, or one axis for all
    "#]]
    .assert_eq(&said.concat());
}

#[test]
fn what_a_mapped_function_fails_with_comes_out_as_itself() {
    let x = || Value::from(matrix(3, 2));
    let failing = |_: Array| -> Result<Array> { Err(Error::refuse("of its own")) };
    let error = error(vmap(0, 0, failing).call(x()));
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    check(
        &expect![[r#"
            an array of a traced function is evaluated, and it has no data
            help: move `eval`, `item`, `as_slice` and the printing of arrays out of the function, and return its arrays instead of keeping them"#]],
        vmap(0, 0, |x: Array| {
            x.eval()?;
            Ok::<_, Error>(x)
        })
        .call(x()),
    );
    assert_eq!(of(&vmap(0, 0, |x: Array| x.sum(None)).call(x()).expect("runs")), [3.0, 7.0, 11.0]);
}

#[test]
fn a_checkpointed_function_is_called_again_for_the_gradient() {
    let _scopes = with_handlers(registry());
    let calls = Rc::new(Cell::new(0));
    let counted = Rc::clone(&calls);
    let layer = move |(w, x): (Array, Array)| {
        counted.set(counted.get() + 1);
        w.multiply(x.exp()?)?.sin()
    };
    let args = || (Left::of(&vector(&[0.5, 0.25])), Value::from(vector(&[0.1, 0.2])));
    let plain = layer.clone();
    let (w, dx) = grad(move |args: (Array, Array)| plain(args)?.sum(None)).call(args()).expect("runs");
    let expected = (numbers(w.child("array").array().expect("dense")), numbers(dx.array().expect("dense")));
    calls.set(0);

    let mut again = checkpoint(layer);
    assert_eq!(of(&again.call(args()).expect("runs")).len(), 2);
    assert_eq!(calls.replace(0), 1);
    let loss = move |x: Array| -> Result<Array> { Ok(again.call((args().0, x))?.dense()?.sum(None)?) };
    let gradient = grad(loss).call(args().1).expect("runs");
    assert_eq!(calls.get(), 2);
    assert_eq!(numbers(gradient.array().expect("dense")), expected.1);
}

#[test]
fn integers_of_a_checkpointed_function_stay_as_they_are() {
    let mut rows = checkpoint(|(x, rows): (Array, Array)| x.take_axis(rows, 0)?.square());
    let mut gradient = grad(move |(x, indices): (Array, Array)| rows.call((x, indices))?.dense()?.sum(None));
    let (dx, nothing) = gradient.call((vector(&[2.0, 3.0]), Array::from_slice(&[1i32, 1], &[2]))).expect("runs");
    assert_eq!((numbers(dx.array().expect("dense")), nothing.is_nothing()), (vec![0.0, 12.0], true));
}

#[test]
fn an_error_in_a_checkpointed_function_comes_out_of_either_pass() {
    let forward =
        error(checkpoint(|_: Array| -> Result<Array> { Err(Error::refuse("of its own")) }).call(vector(&[1.0])));
    assert!(matches!(forward, Error::Refused { .. }), "{forward:?}");
    let calls = Cell::new(0);
    let mut second = checkpoint(move |x: Array| -> Result<Array> {
        if calls.replace(1) == 1 {
            return Err(Error::refuse("of its own"));
        }
        Ok(x.square()?)
    });
    let backward = error(grad(move |x: Array| second.call(x)?.dense()?.sum(None)).call(vector(&[1.0])));
    assert!(matches!(backward, Error::Refused { .. }), "{backward:?}");
}

#[test]
fn a_checkpoint_goes_with_its_graph() {
    let held = Rc::new(());
    let inside = Rc::clone(&held);
    let mut f = checkpoint(move |x: Array| {
        let _ = &inside;
        x.square()
    });
    let y = f.call(ops::ones::<f32>(&[4]).expect("ones")).expect("runs").dense().expect("dense");
    drop(f);
    assert_eq!(Rc::strong_count(&held), 2);
    y.eval().expect("evaluates");
    drop(y);
    assert_eq!(Rc::strong_count(&held), 1);
}

#[test]
fn what_a_checkpointed_function_captures_keeps_its_gradient() {
    let loss = |(t, x): (Array, Array)| {
        let captured = t.clone();
        checkpoint(move |x: Array| captured.multiply(x)?.sum(None)).call(x)?.dense()
    };
    let (t, x) = grad(loss).call((Array::from_f32(2.0), vector(&[1.0, 5.0]))).expect("differentiates");
    assert_eq!(numbers(t.array().expect("dense")), [6.0]);
    assert_eq!(numbers(x.array().expect("dense")), [2.0, 2.0]);
}

/// Each example by itself, and the results side by side along axis 0: what a mapped function has to give.
fn one_by_one(x: &Array, axis: i32, f: fn(Array) -> Result<Array>) -> Result<Array> {
    let examples = x.move_axis(axis, 0)?;
    let results = (0..examples.dim(0)).map(|at| f(examples.try_index(at)?)).collect::<Result<Vec<_>>>()?;
    Ok(ops::stack(&results, 0)?)
}

fn of_gradient(x: &Array, f: impl FnMut(Array) -> Result<Array, Exception>) -> Result<Array> {
    Ok(grad(f).call(x)?.array()?.clone())
}

type Mapped = fn(Array) -> Result<Array>;

/// Compares what is mapped along each of three axes, in an array of this shape for each, with the examples one by one.
#[track_caller]
fn along_each_axis(
    name: &str,
    f: Mapped,
    shapes: [[i32; 3]; 3],
    is_same: impl Fn(&Array, &Array) -> bool,
) -> Result<()> {
    let x = ops::arange::<_, f32>(1, 25, None)?;
    for (axis, shape) in (0..).zip(shapes) {
        let x = x.reshape(&shape)?;
        let expected = one_by_one(&x, axis, f)?;
        let found = vmap(axis, 0, f).call(&x)?.dense()?;
        assert_eq!(found.shape(), expected.shape(), "{name} along {axis}");
        let same = is_same(&found, &expected);
        assert!(same, "{name} along {axis}: {:?} {:?}", numbers(&found), numbers(&expected));
    }
    Ok(())
}

/// What MLX maps wrongly by itself: assignments to ranges of what is not mapped, and scatters along an axis that is not the first.
#[test]
fn assignments_and_scatters_change_every_example() -> Result<()> {
    let cases: [(&str, Mapped); 8] = [
        ("a range of zeros", |mut x| {
            x.try_index_mut((1..2, ..), Array::from_f32(0.0))?;
            Ok(x)
        }),
        ("a range of rows", |mut x| {
            let rows = Array::from_slice(&[7.0f32, 8.0, 9.0], &[1, 3]);
            x.try_index_mut((..1, ..), rows)?;
            Ok(x.square()?)
        }),
        ("every second, backwards", |mut x| {
            x.try_index_mut((.., (..).stride_by(-2)), Array::from_f32(5.0))?;
            Ok(x)
        }),
        ("the gradient of a row", |x| of_gradient(&x, |x| x.try_index(1)?.square()?.sum(None))),
        ("the gradient of taken columns", |x| {
            let columns = Array::from_slice(&[2u32, 0, 2], &[3]);
            of_gradient(&x, move |x| x.take_axis(&columns, 1)?.square()?.sum(None))
        }),
        ("rows by numbers", |mut x| {
            x.try_index_mut(Array::from_slice(&[1u32, 0], &[2]), Array::from_slice(&[1.0f32, 2.0, 3.0], &[3]))?;
            Ok(x)
        }),
        ("an assignment inside a gradient", |x| {
            let f = |mut x: Array| {
                let doubled = x.multiply(Array::from_f32(2.0))?;
                x.try_index_mut((1.., ..), doubled.try_index((..1, ..))?)?;
                x.square()?.sum(None)
            };
            of_gradient(&x, f)
        }),
        ("bytes", |x| Ok(x.view_dtype(Dtype::Uint16)?.as_dtype(Dtype::Float32)?)),
    ];
    let shapes = [[4, 2, 3], [2, 4, 3], [2, 3, 4]];
    cases.iter().try_for_each(|&(name, f)| along_each_axis(name, f, shapes, |a, b| numbers(a) == numbers(b)))
}

/// What MLX gives other shapes or numbers: several new axes, which gradients of sums over several put back, real transforms of odd
/// length, and triangles.
#[test]
fn axes_transforms_and_triangles_are_those_of_every_example() -> Result<()> {
    let cases: [(&str, Mapped); 9] = [
        ("new axes in front", |x| Ok(x.expand_dims_axes(&[0, 1])?)),
        ("new axes apart", |x| Ok(x.expand_dims_axes(&[0, 2, 4])?)),
        ("the gradient of a sum", |x| of_gradient(&x, |x| x.sum_axes(&[0, 1], None)?.square()?.sum(None))),
        ("the gradient of the greatest", |x| of_gradient(&x, |x| x.max_axes(&[0, 1], None)?.square()?.sum(None))),
        ("the gradient of a product", |x| of_gradient(&x, |x| x.prod_axes(&[0, 1], None)?.sum(None))),
        ("the gradient of a transform", |x| of_gradient(&x, |x| rfft(&x, None, None)?.abs()?.sum(None))),
        ("an inverse transform", |x| Ok(irfft(&x.as_dtype(Dtype::Complex64)?, 5, -1)?)),
        ("equal", |x| {
            let x = ops::select(&x.gt(Array::from_f32(20.0))?, Array::from_f32(f32::NAN), &x)?;
            Ok(ops::array_eq(&x, &x, true)?.as_dtype(Dtype::Float32)?)
        }),
        ("a triangle", |x| {
            let square = ops::broadcast_to(&x, &[3, 3])?;
            Ok(with_stream(&Stream::cpu(), || linalg::tri_inv(&square, None))?)
        }),
    ];
    let shapes = [[8, 1, 3], [1, 8, 3], [1, 3, 8]];
    let is_near = |a: &Array, b: &Array| relative_error(a, b).is_ok_and(|far| far < 1e-6);
    cases.iter().try_for_each(|&(name, f)| along_each_axis(name, f, shapes, is_near))
}

/// MLX ends the process on these.
#[test]
fn no_examples_and_takes_from_nothing_have_results() -> Result<()> {
    let none = ops::zeros::<f32>(&[4, 0])?;
    assert_eq!(vmap(1, 0, |x: Array| x.cumsum(0, None, None)).call(&none)?.dense()?.shape(), [0, 4]);
    let (x, weights) = (ops::ones::<f32>(&[1, 8, 4])?, ops::zeros::<f32>(&[0, 4, 3, 2])?);
    let mut of_weights = vmap([None, Some(0)], 0, |(x, w): (Array, Array)| ops::conv1d(&x, &w, 1, 0, 1, 2));
    assert_eq!(of_weights.call((x, weights))?.dense()?.shape(), [0, 1, 6, 4]);
    let columns = Array::from_slice(&[2u32, 0], &[2]);
    let taken = of_gradient(&ops::zeros::<f32>(&[0, 4])?, |x| x.take_axis(&columns, 1)?.sum(None))?;
    assert_eq!(taken.shape(), [0, 4]);
    let (none, weights) = (ops::zeros::<f32>(&[0, 8, 4])?, ops::ones::<f32>(&[4, 3, 2])?);
    let learned = of_gradient(&weights, |w| ops::conv1d(&none, &w, 1, 0, 1, 2)?.sum(None))?;
    assert_eq!(numbers(&learned), [0.0; 24]);
    Ok(())
}

/// What MLX maps wrongly is wrong in whole numbers, too, which have no derivative.
#[test]
fn whole_numbers_are_mapped_as_floats_are() -> Result<()> {
    let x = ops::arange::<_, i32>(0, 12, None)?.reshape(&[3, 2, 2])?;
    let of = |value: Value| Ok::<_, Error>(value.dense()?.as_dtype(Dtype::Float32)?);
    let taken = of(vmap(0, 0, |x: Array| x.try_index((.., (..).stride_by(2)))).call(&x)?)?;
    assert_eq!((taken.shape(), numbers(&taken)), (&[3, 2, 1][..], vec![0.0, 2.0, 4.0, 6.0, 8.0, 10.0]));
    let put = |x: Array| -> Result<Array> {
        let mut x = x;
        x.try_index_mut((.., (..).stride_by(2)), Array::from_int(-1))?;
        Ok(x)
    };
    let put = of(vmap(0, 0, put).call(&x)?)?;
    assert_eq!(numbers(&put), [-1.0, 1.0, -1.0, 3.0, -1.0, 5.0, -1.0, 7.0, -1.0, 9.0, -1.0, 11.0]);
    // Of no examples MLX divides by their number.
    for dtype in [Dtype::Int32, Dtype::Float32] {
        let none = ops::zeros_dtype(&[0, 4], dtype)?;
        let masked = |x: Array| {
            let mask = Array::from_slice(&[true, false, true, true], &[4]);
            indexing::masked_scatter(&x, &mask, &ops::zeros_dtype(&[4], x.dtype())?)
        };
        assert_eq!(vmap(0, 0, masked).call(&none)?.dense()?.shape(), [0, 4]);
    }
    Ok(())
}

#[test]
fn a_function_with_a_rule_that_captures_what_is_mapped_is_refused() {
    let f = |x: Array| {
        let scale = x.square()?;
        let own = |_: Array, _: Array, c: Array| Ok::<_, Error>(c);
        custom_vjp(move |z: Array| z.multiply(&scale), own).call(x)?.dense()
    };
    let error = vmap(0, 0, f).call(vector(&[1.0, 2.0, 3.0])).expect_err("nothing computes that");
    expect![[r"
        a function with a derivative of its own captured an array that is mapped around it
        help: pass the array to the function as an argument"]]
    .assert_eq(&error.to_string());
}
