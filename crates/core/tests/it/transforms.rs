//! Interception inside MLX's transforms, and transforms inside interception.

use std::cell::Cell;
use std::rc::Rc;

use mlx_rs::error::Exception;
use mlx_rs::transforms::compile::compile;
use mlx_rs::transforms::{fallible_jvp, fallible_vjp, grad, value_and_grad};
use mlx_rs::{Array, ops};
use tacit::primitives::{Matmul, Multiply};
use tacit::transform::{self, Differentiable};
use tacit::{Counters, Error, Policy, Registry, Result, Value, handler, implicit};

use crate::types::{Left, Outer, dense, error, matrix, numbers, vector, with_handlers, without_handlers};

#[handler]
fn multiply_left(_: &Multiply, x: &Left, y: &Array) -> Result<Value> {
    Ok(x.array.multiply(y)?.into())
}

#[handler]
fn matmul_left(_: &Matmul, x: &Array, w: &Left) -> Result<Value> {
    Ok(x.matmul(&w.array)?.into())
}

fn registry() -> Registry {
    Registry::new().with::<multiply_left>().with::<matmul_left>()
}

/// `sum(w * x * x)`, with an implicit `w`.
fn weighted(w: &Array, x: &Array) -> Result<Array> {
    implicit((Left::of(w), x), |(w, x)| w.multiply(x.square()?)?.sum(None))?.dense()
}

#[test]
fn grad_goes_through_it_to_the_dense_operand_and_to_the_child() {
    let _scopes = with_handlers(registry());
    let (w, x) = (vector(&[2.0, 3.0]), vector(&[10.0, 20.0]));
    let (w_, x_) = (w.clone(), x.clone());
    assert_eq!(numbers(&grad(move |x: &Array| Ok(weighted(&w_, x)?))(&x).expect("runs")), [40.0, 120.0]);
    assert_eq!(numbers(&grad(move |w: &Array| Ok(weighted(w, &x_)?))(&w).expect("runs")), [100.0, 400.0]);
}

#[test]
fn it_is_the_same_without_handlers() {
    let _scopes = without_handlers();
    let (w, x) = (vector(&[2.0, 3.0]), vector(&[10.0, 20.0]));
    let gradients =
        fallible_vjp(|args: &[Array]| Ok(vec![weighted(&args[0], &args[1])?]), &[w, x], &[Array::from_f32(1.0)]);
    let gradients = gradients.expect("runs").1;
    assert_eq!(gradients.iter().map(numbers).collect::<Vec<_>>(), [[100.0, 400.0], [40.0, 120.0]]);
}

#[test]
fn value_and_grad_and_jvp_go_through_it() {
    let _scopes = with_handlers(registry());
    let (w, x) = (vector(&[2.0, 3.0]), vector(&[10.0, 20.0]));
    let w_ = w.clone();
    let mut both = value_and_grad(move |args: &[Array]| Ok::<_, Exception>(vec![weighted(&w_, &args[0])?]));
    let (value, gradient) = both(std::slice::from_ref(&x)).expect("runs");
    assert_eq!((numbers(&value[0]), numbers(&gradient[0])), (vec![1400.0], vec![40.0, 120.0]));
    let tangents = [vector(&[1.0, 0.5])];
    let jvp = fallible_jvp(|args: &[Array]| Ok(vec![weighted(&w, &args[0])?]), &[x], &tangents).expect("runs");
    assert_eq!(numbers(&jvp.1[0]), [100.0]);
}

#[test]
fn the_second_derivative_goes_through_it() {
    let _scopes = with_handlers(registry());
    let w = vector(&[2.0, 3.0]);
    let first = move |x: &Array| {
        let w = w.clone();
        grad(move |x: &Array| Ok(weighted(&w, x)?))(x)
    };
    let mut second = grad(move |x: &Array| first(x)?.sum(None));
    assert_eq!(numbers(&second(&vector(&[10.0, 20.0])).expect("runs")), [4.0, 6.0]);
}

#[test]
fn a_compiled_function_is_intercepted_while_it_is_traced_and_not_again() {
    let _scopes = with_handlers(registry());
    let traces = Rc::new(Cell::new(0));
    let counted = Rc::clone(&traces);
    let mut compiled = compile(
        move |(w, x): (&Array, &Array)| -> Result<Array, Exception> {
            counted.set(counted.get() + 1);
            Ok(weighted(w, x)?)
        },
        None,
    );
    let (w, x) = (vector(&[2.0, 3.0]), vector(&[10.0, 20.0]));
    let (first, counters) = Counters::during(|| compiled((&w, &x)));
    assert_eq!((numbers(&first.expect("runs")), counters.handled), (vec![1400.0], 1));
    let (second, counters) = Counters::during(|| compiled((&w, &vector(&[1.0, 1.0]))));
    assert_eq!((numbers(&second.expect("runs")), counters), (vec![5.0], Counters::default()));
    assert_eq!(traces.get(), 1);
}

