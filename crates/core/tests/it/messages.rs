//! The message of every kind of error, each really provoked. `UPDATE_EXPECT=1` rewrites them.

mod in_a_trace;
mod told;

use std::sync::Arc;

use expect_test::{Expect, expect};
use mlx_rs::error::Exception;
use mlx_rs::transforms::grad;
use mlx_rs::{Array, Dtype};
use tacit::__private::open;
use tacit::kernel::{self, Input, Kernel, Output};
use tacit::primitives::{Add, Matmul, Negative, Subtract, Transpose};
use tacit::transform::{self, Differentiable};
use tacit::{Aval, Error, ImplicitArray, Materialize, Policy, Primitive, Registry, Result, Value, handler, implicit};

use crate::types::{
    Eager, Left, Liar, Outer, Refusing, Right, Willing, aval, error, matrix, message, numbers, vector, with_handlers,
    without_handlers,
};

#[handler]
fn too_short(_: &Negative, _x: &Left) -> Result<Value> {
    Ok(vector(&[1.0]).into())
}

#[handler]
fn left_any(_: &Subtract, x: &Left, _y: &Value) -> Result<Value> {
    Ok(x.array.clone().into())
}

#[handler]
fn any_right(_: &Subtract, _x: &Value, y: &Right) -> Result<Value> {
    Ok(y.array.clone().into())
}

#[handler]
fn any_right_again(_: &Subtract, _x: &Value, y: &Right) -> Result<Value> {
    Ok(y.array.clone().into())
}

#[handler]
fn matmul_left(_: &Matmul, x: &Array, w: &Left) -> Result<Value> {
    Ok(x.matmul(&w.array)?.into())
}

#[handler]
fn transpose_left(_: &Transpose, x: &Left) -> Result<Value> {
    Ok(x.array.t().into())
}

#[handler]
fn add_implicit(_: &Add, x: &dyn ImplicitArray, _y: &Array) -> Result<Value> {
    open(x)
}

fn said(expected: &Expect, error: &Error) {
    expected.assert_eq(&message(error));
}

fn left() -> Value {
    Left::of(&vector(&[1.0, 2.0]))
}

fn negated(value: Value) -> Result<Value> {
    implicit(value, |x| x.negative())
}

