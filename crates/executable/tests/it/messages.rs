//! What an executable says of a wrong description, a wrong argument and a wrong order of calls.

use std::cell::Cell;

use expect_test::{Expect, expect};
use mlx_rs::{Array, Dtype};
use tacit::{Aval, Error, Result};
use tacit_executable::{Builder, Executable, Mode};

use crate::types::{Left, aval, error, matrix, message, vector, without_handlers};

fn says<T>(outcome: Result<T>, expected: &Expect) {
    expected.assert_eq(&message(&error(outcome)));
}

fn decoder() -> Builder {
    Executable::builder("decoder")
        .parameter("weight", Aval::new(&[2, 3], Dtype::Bfloat16))
        .input("token", aval(&[1, 3]))
        .resident("cache", aval(&[1, 2]))
        .output("logits")
        .output("cache")
}

fn built() -> Executable<'static> {
    let decoder = decoder().feed("cache", "cache");
    decoder.build(|given| Ok(vec![given.get("token")?.clone(), given.get("cache")?.clone()])).expect("builds")
}

fn nothing(builder: Builder) -> Result<Executable<'static>> {
    builder.build(|_| Ok(Vec::new()))
}

#[test]
fn descriptions() {
    says(
        nothing(decoder().input("weight", aval(&[1]))),
        &expect![[r#"
        weight is described twice among the parameters and inputs of decoder
        help: give each a name of its own"#]],
    );
    says(
        nothing(decoder().output("cache")),
        &expect![[r#"
        cache is described twice among the outputs of decoder
        help: give each a name of its own"#]],
    );
    says(
        nothing(decoder().feed("cache", "token")),
        &expect![[r#"
        token is an input of decoder, not a resident input
        help: give it to each run, or describe it with `resident`"#]],
    );
    says(
        nothing(decoder().feed("cash", "cache")),
        &expect![[r#"
        decoder has no output named cash
        help: name one of logits, cache"#]],
    );
    says(
        nothing(decoder().feed("cache", "cache").feed("logits", "cache")),
        &expect![[r#"
        cache of decoder is fed twice
        help: feed each input from one output"#]],
    );
    says(
        nothing(decoder().feed("cache", "weight")),
        &expect![[r#"
        weight is a parameter of decoder, not a resident input
        help: set it with `set_parameter`"#]],
    );
    says(
        nothing(Executable::builder("decoder")),
        &expect![[r#"
        decoder has no outputs
        help: describe what it returns with `output`"#]],
    );
    says(
        nothing(decoder().input("mask", aval(&[-1]))),
        &expect![[r#"
        mask is described as f32[-1]
        help: describe extents that are not negative"#]],
    );
}

#[test]
fn names() {
    let mut decoder = built();
    let x = matrix(1, 3);
    says(
        decoder.set_parameter("wait", x.clone()),
        &expect![[r#"
        decoder has no parameter named wait
        help: name one of weight"#]],
    );
    says(
        decoder.set_parameter("token", x.clone()),
        &expect![[r#"
        token is an input of decoder, not a parameter
        help: give it to each run, or describe it with `resident`"#]],
    );
    says(
        decoder.set_input("token", x.clone()),
        &expect![[r#"
        token is an input of decoder, not a resident input
        help: give it to each run, or describe it with `resident`"#]],
    );
    says(
        decoder.resident("cash"),
        &expect![[r#"
        decoder has no resident input named cash
        help: name one of cache"#]],
    );
    decoder.set_parameter_bytes("weight", &[0; 12]).expect("fits");
    decoder.set_input("cache", matrix(1, 2)).expect("fits");
    says(
        decoder.run(&[("tokens", &x)]),
        &expect![[r#"
        decoder has no input named tokens
        help: name one of token"#]],
    );
    says(
        decoder.run(&[("token", &x), ("cache", &x)]),
        &expect![[r#"
        cache is a resident input of decoder, not an input
        help: set it with `set_input`; it stays until it is set again or fed"#]],
    );
    says(
        decoder.run(&[("token", &x), ("token", &x)]),
        &expect![[r#"
        input token is given twice
        help: give each input once"#]],
    );
}

#[test]
fn values() {
    let _scopes = without_handlers();
    let mut decoder = built();
    says(
        decoder.set_parameter("weight", matrix(2, 3)),
        &expect![[r#"
        parameter weight is f32[2,3] and described as bf16[2,3]
        help: convert it with `as_dtype`, or describe it as f32"#]],
    );
    says(
        decoder.set_parameter("weight", Left::of(&matrix(3, 2))),
        &expect![[r#"
        parameter weight is Left(f32[3,2]) and described as bf16[2,3]
        help: convert it with `as_dtype`, or describe it as f32"#]],
    );
    says(
        decoder.set_parameter_bytes("weight", &[0; 24]),
        &expect![[r#"
        parameter weight is bf16[2,3], which has 12 bytes, and 24 are given
        help: give the elements in their own dtype, without a header"#]],
    );
    says(
        decoder.set_input("cache", vector(&[1.0])),
        &expect![[r#"
        resident input cache is f32[1] and described as f32[1,2]
        help: give it the shape [1, 2], or describe it with its own"#]],
    );
    decoder.set_parameter_bytes("weight", &[0; 12]).expect("fits");
    decoder.set_input("cache", matrix(1, 2)).expect("fits");
    says(
        decoder.run(&[("token", &matrix(1, 4))]),
        &expect![[r#"
        input token is f32[1,4] and described as f32[1,3]
        help: give it the shape [1, 3], or describe it with its own"#]],
    );
}

#[test]
fn what_is_missing() {
    let mut decoder = built();
    let x = matrix(1, 3);
    says(
        decoder.warm_up(),
        &expect![[r#"
        parameter weight was not set
        help: set it with `set_parameter`"#]],
    );
    says(
        decoder.run(&[("token", &x)]),
        &expect![[r#"
        parameter weight was not set
        help: set it with `set_parameter`"#]],
    );
    decoder.set_parameter_bytes("weight", &[0; 12]).expect("fits");
    says(
        decoder.run(&[("token", &x)]),
        &expect![[r#"
        resident input cache was not set
        help: set it with `set_input`"#]],
    );
    says(
        decoder.resident("cache"),
        &expect![[r#"
        resident input cache was not set
        help: set it with `set_input`"#]],
    );
    decoder.set_input("cache", matrix(1, 2)).expect("fits");
    says(
        decoder.run(&[]),
        &expect![[r#"
        input token is missing
        help: give every input that is not resident to the run"#]],
    );
    says(
        decoder.run_positional(&[], &mut Vec::new()),
        &expect![[r#"
        0 inputs were given, and decoder takes 1
        help: give these in order: token"#]],
    );
}

#[test]
fn the_order_of_calls() {
    let mut decoder = built();
    decoder.set_parameter_bytes("weight", &[0; 12]).expect("fits");
    decoder.set_input("cache", matrix(1, 2)).expect("fits");
    let x = matrix(1, 3);
    says(
        decoder.wait(),
        &expect![[r#"
        no run of decoder is committed
        help: call `commit` first"#]],
    );
    decoder.commit(&[("token", &x)]).expect("begins");
    says(
        decoder.commit(&[("token", &x)]),
        &expect![[r#"
        a run of decoder is committed already
        help: call `wait` first, or use `run_pipelined`"#]],
    );
}

#[test]
fn outputs() {
    let returning = |f: fn(&Array) -> Vec<Array>| -> Result<()> {
        let mut decoder = decoder().feed("cache", "cache").build(move |given| Ok(f(given.get("token")?)))?;
        decoder.set_parameter_bytes("weight", &[0; 12])?;
        decoder.set_input("cache", matrix(1, 2))?;
        decoder.run(&[("token", &matrix(1, 3))]).map(drop)
    };
    says(
        returning(|x| vec![x.clone()]),
        &expect![[r#"
        the function of decoder returns 1 arrays for 2 outputs: logits, cache
        help: return one array for each described output, in their order"#]],
    );
    says(
        returning(|x| vec![x.clone(), x.clone()]),
        &expect![[r#"
        output cache is f32[1,3] and is fed to cache, which is f32[1,2]
        help: return an array of the input's shape and dtype"#]],
    );
}

#[test]
fn outputs_that_change() {
    let rows = Cell::new(1);
    let mut changing = Executable::builder("changing")
        .output("y")
        .mode(Mode::Lazy)
        .build(|_| Ok(vec![mlx_rs::ops::zeros::<f32>(&[rows.replace(2), 3])?]))
        .expect("builds");
    changing.run(&[]).expect("runs");
    says(
        changing.run(&[]),
        &expect![[r#"
        output y was f32[1,3] and is now f32[2,3]
        help: let the shapes and dtypes of outputs depend on those of inputs alone"#]],
    );
    assert!(matches!(changing.run(&[]), Err(Error::Invalid { .. })));
}

#[test]
fn a_run_inside_a_trace_that_would_keep_what_is_fed() {
    let mut cached = Executable::builder("cached")
        .input("x", aval(&[2]))
        .resident("sum", aval(&[2]))
        .output("sum")
        .feed("sum", "sum")
        .build(|given| Ok(vec![given.get("sum")?.add(given.get("x")?)?]))
        .expect("builds");
    cached.set_input("sum", vector(&[1.0, 2.0])).expect("fits");
    let mut compiled = tacit::compile(|x: Array| {
        cached.run(&[("x", &x)])?;
        Ok::<_, Error>(x)
    });
    let error = compiled.call(vector(&[1.0, 1.0])).expect_err("the sum would be a tracer");
    expect![[r#"
        cached is run inside a traced function, and keeps what is fed
        help: run it outside, or make the cache an argument of the traced function"#]]
    .assert_eq(&error.to_string());
}

#[test]
fn bytes_that_are_no_bools() {
    let mut gated = Executable::builder("gated")
        .parameter("gate", Aval::new(&[2], Dtype::Bool))
        .output("gate")
        .build(|given| Ok(vec![given.get("gate")?.clone()]))
        .expect("builds");
    let error = gated.set_parameter_bytes("gate", &[1, 2]).expect_err("2 is neither");
    expect![[r#"
        parameter gate is bool[2] and is given bytes other than 0 and 1
        help: give 1 for true and 0 for false"#]]
    .assert_eq(&error.to_string());
}