#[test]
fn grad_inside_compile_and_grad_of_compile() {
    let _scopes = with_handlers(registry());
    let (w, x) = (vector(&[2.0, 3.0]), vector(&[10.0, 20.0]));
    let gradient = |(w, x): (&Array, &Array)| -> Result<Array, Exception> {
        let w = w.clone();
        grad(move |x: &Array| Ok(weighted(&w, x)?))(x)
    };
    let mut compiled = compile(gradient, None);
    for _ in 0..2 {
        assert_eq!(numbers(&compiled((&w, &x)).expect("runs")), [40.0, 120.0]);
    }
    let mut outer = grad(move |x: &Array| {
        compile(|(w, x): (&Array, &Array)| -> Result<Array, Exception> { Ok(weighted(w, x)?) }, None)((&w, x))
    });
    assert_eq!(numbers(&outer(&x).expect("runs")), [40.0, 120.0]);
}

#[test]
fn grad_inside_implicit_is_intercepted_in_both_passes() {
    let _scopes = with_handlers(registry());
    let _deny = Policy::Deny.scope();
    let (value, counters) = Counters::during(|| {
        implicit((Left::of(&vector(&[2.0, 3.0])), vector(&[1.0, 1.0])), |(w, x)| {
            let mut gradient = grad(move |x: &Array| w.multiply(x)?.sum(None));
            gradient(&x)
        })
    });
    assert_eq!(dense(&value.expect("runs")), [2.0, 3.0]);
    assert!(counters.handled >= 1, "{counters:?}");
}

#[test]
fn compile_inside_implicit() {
    let _scopes = without_handlers();
    for number in [1.0, 2.0] {
        let value = implicit((Outer::of(Left::of(&vector(&[number]))), vector(&[0.0])), |(w, x)| {
            let mut compiled =
                compile(|(w, x): (&Array, &Array)| -> Result<Array, Exception> { w.multiply(x)?.exp()?.log() }, None);
            compiled((&w, &x))?.add(&x)
        })
        .expect("runs");
        assert_eq!(dense(&value), [0.0]);
    }
}

/// `x @ w` whose vjp gives ten times the gradient of `x`.
struct Tenfold(Value);

impl Differentiable for Tenfold {
    fn name(&self) -> &'static str {
        "tenfold"
    }

    fn forward(&self, args: &[Array]) -> Result<Vec<Array>> {
        let product = implicit((&args[0], &self.0), |(x, w)| x.matmul(w))?;
        Ok(vec![product.dense()?])
    }

    fn backward(&self, _: &[Array], cotangents: &[Array], _: &[Array]) -> Result<Vec<Array>> {
        let w = self.0.dense()?;
        Ok(vec![cotangents[0].matmul(w.t())?.multiply(Array::from_f32(10.0))?])
    }
}

#[test]
fn a_custom_vjp_holds_implicit_arrays_and_compiles() {
    let _scopes = with_handlers(registry());
    let w = Left::of(&matrix(2, 2));
    let product = move |x: &Array| -> Result<Array> {
        Ok(transform::apply(std::slice::from_ref(x), Tenfold(w.clone()))?.remove(0))
    };
    let x = matrix(1, 2);
    assert_eq!(numbers(&product(&x).expect("runs")), [7.0, 10.0]);
    let gradient = move |x: &Array| {
        let product = product.clone();
        grad(move |x: &Array| product(x)?.sum(None))(x)
    };
    assert_eq!(numbers(&gradient(&x).expect("runs")), [30.0, 70.0]);
    let mut compiled = compile(gradient, None);
    assert_eq!(numbers(&compiled(&x).expect("runs")), [30.0, 70.0]);
}

#[test]
fn an_error_comes_out_of_a_transform_as_itself() {
    let _scopes = with_handlers(Registry::new());
    let _deny = Policy::Deny.scope();
    let failing = |x: &Array| Ok::<_, Exception>(weighted(&vector(&[1.0]), x)?);
    let error = error(grad(failing)(&vector(&[1.0])).map_err(Error::from));
    assert!(matches!(error, Error::MaterializationDenied { .. }), "{error:?}");
    // mlx-rs's `compile` says no more than that its function failed.
    assert!(compile(failing, None)(&vector(&[1.0])).is_err());
}

#[test]
fn a_trace_that_fails_inside_compile_can_be_tried_again() {
    let _scopes = with_handlers(Registry::new());
    let mut compiled = compile(|x: &Array| Ok::<_, Exception>(weighted(&vector(&[1.0]), x)?), None);
    {
        let _deny = Policy::Deny.scope();
        assert!(compiled(&vector(&[3.0])).is_err());
    }
    assert_eq!(numbers(&compiled(&vector(&[3.0])).expect("allowed")), [9.0]);
}

#[test]
fn an_mlx_error_inside_keeps_its_words() {
    let error = error(implicit((Left::of(&matrix(2, 3)), matrix(2, 3)), |(x, y)| ops::matmul(&x, &y)));
    assert!(matches!(&error, Error::Mlx(text) if text.contains("[matmul]")), "{error}");
}
