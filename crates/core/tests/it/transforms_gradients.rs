//! `grad`, `value_and_grad` and `vjp` over trees.

use std::collections::BTreeMap;

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops, stop_gradient};
use tacit::transform::{Wrt, checkpoint, custom_jvp, grad, grad_wrt, jvp, value_and_grad, vjp};
use tacit::tree::{self, Gradient};
use tacit::{Counters, Error, Policy, Registry, Result, Value, implicit};

use crate::transforms_shared::{check, registry};
use crate::types::{Left, Outer, error, matrix, numbers, said_of, vector, with_handlers};

/// `sum(w x x)`
fn weighted((w, x): (Array, Array)) -> Result<Array> {
    Ok(w.multiply(&x)?.multiply(&x)?.sum(None)?)
}

fn of(gradient: &Gradient) -> Vec<f32> {
    numbers(gradient.array().expect("there is one"))
}

fn integers() -> Array {
    Array::from_slice(&[1i32, 2], &[2])
}

#[test]
fn dense_arguments_get_dense_gradients() {
    let (dw, dx) = grad(weighted).call((vector(&[2.0, 3.0]), vector(&[1.0, 10.0]))).expect("runs");
    assert_eq!((of(&dw), of(&dx)), (vec![1.0, 100.0], vec![4.0, 60.0]));
}

#[test]
fn an_implicit_argument_gets_a_gradient_of_its_structure() {
    let _scopes = with_handlers(registry());
    let deny = Policy::Deny.scope();
    let args = || (Left::of(&vector(&[2.0, 3.0])), Value::from(vector(&[1.0, 10.0])));
    let (outcome, counters) = Counters::during(|| grad(weighted).call(args()));
    let (dw, dx) = outcome.expect("is handled");
    expect!["test.Left{array: f32[2]}"].assert_eq(&dw.to_string());
    assert_eq!((of(dw.child("array")), of(&dx)), (vec![1.0, 100.0], vec![4.0, 60.0]));
    assert_eq!(counters.handled, 1);
    drop(deny);
    let (dw, _) = grad(weighted).call((Outer::of(args().0), args().1)).expect("is materialized");
    expect!["test.Outer{inner: test.Left{array: f32[2]}}"].assert_eq(&dw.to_string());
    assert_eq!(of(dw.child("inner").child("array")), [1.0, 100.0]);
}

/// Weight, shifts and an index.
type Params<L> = (L, BTreeMap<String, L>, Vec<L>);

fn params() -> Params<Value> {
    let shifts = [("above", 1.0), ("below", 5.0)].map(|(name, shift)| (name.to_owned(), vector(&[shift]).into()));
    (vector(&[2.0, 3.0]).into(), shifts.into(), vec![integers().into()])
}

fn of_params((weight, shifts, index): Params<Array>) -> Result<Array> {
    Ok(weight.add(&shifts["above"])?.multiply(&index[0])?.subtract(&shifts["below"])?.sum(None)?)
}

#[test]
fn a_tree_gets_a_tree_with_nothing_at_integers() {
    let gradient: Params<Gradient> = grad(of_params).call(params()).expect("runs");
    assert_eq!(of(&gradient.0), [1.0, 2.0]);
    assert_eq!((of(&gradient.1["above"]), of(&gradient.1["below"])), (vec![3.0], vec![-2.0]));
    assert_eq!(gradient.2[0].to_string(), "nothing");
    let mut tree = params();
    tree::update(&mut tree, &gradient, |_, own, gradient| Ok(own.subtract(gradient)?)).expect("fits");
    assert_eq!(numbers(&tree.0.dense().expect("dense")), [1.0, 1.0]);
}