#[test]
fn mlx_refuses() {
    let outcome = implicit((left(), vector(&[1.0, 2.0, 3.0])), |(x, y)| x.add(y));
    said(
        &expect![[r"
        mlx: [broadcast_shapes] Shapes (2) and (3) cannot be broadcast.
        help: compare the operands of this op: `explain` tells the avals of all ops of a function"]],
        &error(outcome),
    );
}

#[test]
fn mlx_finds_no_memory() {
    said(
        &expect![[r"
        mlx: [malloc] Unable to allocate 4503599627370496 bytes.
        help: compute fewer rows at a time, or end what else takes memory"]],
        &Error::Mlx("[malloc] Unable to allocate 4503599627370496 bytes.".to_owned()),
    );
    said(
        &expect![[r"
        mlx: cudaMallocAsync(&data, size, stream) failed: out of memory
        help: compute fewer rows at a time, or end what else takes memory"]],
        &Error::Mlx("cudaMallocAsync(&data, size, stream) failed: out of memory".to_owned()),
    );
}

#[handler]
fn panicking_left(_: &Negative, _: &Left) -> Result<Value> {
    panic!("the function's own")
}

#[test]
fn a_panic_is_the_same_error_whatever_a_function_is_given_to() {
    let f = |_: Array| -> Result<Array> { panic!("the function's own") };
    let x = || Value::from(vector(&[1.0, 2.0]));
    let pull = |x: Array, _: Array, _: Array| Ok::<_, Error>(x);
    let loops = |carry: Array| Ok::<_, Error>(carry.sum(None)?.gt(Array::from_f32(0.0))?);
    let errors = [
        error(implicit(left(), f)),
        error(implicit(x(), f)),
        error(tacit::explain(left(), f)),
        error(tacit::implicit_with_state(&mut x(), x(), |_, x| f(x))),
        error(tacit::compile(f).call(x())),
        error(tacit::compile(|x: Array| implicit(x, f)?.dense()).call(x())),
        error(transform::grad(f).call(x())),
        error(transform::vjp(x(), x(), f)),
        error(transform::jvp(x(), tacit::tree::Gradient::Nothing, f)),
        error(transform::vmap(0, 0, f).call(x())),
        error(transform::checkpoint(f).call(x())),
        error(transform::map_chunks(x(), (), 1, move |x: Array, ()| f(x))),
        error(transform::custom_vjp(f, pull).call(x())),
        error(tacit::control::cond(&Array::from_bool(true), x(), f, f)),
        error(tacit::control::while_loop(x(), loops, f)),
        error(tacit::control::fori_loop(0..2, x(), |_, x: Array| f(x))),
        {
            let _scopes = with_handlers(Registry::new().with::<panicking_left>());
            error(negated(left()))
        },
        {
            let _scopes = with_handlers(Registry::new().with::<panicking_left>());
            let recorded = vector(&[1.0]).negative().map(|array| tacit_bridge::Primitive::making(&array));
            let recorded = recorded.expect("is lazy").expect("can be read").expect("a primitive");
            error(tacit::embedding::primitive(recorded).apply(&[&left()]))
        },
    ];
    for error in errors {
        assert!(matches!(&error, Error::Function(panic) if panic.is::<tacit_bridge::PanicError>()), "{error}");
        said(&expect!["panicked: the function's own"], &error);
    }
}

#[test]
fn a_handler_gives_another_aval() {
    let _scopes = with_handlers(Registry::new().with::<too_short>());
    said(
        &expect![[r#"
            handler too_short (crates/core/tests/it/messages.rs:LINE) gave f32[1] for negative, which makes f32[2]
            help: return an array of the shape and dtype that the primitive makes, or decline the call by `Error::decline`"#]],
        &error(negated(left())),
    );
}

#[test]
fn handlers_are_ambiguous() {
    let registry = Registry::new().with::<left_any>().with::<any_right>();
    let found = registry.check().expect_err("ambiguous").remove(0);
    said(
        &expect![[r"
        handlers left_any (crates/core/tests/it/messages.rs:LINE) and any_right (crates/core/tests/it/messages.rs:LINE) match subtract of Left, any and subtract of any, Right equally well
        help: give one of them a `precedence`, or write a handler that is more specific than both"]],
        &found,
    );
    let _scopes = with_handlers(registry);
    let outcome = implicit((left(), Right::of(&vector(&[1.0, 2.0]))), |(x, y)| x.subtract(y));
    said(
        &expect![[r"
        handlers left_any (crates/core/tests/it/messages.rs:LINE) and any_right (crates/core/tests/it/messages.rs:LINE) match subtract of Left(f32[2]), Right(f32[2]) equally well
        help: give one of them a `precedence`, or write a handler that is more specific than both"]],
        &error(outcome),
    );
}

#[test]
fn a_signature_is_there_twice() {
    let registry = Registry::new().with::<any_right>().with::<any_right_again>();
    said(
        &expect![[r"
        handlers any_right (crates/core/tests/it/messages.rs:LINE) and any_right_again (crates/core/tests/it/messages.rs:LINE) have the same signature, subtract of any, Right
        help: remove one of them"]],
        &registry.check().expect_err("duplicate")[0],
    );
}

#[test]
fn two_types_have_a_default() {
    let _scopes = without_handlers();
    let args = [Willing::of(&vector(&[1.0])), Eager::of(&vector(&[1.0]))];
    said(
        &expect![[r"
        both test.Willing and test.Eager have a default handler for add of Willing(f32[1]), Eager(f32[1])
        help: write a handler for this primitive and these two types"]],
        &error(implicit(args, |[x, y]| x.add(y))),
    );
}

#[test]
fn a_materialization_is_denied() {
    let registry =
        Registry::new().with::<add_implicit>().with::<transpose_left>().with::<too_short>().with::<matmul_left>();
    let (_registry, _policy) = (Arc::new(registry).scope(), Policy::Deny.scope());
    let outcome = implicit((Left::of(&matrix(2, 3)), matrix(3, 2)), |(x, w)| x.matmul(w));
    said(
        &expect![[r"
        matmul of Left(f32[2,3]), f32[3,2] needs Left materialized, which the policy forbids
        near: matmul_left (crates/core/tests/it/messages.rs:LINE) takes matmul of dense, Left
        near: transpose_left (crates/core/tests/it/messages.rs:LINE) takes transpose of Left
        near: too_short (crates/core/tests/it/messages.rs:LINE) takes negative of Left
        help: write a handler for this primitive and these types, or allow it here with `Policy::Allow.scope()`"]],
        &error(outcome),
    );
    said(
        &expect![[r#"
            a dense array of Outer(f32[2]) needs Outer materialized, which the policy forbids
            help: allow it here with `Policy::Allow.scope()`"#]],
        &error(Outer::of(left()).dense()),
    );
}

#[test]
fn a_materialization_is_denied_and_nothing_is_near() {
    let (_registry, _policy) = (Arc::new(Registry::new()).scope(), Policy::Deny.scope());
    let outcome = implicit((left(), Right::of(&vector(&[1.0, 2.0]))), |(x, y)| x.multiply(y));
    said(
        &expect![[r#"
            multiply of Left(f32[2]), Right(f32[2]) needs Left materialized, which the policy forbids
            help: write a handler for this primitive and these types, or allow it here with `Policy::Allow.scope()`"#]],
        &error(outcome),
    );
}

#[test]
fn a_type_refuses() {
    let _scopes = without_handlers();
    let refusing = || Value::from(Refusing { aval: aval(&[2]) });
    said(
        &expect![[r"
        test.Refusing refuses to be materialized: it is a secret
        help: write a handler for this primitive and this type"]],
        &error(refusing().dense()),
    );
    said(
        &expect![[r"
        test.Refusing refuses to be materialized: it is a secret; negative of Refusing(f32[2]) has no handler
        help: write a handler for this primitive and this type"]],
        &error(negated(refusing())),
    );
    said(
        &expect![[r"
        test.Refusing refuses to be materialized: it is a secret; negative of Refusing(f32[2]) has no handler
        help: write a handler for this primitive and this type"]],
        &error(negated(Outer::of(refusing()))),
    );
}

/// Declares no aval and refuses.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "test.Nameless")]
struct Nameless {}

impl Materialize for Nameless {
    fn materialize(&self) -> Result<Value> {
        Err(Error::refuse("there is nothing in it"))
    }
}

#[test]
fn a_type_has_no_aval() {
    assert_eq!(Value::from(Nameless {}).to_string(), "Nameless(?)");
    said(
        &expect![[r"
        test.Nameless has no aval: there is nothing in it
        help: give the struct a field `#[implicit(aux)] aval: Aval`"]],
        &error(negated(Nameless {}.into())),
    );
}

#[test]
fn a_type_is_built_as_another_aval() {
    let _scopes = without_handlers();
    said(
        &expect![[r#"
            test.Liar says that it is f32[2] and materializes to f32[]
            help: return an array of this shape and dtype, or give the type the `aval` of what it returns"#]],
        &error(negated(Liar { aval: aval(&[2]) }.into())),
    );
}

/// A vjp that gives what it was told to.
struct Giving(Vec<Array>);

impl Differentiable for Giving {
    fn name(&self) -> &'static str {
        "giving"
    }

    fn forward(&self, args: &[Array]) -> Result<Vec<Array>> {
        Ok(vec![args[0].add(&args[1])?])
    }

    fn backward(&self, _: &[Array], _: &[Array], _: &[Array]) -> Result<Vec<Array>> {
        Ok(self.0.clone())
    }
}

fn gradient_of(giving: Vec<Array>) -> Error {
    let mut f = grad(move |x: &Array| {
        transform::apply(&[x.clone(), vector(&[1.0, 2.0])], Giving(giving.clone()))?[0].sum(None)
    });
    error(f(&vector(&[1.0, 2.0])).map_err(Error::from))
}

#[test]
fn a_vjp_gives_gradients_that_do_not_fit() {
    let zeros = || vector(&[0.0, 0.0]);
    said(
        &expect![[r"
        the vjp of giving gave 0 gradients for 2 arguments
        help: return one gradient for each argument, zeros where there is none"]],
        &gradient_of(vec![]),
    );
    said(
        &expect![[r"
        the vjp of giving gave 3 gradients for 2 arguments
        help: return one gradient for each argument, zeros where there is none"]],
        &gradient_of(vec![zeros(), zeros(), zeros()]),
    );
    said(
        &expect![[r"
        the vjp of giving gave f32[1] as the gradient of argument 1, which is f32[2]
        help: return one gradient for each argument, zeros where there is none"]],
        &gradient_of(vec![zeros(), vector(&[0.0])]),
    );
    said(
        &expect![[r"
        the vjp of giving gave f16[2] as the gradient of argument 0, which is f32[2]
        help: return one gradient for each argument, zeros where there is none"]],
        &gradient_of(vec![zeros().as_dtype(Dtype::Float16).expect("casts"), zeros()]),
    );
}

/// Fails in the way that it was told to.
struct Failing(&'static str);

impl Kernel for Failing {
    fn name(&self) -> &'static str {
        "failing"
    }

    fn output_avals(&self, inputs: &[Aval]) -> Result<Vec<Aval>, tacit_bridge::BoxError> {
        if self.0 == "aval" { Err("it takes nothing of the kind".into()) } else { Ok(inputs.to_vec()) }
    }

    fn eval_cpu(&self, _: &[Input<'_>], _: &mut [Output<'_>]) -> Result<(), tacit_bridge::BoxError> {
        assert!(self.0 != "panic", "the kernel's own panic");
        Err("the kernel's own words".into())
    }

    fn decompose(&self, inputs: &[Array]) -> Result<Vec<Array>, tacit_bridge::BoxError> {
        Ok(inputs.to_vec())
    }
}

#[test]
fn a_kernel_fails() {
    let run = |how| -> Result<()> {
        let results = kernel::apply(Failing(how), &[vector(&[1.0, 2.0])])?;
        Ok(results[0].eval()?)
    };
    said(&expect!["kernel failing failed: the kernel's own words"], &error(run("error")));
    said(&expect!["kernel failing failed: panicked: the kernel's own panic"], &error(run("panic")));
    said(&expect!["it takes nothing of the kind"], &error(run("aval")));
    let fine = vector(&[1.0]).negative().expect("builds");
    assert_eq!(numbers(&fine), [-1.0], "the next eval is not affected");
}

#[handler]
fn asks_for_another_view(op: &Primitive, _x: &Left) -> Result<Value> {
    let view: Transpose = op.view()?;
    Err(Error::invalid(format!("{view:?}"), "it is none"))
}

#[test]
fn an_argument_is_invalid() {
    let _scopes = with_handlers(Registry::new().with::<asks_for_another_view>());
    said(
        &expect![[r"
        the primitive is Negative, not Transpose
        help: match on `Primitive::name` first"]],
        &error(negated(left())),
    );
    let results: Vec<Value> = implicit(vec![left(), left()], Ok::<_, Exception>).expect("runs");
    let children = Outer::of(left());
    let Value::Implicit(outer) = &children else { panic!("it is implicit") };
    said(
        &expect![[r"
        test.Outer has 1 children and was given 2
        help: give one value for each child"]],
        &error(outer.with_children(results)),
    );
}

/// An error of the caller's own.
#[derive(Debug)]
struct Own;

impl std::fmt::Display for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the function's own error")
    }
}

impl std::error::Error for Own {}

impl From<Own> for Error {
    fn from(own: Own) -> Self {
        Self::Function(Box::new(own))
    }
}

#[test]
fn the_function_fails_with_an_error_of_its_own() {
    let error = error(implicit(left(), |_| Err::<Array, Own>(Own)));
    said(&expect!["the function's own error"], &error);
    let Error::Function(own) = error else { panic!("{error}") };
    assert!(own.is::<Own>());
}
