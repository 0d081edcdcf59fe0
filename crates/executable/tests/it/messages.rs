//! What an executable says of a wrong description, a wrong argument and a wrong order of calls.

use std::cell::Cell;

use expect_test::expect;
use mlx_rs::{Array, Dtype};
use tacit::{Aval, Error, Result};
use tacit_executable::{Builder, Executable, Mode};

use crate::types::{Left, aval, error, matrix, message, vector, without_handlers};

/// The message of an error, and a line's end.
fn said_of<T>(outcome: Result<T>) -> String {
    message(&error(outcome)) + "\n"
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
    let said = [
        said_of(nothing(decoder().input("weight", aval(&[1])))),
        said_of(nothing(decoder().output("cache"))),
        said_of(nothing(decoder().feed("cache", "token"))),
        said_of(nothing(decoder().feed("cash", "cache"))),
        said_of(nothing(decoder().feed("cache", "cache").feed("logits", "cache"))),
        said_of(nothing(decoder().feed("cache", "weight"))),
        said_of(nothing(Executable::builder("decoder"))),
        said_of(nothing(decoder().input("mask", aval(&[-1])))),
    ]
    .concat();
    expect![[r#"
        weight is described twice among the parameters and inputs of decoder
        help: give each a name of its own
        cache is described twice among the outputs of decoder
        help: give each a name of its own
        token is an input of decoder, not a resident input
        help: give it to each run, or describe it with `resident`
        decoder has no output named cash
        help: name one of logits, cache
        cache of decoder is fed twice
        help: feed each input from one output
        weight is a parameter of decoder, not a resident input
        help: set it with `set_parameter`
        decoder has no outputs
        help: describe what it returns with `output`
        mask is described as f32[-1]
        help: describe extents that are not negative
    "#]]
    .assert_eq(&said);
}

#[test]
fn names() {
    let mut decoder = built();
    let x = matrix(1, 3);
    let mut said = [
        said_of(decoder.set_parameter("wait", x.clone())),
        said_of(decoder.set_parameter("token", x.clone())),
        said_of(decoder.set_input("token", x.clone())),
        said_of(decoder.resident("cash")),
    ]
    .concat();
    decoder.set_parameter_bytes("weight", &[0; 12]).expect("fits");
    decoder.set_input("cache", matrix(1, 2)).expect("fits");
    said += &[
        said_of(decoder.run(&[("tokens", &x)])),
        said_of(decoder.run(&[("token", &x), ("cache", &x)])),
        said_of(decoder.run(&[("token", &x), ("token", &x)])),
    ]
    .concat();
    expect![[r#"
        decoder has no parameter named wait
        help: name one of weight
        token is an input of decoder, not a parameter
        help: give it to each run, or describe it with `resident`
        token is an input of decoder, not a resident input
        help: give it to each run, or describe it with `resident`
        decoder has no resident input named cash
        help: name one of cache
        decoder has no input named tokens
        help: name one of token
        cache is a resident input of decoder, not an input
        help: set it with `set_input`; it stays until it is set again or fed
        input token is given twice
        help: give each input once
    "#]]
    .assert_eq(&said);
}

#[test]
fn what_is_not_described() {
    let x = vector(&[1.0]);
    let given = Executable::builder("given").input("x", aval(&[1])).output("y");
    let mut given = given.build(|given| Ok(vec![given.get("x")?.clone()])).expect("builds");
    let held = Executable::builder("held").resident("x", aval(&[1])).output("y");
    let mut held = held.build(|given| Ok(vec![given.get("x")?.clone()])).expect("builds");
    held.set_input("x", x.clone()).expect("fits");
    let said = [
        said_of(given.set_parameter("w", x.clone())),
        said_of(given.set_input("s", x.clone())),
        said_of(held.run(&[("z", &x)])),
        said_of(given.run(&[("x", &x)]).expect("runs").get("z")),
    ]
    .concat();
    expect![[r#"
        given has no parameter named w
        help: describe a parameter first
        given has no resident input named s
        help: describe a resident input first
        held has no input named z
        help: describe an input first
        the run returned no z
        help: name one of y
    "#]]
    .assert_eq(&said);
}

#[test]
fn optional_inputs_and_what_describes_nothing() {
    let scaled = Executable::builder("scaled").optional("by", vector(&[2.0])).output("y");
    let mut scaled = scaled.build(|given| Ok(vec![given.get("by")?.clone()])).expect("builds");
    let empty = Executable::builder("empty").output("y").build(|_| Ok(vec![vector(&[1.0])])).expect("builds");
    let said = [said_of(scaled.set_parameter("by", vector(&[3.0]))), said_of(empty.array_from_bytes("x", &[]))];
    expect![[r#"
        by is an optional input of scaled, not a parameter
        help: set it with `set_input`; it stays until it is set again or fed
        empty describes no x
        help: describe it first
    "#]]
    .assert_eq(&said.concat());
}

#[test]
fn values() {
    let _scopes = without_handlers();
    let mut decoder = built();
    let mut said = [
        said_of(decoder.set_parameter("weight", matrix(2, 3))),
        said_of(decoder.set_parameter("weight", Left::of(&matrix(3, 2)))),
        said_of(decoder.set_parameter_bytes("weight", &[0; 24])),
        said_of(decoder.set_input("cache", vector(&[1.0]))),
    ]
    .concat();
    decoder.set_parameter_bytes("weight", &[0; 12]).expect("fits");
    decoder.set_input("cache", matrix(1, 2)).expect("fits");
    said += &said_of(decoder.run(&[("token", &matrix(1, 4))]));
    expect![[r#"
        parameter weight is f32[2,3] and described as bf16[2,3]
        help: convert it with `as_dtype`, or describe it as f32
        parameter weight is Left(f32[3,2]) and described as bf16[2,3]
        help: convert it with `as_dtype`, or describe it as f32
        parameter weight is bf16[2,3], which has 12 bytes, and 24 are given
        help: give the elements in their own dtype, without a header
        resident input cache is f32[1] and described as f32[1,2]
        help: give it the shape [1, 2], or describe it with its own
        input token is f32[1,4] and described as f32[1,3]
        help: give it the shape [1, 3], or describe it with its own
    "#]]
    .assert_eq(&said);
}

#[test]
fn what_is_missing() {
    let mut decoder = built();
    let x = matrix(1, 3);
    let mut said = [said_of(decoder.warm_up()), said_of(decoder.run(&[("token", &x)]))].concat();
    decoder.set_parameter_bytes("weight", &[0; 12]).expect("fits");
    said += &[said_of(decoder.run(&[("token", &x)])), said_of(decoder.resident("cache"))].concat();
    decoder.set_input("cache", matrix(1, 2)).expect("fits");
    said += &[said_of(decoder.run(&[])), said_of(decoder.run_positional(&[], &mut Vec::new()))].concat();
    expect![[r#"
        parameter weight was not set
        help: set it with `set_parameter`
        parameter weight was not set
        help: set it with `set_parameter`
        resident input cache was not set
        help: set it with `set_input`
        resident input cache was not set
        help: set it with `set_input`
        input token is missing
        help: give every input that is not resident to the run
        0 inputs were given, and decoder takes 1
        help: give these in order: token
    "#]]
    .assert_eq(&said);
}

#[test]
fn the_order_of_calls() {
    let mut decoder = built();
    decoder.set_parameter_bytes("weight", &[0; 12]).expect("fits");
    decoder.set_input("cache", matrix(1, 2)).expect("fits");
    let x = matrix(1, 3);
    let mut said = said_of(decoder.wait());
    decoder.commit(&[("token", &x)]).expect("begins");
    said += &said_of(decoder.commit(&[("token", &x)]));
    expect![[r#"
        no run of decoder is committed
        help: call `commit` first
        a run of decoder is committed already
        help: call `wait` first, or use `run_pipelined`
    "#]]
    .assert_eq(&said);
}

#[test]
fn outputs() {
    let returning = |f: fn(&Array) -> Vec<Array>| -> Result<()> {
        let mut decoder = decoder().feed("cache", "cache").build(move |given| Ok(f(given.get("token")?)))?;
        decoder.set_parameter_bytes("weight", &[0; 12])?;
        decoder.set_input("cache", matrix(1, 2))?;
        decoder.run(&[("token", &matrix(1, 3))]).map(drop)
    };
    let said = [said_of(returning(|x| vec![x.clone()])), said_of(returning(|x| vec![x.clone(), x.clone()]))].concat();
    expect![[r#"
        the function of decoder returns 1 arrays for 2 outputs: logits, cache
        help: return one array for each described output, in their order
        output cache is f32[1,3] and is fed to cache, which is f32[1,2]
        help: return an array of the input's shape and dtype
    "#]]
    .assert_eq(&said);
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
    let said = said_of(changing.run(&[]));
    expect![[r#"
        output y was f32[1,3] and is now f32[2,3]
        help: let the shapes and dtypes of outputs depend on those of inputs alone
    "#]]
    .assert_eq(&said);
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