#[test]
fn auxiliary_results_come_back_as_they_are() {
    let mut step = value_and_grad(|(w, x): (Array, Array)| {
        let y = w.multiply(&x)?;
        Ok::<_, Error>((y.sum(None)?, (y.clone(), integers()), BTreeMap::from([("max".to_owned(), y.max(None)?)])))
    });
    let ((loss, (y, fixed), named), (dw, dx)) = step.call((vector(&[2.0, 3.0]), vector(&[1.0, 10.0]))).expect("runs");
    let of_value = |value: &Value| numbers(&value.dense().expect("dense"));
    assert_eq!((of_value(&loss), of_value(&y), of_value(&named["max"])), (vec![32.0], vec![2.0, 30.0], vec![30.0]));
    assert_eq!(fixed.to_string(), "i32[2]");
    assert_eq!((of(&dw), of(&dx)), (vec![1.0, 10.0], vec![2.0, 3.0]));
}

#[test]
fn a_loss_in_half_precision_and_of_one_element_keeps_its_aval() {
    let x = vector(&[3.0]).as_dtype(Dtype::Bfloat16).expect("bf16");
    let (loss, gradient) = value_and_grad(|x: Array| x.multiply(&x)?.reshape(&[1, 1])).call(x).expect("runs");
    assert_eq!((loss.to_string(), gradient.to_string()), ("bf16[1,1]".to_owned(), "bf16[1]".to_owned()));
    let gradient = gradient.array().expect("there is one").as_dtype(Dtype::Float32).expect("f32");
    assert_eq!(numbers(&gradient), [6.0]);
}

#[test]
fn with_respect_to_arguments_and_paths() {
    let args = || (vector(&[2.0, 3.0]), vector(&[1.0, 10.0]));
    let (dw, dx) = grad_wrt(Wrt::arguments([1]), weighted).call(args()).expect("runs");
    assert!(dw.is_nothing());
    assert_eq!(of(&dx), [4.0, 60.0]);
    let (weight, shifts, _) =
        grad_wrt(Wrt::paths(|path| path.ends_with("above")), of_params).call(params()).expect("runs");
    assert!(weight.is_nothing() && shifts["below"].is_nothing());
    assert_eq!(of(&shifts["above"]), [3.0]);
    let one = |shifts: BTreeMap<String, Array>| shifts["below"].square()?.sum(None);
    let gradient = grad_wrt([0], one).call(params().1).expect("a map is argument 0");
    assert_eq!(of(&gradient["below"]), [10.0]);
}

#[test]
fn a_path_of_an_implicit_array_chooses_its_children() {
    let _scopes = with_handlers(registry());
    for suffix in ["0", "0.array"] {
        let args = (Left::of(&vector(&[2.0, 3.0])), vector(&[1.0, 10.0]));
        let (dw, dx) = grad_wrt(Wrt::paths(move |path| &**path == suffix), weighted).call(args).expect("runs");
        assert_eq!(of(dw.child("array")), [1.0, 100.0]);
        assert!(dx.is_nothing());
    }
}

#[test]
fn choosing_wrongly_is_an_error() {
    let args = || (Left::of(&vector(&[2.0])), integers());
    let _scopes = with_handlers(registry());
    let said = [
        said_of(grad_wrt([2], weighted).call(args())),
        said_of(grad_wrt([1], |x: Array| x.sum(None)).call(vector(&[1.0]))),
        said_of(grad_wrt([1], weighted).call(args())),
        said_of(grad_wrt(Wrt::paths(|path| path.ends_with("bias")), weighted).call(args())),
        said_of(grad(|x: Array| x.sum(None)).call(integers())),
        said_of(grad(|()| Ok::<_, Error>(Array::from_f32(1.0))).call(())),
    ];
    expect![[r#"
        argument 2 is to be differentiated with respect to, and the function takes 2
        help: count the elements of the tuple that the function takes from 0; any other tree is argument 0
        argument 1 is to be differentiated with respect to, and the function takes 1
        help: count the elements of the tuple that the function takes from 0; any other tree is argument 0
        no float array is among the leaves to differentiate with respect to: `1` i32[2]
        help: choose a float leaf that is not frozen; integers and packed codes have no gradient
        no leaf to differentiate with respect to is chosen of `0.array`, `1`
        help: choose one of these paths
        no float array is among the leaves to differentiate with respect to: the root i32[2]
        help: choose a float leaf that is not frozen; integers and packed codes have no gradient
        no float array is among the leaves to differentiate with respect to: there is none
        help: choose a float leaf that is not frozen; integers and packed codes have no gradient
    "#]]
    .assert_eq(&said.concat());
}

#[test]
fn a_loss_that_is_no_loss_is_an_error() {
    let x = || Value::from(matrix(2, 3));
    let said = [
        said_of(grad(|x: Array| x.square()).call(x())),
        said_of(grad(|x: Array| x.sum(None)?.as_dtype(Dtype::Int32)).call(x())),
        said_of(grad(|_: Array| Ok::<_, Error>(Vec::<Array>::new())).call(x())),
    ];
    expect![[r#"
        the loss is f32[2,3], which is not one float element
        help: sum or average it, or use `vjp` with a cotangent of its shape
        the loss is i32[], which is not one float element
        help: sum or average it, or use `vjp` with a cotangent of its shape
        the function returns no loss
        help: return one float element first
    "#]]
    .assert_eq(&said.concat());
}

#[test]
fn an_error_of_the_function_comes_out_as_itself() {
    let failing = |_: Array| -> Result<Array> { Err(Error::refuse("of its own")) };
    let error = error(grad(failing).call(vector(&[1.0])));
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    let _scopes = with_handlers(Registry::new());
    let _deny = Policy::Deny.scope();
    let args = (Left::of(&vector(&[2.0])), vector(&[1.0]));
    let error = crate::types::error(grad(weighted).call(args));
    assert!(matches!(error, Error::MaterializationDenied { .. }), "{error:?}");
    // Nothing is left over for the next one.
    assert_eq!(of(&grad(|x: Array| x.sum(None)).call(vector(&[1.0])).expect("runs")), [1.0]);
}

#[test]
fn a_panic_of_the_function_leaves_nothing_behind() {
    let panicking = |_: Array| -> Result<Array> { std::panic::panic_any(42i32) };
    let error = crate::types::error(grad(panicking).call(vector(&[1.0])));
    assert_eq!(error.to_string(), "panicked: a panic without a text");
    assert_eq!(of(&grad(|x: Array| x.sum(None)).call(vector(&[1.0])).expect("runs")), [1.0]);
}

/// MLX's gradients neither gather nor scatter where the matrices of the left come in their order.
#[test]
fn gathered_products_in_order_have_the_gradients_of_any_other() -> Result<()> {
    let a = ops::arange::<_, f32>(1, 7, None)?.reshape(&[3, 1, 2])?;
    let b = ops::arange::<_, f32>(2, 8, None)?.reshape(&[3, 2, 1])?;
    let left = Array::from_slice(&[0u32, 0, 1], &[3]);
    let gradients = |is_sorted: bool| -> Result<Vec<Vec<f32>>> {
        let product = |(a, b): (Array, Array)| {
            let squares = ops::gather_mm(&a, &b, &left, None::<&Array>, is_sorted)?.square()?;
            squares.multiply(Array::from_slice(&[1f32, 2.0, 3.0], &[3, 1, 1]))?.sum(None)
        };
        let (by_a, by_b) = grad(product).call((a.clone(), b.clone()))?;
        Ok(vec![of(&by_a), of(&by_b)])
    };
    assert_eq!(gradients(true)?, gradients(false)?);
    Ok(())
}

#[test]
fn a_gradient_of_a_gradient() {
    let _scopes = with_handlers(registry());
    // x^3 has the second derivative 6 x, with a factor from the implicit array.
    let cube = |(w, x): (Array, Array)| Ok::<_, Error>(w.multiply(&x)?.multiply(&x)?.multiply(&x)?.sum(None)?);
    let first = move |(w, x): (Array, Array)| -> Result<Array> {
        let (_, dx) = grad_wrt([1], cube).call((w, x))?;
        Ok(dx.array()?.sum(None)?)
    };
    let (dw, dx) = grad(first).call((Left::of(&vector(&[2.0])), vector(&[5.0]))).expect("runs");
    assert_eq!((of(dw.child("array")), of(&dx)), (vec![75.0], vec![60.0]));
}

#[test]
fn an_outer_gradient_sees_the_inner_value() {
    let mut outer = grad(|x: Array| -> Result<Array> {
        let (value, gradient) = value_and_grad(|x: Array| x.square()).call(x)?;
        Ok(value.dense()?.add(gradient.array()?)?)
    });
    // x^2 + 2 x
    assert_eq!(of(&outer.call(Array::from_f32(3.0)).expect("runs")), [8.0]);
}

#[test]
fn inside_implicit_both_passes_are_intercepted() {
    let _scopes = with_handlers(registry());
    let _deny = Policy::Deny.scope();
    let (outcome, counters) = Counters::during(|| {
        implicit((Left::of(&vector(&[2.0, 3.0])), vector(&[1.0, 1.0])), |(w, x)| -> Result<Array> {
            let mut gradient = grad_wrt([1], |(w, x): (Array, Array)| w.multiply(x)?.sum(None));
            Ok(gradient.call((w, x))?.1.array()?.clone())
        })
    });
    assert_eq!(numbers(&outcome.expect("runs").dense().expect("dense")), [2.0, 3.0]);
    assert!(counters.handled >= 1, "{counters:?}");
}

#[test]
fn a_vjp_takes_a_cotangent_for_each_float_result() {
    let f = |(w, x): (Array, Array)| Ok::<_, Error>((w.multiply(&x)?, integers(), x.sum(None)?));
    let cotangents = (vector(&[1.0, 10.0]), integers(), Array::from_f32(100.0));
    let (values, (dw, dx)) = vjp((vector(&[2.0, 3.0]), vector(&[5.0, 7.0])), cotangents, f).expect("runs");
    assert_eq!(numbers(&values.0.dense().expect("dense")), [10.0, 21.0]);
    assert_eq!((of(&dw), of(&dx)), (vec![5.0, 70.0], vec![102.0, 130.0]));
}

#[test]
fn cotangents_that_do_not_fit_are_an_error() {
    let x = || Value::from(matrix(2, 3));
    check(
        &expect![[r#"
        the cotangent of the root is f32[1], and the array f32[2,3]
        help: give each cotangent the shape and dtype of its result"#]],
        vjp(x(), vector(&[1.0]), |x: Array| x.square()),
    );
    let list = |x: Array| Ok::<_, Error>(vec![x.clone(), x]);
    check(
        &expect![[r#"
        the cotangents do not fit the results: list of 2 -> list of 1 at the root
        help: give one cotangent for each result, in the structure of the results"#]],
        vjp(x(), vec![x()], list),
    );
    check(
        &expect![[r#"
        no result is float
        help: differentiate a function with float results"#]],
        vjp(x(), integers(), |_: Array| Ok::<_, Error>(integers())),
    );
}

/// The gradient of `f` at 3, given the cotangents 1 and 10 of its results.
fn with_two_cotangents<E: Into<Error>>(f: impl FnMut(Array) -> Result<(Array, Array), E>) -> Vec<f32> {
    let cotangents = (Array::from_f32(1.0), Array::from_f32(10.0));
    let (_, gradient) = vjp(Array::from_f32(3.0), cotangents, f).expect("runs");
    of(&gradient)
}

#[test]
fn each_cotangent_goes_to_its_result() {
    let twice = |x: Array| -> Result<(Array, Array)> {
        let y = x.square()?;
        Ok((y.clone(), y))
    };
    let stopped = |x: Array| Ok::<_, Error>((stop_gradient(&x)?, x.square()?));
    assert_eq!(with_two_cotangents(twice), [66.0]);
    assert_eq!(with_two_cotangents(stopped), [60.0]);
    assert_eq!(with_two_cotangents(|x| Ok::<_, Error>((x.clone(), x))), [11.0]);
    let dense = |(first, second): (Value, Value)| Ok::<_, Error>((first.dense()?, second.dense()?));
    let (mut again, mut again_stopped) = (checkpoint(twice), checkpoint(stopped));
    assert_eq!(with_two_cotangents(|x| dense(again.call(x)?)), [66.0]);
    assert_eq!(with_two_cotangents(|x| dense(again_stopped.call(x)?)), [60.0]);
    let mut own = custom_jvp(twice, |x: Array, dx: Array| -> Result<(Array, Array)> {
        let dy = x.multiply(&dx)?;
        Ok((dy.clone(), dy))
    });
    // The rule says half of the derivative.
    assert_eq!(with_two_cotangents(|x| dense(own.call(x)?)), [33.0]);
}

#[test]
fn an_integer_result_of_a_checkpointed_function_takes_no_cotangent() {
    let mut pair = checkpoint(|(x, i): (Array, Array)| Ok::<_, Error>((i, x.square()?)));
    let loss = move |x: Array| -> Result<Array> { Ok(pair.call((x, integers()))?.1.dense()?.sum(None)?) };
    let gradient = grad(loss).call(vector(&[2.0, 3.0])).expect("runs");
    assert_eq!(of(&gradient), [4.0, 6.0]);
}

#[test]
fn steps_that_nobody_evaluates_are_no_part_of_the_next_gradient() {
    let steps = || -> Result<f32> {
        let loss = |w: Array| -> Result<Array> { Ok(w.subtract(Array::from_f32(3.0))?.abs()?.square()?.sum(None)?) };
        let mut w = vector(&[1.0]);
        for _ in 0..1000 {
            let gradient = grad(loss).call(w.clone())?;
            // The way back begins in the gradient, so that the chain has all ops of it.
            w = gradient.array()?.multiply(Array::from_f32(-0.01))?.add(&w)?;
        }
        Ok(numbers(&w)[0])
    };
    // As large a stack as Rust gives a thread, in which MLX has no room for all that came before.
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(steps).expect("a thread");
    let found = thread.join().expect("it does not panic").expect("no step is refused");
    assert!((found - 3.0).abs() < 1e-3, "{found}");
}

/// What MLX differentiates wrongly is written otherwise first; where it has data, what it is written as has data, too.
#[test]
fn a_function_that_evaluates_a_pad_by_a_value_has_its_gradient() -> Result<()> {
    let padded = |eval: bool| {
        let f = move |x: Array| -> Result<Array> {
            let padded = ops::pad(&x, 1, x.sum(None)?, None)?;
            if eval {
                padded.eval()?;
            }
            Ok(padded.square()?.sum(None)?)
        };
        let x = vector(&[1.0, 2.0]);
        let gradient = grad(f).call(x.clone())?.array()?.clone();
        let (_, tangent) = jvp(&x, Gradient::Dense(vector(&[1.0, 1.0])), f)?;
        Ok::<_, Error>((numbers(&gradient), numbers(&tangent.dense()?)))
    };
    assert_eq!(padded(true)?, padded(false)?);
    assert_eq!(padded(false)?, (vec![14.0, 16.0], vec![30.0]));
    Ok(())
}

#[test]
fn no_derivative_goes_through_integers() -> Result<()> {
    let cast =
        |dtype| move |x: Array| Ok::<_, Error>(x.multiply(x.as_dtype(dtype)?.as_dtype(Dtype::Float32)?)?.sum(None)?);
    let x = vector(&[1.5, 2.75, -0.5]);
    let of = |f: &dyn Fn(Array) -> Result<Array>| -> Result<(Vec<f32>, Vec<f32>)> {
        let gradient = grad(|x: Array| f(x)).call(x.clone())?.array()?.clone();
        let (_, tangent) = jvp(&x, Gradient::Dense(vector(&[1.0, 1.0, 1.0])), |x: Array| f(x))?;
        Ok((numbers(&gradient), numbers(&tangent.dense()?)))
    };
    assert_eq!(of(&cast(Dtype::Int32))?, (vec![1.0, 2.0, 0.0], vec![3.0]));
    assert_eq!(of(&cast(Dtype::Bool))?, (vec![1.0, 1.0, 1.0], vec![3.0]));
    let sorted = |x: Array| -> Result<Array> {
        let order = ops::argsort_axis(&x, 0)?;
        let weights = vector(&[1.0, 10.0, 100.0]);
        Ok(x.take_along_axis(order, 0)?.multiply(weights)?.sum(None)?)
    };
    assert_eq!(of(&sorted)?, (vec![10.0, 100.0, 1.0], vec![111.0]));
    Ok(())
}

/// MLX's own gradient writes behind its array for the first of them.
#[test]
fn running_maxima_have_derivatives_whatever_they_run_over() -> Result<()> {
    let weights = vector(&[1.0, 10.0, 100.0, 1000.0]);
    let of = |x: [f32; 4], reverse: bool, inclusive: bool| -> Result<(Vec<f32>, Vec<f32>)> {
        let f = |x: Array| -> Result<(Array, Array)> {
            let result = ops::cummax(&x, 0, reverse, inclusive)?;
            Ok((result.multiply(&weights)?.sum(None)?, result))
        };
        let ((_, result), gradient) = value_and_grad(f).call(vector(&x))?;
        assert_eq!(
            format!("{:?}", numbers(&result.dense()?)),
            format!("{:?}", numbers(&ops::cummax(vector(&x), 0, reverse, inclusive)?))
        );
        let (_, tangent) = jvp(vector(&x), Gradient::Dense(vector(&[1.0, 2.0, 3.0, 4.0])), |x: Array| f(x))?;
        Ok((numbers(gradient.array()?), numbers(&tangent.1.dense()?)))
    };
    assert_eq!(of([1.0, 3.0, 2.0, 4.0], false, true)?, (vec![1.0, 110.0, 0.0, 1000.0], vec![1.0, 2.0, 2.0, 4.0]));
    assert_eq!(of([1.0, 3.0, 2.0, 4.0], true, true)?, (vec![0.0, 0.0, 0.0, 1111.0], vec![4.0; 4]));
    assert_eq!(of([1.0, 3.0, 2.0, 4.0], false, false)?, (vec![10.0, 1100.0, 0.0, 0.0], vec![0.0, 1.0, 2.0, 2.0]));
    of([1.0, f32::NAN, 2.0, 4.0], false, true)?;
    of([f32::NAN; 4], true, true)?;
    Ok(())
}

/// MLX's gradient and its tangent are wrong alike, so that finite differences are asked.
#[test]
fn masks_of_products_of_blocks_have_their_gradients() -> Result<()> {
    let (a, b) = (matrix(32, 32), matrix(32, 32));
    let scaled = |x: &Array| x.multiply(Array::from_f32(1e-3));
    let (a, b) = (scaled(&a)?, scaled(&b)?);
    let loss = |(out, lhs): (Array, Array)| -> Result<Array> {
        let rhs = Array::from_slice(&[0.5f32], &[1, 1]);
        Ok(ops::block_masked_mm(&a, &b, 32, &out, &lhs, &rhs)?.sum(None)?)
    };
    let one = |x: f32| Array::from_slice(&[x], &[1, 1]);
    let (by_out, by_lhs) = grad(loss).call((one(0.3), one(0.7)))?;
    let at = |out: f32, lhs: f32| loss((one(out), one(lhs))).map(|loss| loss.item_exact::<f32>());
    for (found, high, low) in [(by_out, at(0.8, 0.7)?, at(-0.2, 0.7)?), (by_lhs, at(0.3, 1.2)?, at(0.3, 0.2)?)] {
        // Linear in each, so that a step of one is exact.
        let (found, expected) = (of(&found)[0], high - low);
        assert!((found - expected).abs() < 1e-4 * expected.abs(), "{found} and {expected}");
    }
    Ok(())
}
