//! What an executable says of itself, what is chosen for its compilation, and inputs that need not be given.

use expect_test::expect;
use mlx_rs::{Array, Dtype};
use tacit::compile::{CompileOptions, Constants};
use tacit::pass::Passes;
use tacit::{Aval, Error, Policy, Registry};
use tacit_executable::{Builder, Executable, Mode};

use crate::runs::{multiply, turn};
use crate::types::{Left, aval, dense, error, matrix, message, vector, with_handlers, without_handlers};

/// `x weight^T`, and its sum with what is fed.
fn decoder() -> Executable<'static> {
    Executable::builder("decoder")
        .parameter("weight", aval(&[2, 3]))
        .input("x", aval(&[1, 3]))
        .resident("sum", aval(&[1, 2]))
        .optional("scale", Array::from_f32(2.0))
        .output("largest")
        .output("sum")
        .feed("sum", "sum")
        .build(|given| {
            let y = given.get("x")?.matmul(given.get("weight")?.t())?.multiply(given.get("scale")?)?;
            let sum = given.get("sum")?.add(&y)?;
            Ok(vec![mlx_rs::ops::indexing::argmax(&sum, None)?, sum])
        })
        .expect("builds")
}

fn listed<'a>(all: impl IntoIterator<Item = (&'a str, &'a Aval)>) -> String {
    all.into_iter().map(|(name, aval)| format!("{name} {aval}")).collect::<Vec<_>>().join(", ")
}

#[test]
fn parameters_inputs_and_outputs_are_told_with_their_avals_before_anything_is_set() {
    let decoder = decoder();
    assert_eq!(listed(decoder.parameters()), "weight f32[2,3]");
    assert_eq!(listed(decoder.inputs()), "x f32[1,3], sum f32[1,2], scale f32[]");
    let outputs = decoder.outputs().expect("records");
    assert_eq!(listed(outputs.iter().map(|(name, aval)| (*name, aval))), "largest u32[], sum f32[1,2]");
    assert_eq!(decoder.unset(), ["weight", "sum"]);
    assert_eq!((decoder.stats().calls, decoder.stats().traces), (0, 0));
}

#[test]
fn what_is_set_is_not_unset_and_an_optional_input_never_is() {
    let mut decoder = decoder();
    decoder.set_input("sum", Array::from_f32(0.0)).expect("is broadcast");
    assert_eq!(decoder.unset(), ["weight"]);
    decoder.set_parameter("weight", matrix(2, 3)).expect("fits");
    assert!(decoder.unset().is_empty());
    decoder.run(&[("x", &matrix(1, 3))]).expect("runs");
}

#[test]
fn the_outputs_of_some_rows_are_theirs() {
    let mut rows = rows(CompileOptions::default());
    rows.active_extent(3, 4).expect("rows keep apart");
    assert_eq!(rows.outputs().expect("are known"), [("y", aval(&[3, 2]))]);
}

#[test]
fn a_function_that_looks_at_values_has_no_outputs_before_it_is_called() {
    let looking = Executable::builder("looking")
        .input("x", aval(&[2]))
        .output("y")
        .mode(Mode::Eager)
        .build(|given| {
            given.get("x")?.eval()?;
            Ok(vec![given.get("x")?.clone()])
        })
        .expect("builds");
    assert!(matches!(looking.outputs(), Err(Error::EvalInTrace)));
}

#[test]
fn an_executable_is_explained() {
    let _registry = with_handlers(Registry::new().with::<turn>().with::<multiply>());
    let mut decoder = decoder();
    assert!(matches!(decoder.explain(), Err(Error::Invalid { .. })), "the weight is not set");
    decoder.set_parameter("weight", Left::of(&matrix(2, 3))).expect("fits");
    let told = decoder.explain().expect("explains").to_string();
    let inputs = "{ lambda weight:Left(f32[2,3]) x:f32[1,3] sum:f32[1,2] scale:f32[] .";
    assert_eq!(told.lines().next(), Some(inputs));
    for (call, handler) in [(" = transpose[", "turn "), (" = matmul x ", "multiply ")] {
        assert!(told.lines().any(|line| line.contains(call) && line.contains(handler)), "{call}: {told}");
    }
    assert!(told.contains("2 handled, 0 materialized (0 B)\ncompiled: 1 node of MLX"), "{told}");
}

/// Rows of `x` times `w`, of 4.
fn rows(options: CompileOptions) -> Executable<'static> {
    let mut rows = Executable::builder("rows")
        .parameter("w", aval(&[3, 2]))
        .input("x", aval(&[4, 3]))
        .output("y")
        .mode(Mode::Compiled)
        .options(options)
        .build(|given| Ok(vec![given.get("x")?.matmul(given.get("w")?)?.exp()?.sin()?]))
        .expect("builds");
    rows.set_parameter("w", matrix(3, 2)).expect("fits");
    rows
}

fn on_rows(executable: &mut Executable<'_>, actual: i32) -> Vec<f32> {
    executable.active_extent(actual, 4).expect("rows keep apart");
    let x = matrix(4, 3).multiply(Array::from_f32(0.01)).expect("builds");
    dense(executable.run(&[("x", &x)]).expect("runs").get("y").expect("is returned"))
}

#[test]
fn one_trace_serves_every_extent_where_the_options_say_shapeless() {
    // Passes leave other loops of another bit where shapes are known.
    let options = || CompileOptions { passes: Passes::Off, ..CompileOptions::default() };
    let (mut shaped, mut shapeless) = (rows(options()), rows(CompileOptions { shapeless: true, ..options() }));
    for actual in [4, 2, 3] {
        assert_eq!(on_rows(&mut shaped, actual), on_rows(&mut shapeless, actual));
    }
    assert_eq!(shaped.stats().traces, 3);
    assert_eq!((shapeless.stats().traces, shapeless.stats().checked), (1, 2));
}

#[test]
fn capacity_and_passes_are_those_of_the_options() {
    let mut one = rows(CompileOptions { capacity: 1, passes: Passes::Off, ..CompileOptions::default() });
    for actual in [4, 2, 4] {
        on_rows(&mut one, actual);
    }
    assert_eq!((one.stats().traces, one.stats().evicted), (3, 2));
    assert!(one.stats().rewritten.is_empty());
}

#[test]
fn the_name_in_messages_is_the_executables_whatever_the_options_say() {
    let held = vector(&[1.0, 2.0]);
    let mut holding = Executable::builder("holding")
        .input("x", aval(&[2]))
        .output("y")
        .mode(Mode::Compiled)
        .options(CompileOptions { constants: Constants::Deny, name: "another".into(), ..CompileOptions::default() })
        .build(|given| Ok(vec![given.get("x")?.add(&held)?]))
        .expect("builds");
    let text = error(holding.run(&[("x", &vector(&[1.0, 1.0]))])).to_string();
    assert!(text.starts_with("holding is compiled and holds"), "{text}");
}

#[test]
fn a_run_overrides_an_optional_input_once_in_every_mode() {
    for mode in [Mode::Eager, Mode::Lazy, Mode::Compiled] {
        let mut scaled = optional(mode).build(|given| Ok(vec![given.get("x")?.multiply(given.get("by")?)?]));
        let scaled = scaled.as_mut().expect("builds");
        let (x, ten) = (vector(&[1.0, 2.0]), vector(&[10.0, 10.0]));
        let y = |outputs: tacit::Result<tacit_executable::Outputs>| {
            dense(outputs.expect("runs").get("y").expect("is returned"))
        };
        assert_eq!(y(scaled.run(&[("x", &x)])), [3.0, 6.0]);
        assert_eq!(y(scaled.run(&[("by", &ten), ("x", &x)])), [10.0, 20.0], "{mode:?}");
        scaled.commit(&[("by", &ten), ("x", &x)]).expect("begins");
        assert_eq!(y(scaled.wait()), [10.0, 20.0]);
        assert!(scaled.run(&[("by", &ten), ("x", &matrix(1, 4))]).is_err());
        assert_eq!(y(scaled.run(&[("x", &x)])), [3.0, 6.0], "{mode:?}");
        // Positional runs take what is not optional.
        let mut outputs = Vec::new();
        scaled.run_positional(&[&x], &mut outputs).expect("runs");
        assert_eq!(dense(&outputs[0]), [3.0, 6.0]);
        scaled.set_input("by", ten.clone()).expect("fits");
        assert_eq!(y(scaled.run(&[("x", &x)])), [10.0, 20.0]);
    }
}

fn optional(mode: Mode) -> Builder {
    Executable::builder("scaled").input("x", aval(&[2])).optional("by", vector(&[3.0, 3.0])).output("y").mode(mode)
}

#[test]
fn an_optional_input_may_be_implicit_and_is_dense_where_a_run_says_so() {
    let _scopes = without_handlers();
    let _allow = Policy::Allow.scope();
    let mut scaled = Executable::builder("scaled")
        .optional("by", Left::of(&vector(&[3.0, 3.0])))
        .output("y")
        .build(|given| Ok(vec![given.get("by")?.square()?]))
        .expect("builds");
    let y = |outputs: tacit_executable::Outputs| dense(outputs.get("y").expect("is returned"));
    assert_eq!(y(scaled.run(&[]).expect("runs")), [9.0, 9.0]);
    assert_eq!(y(scaled.run(&[("by", &vector(&[1.0, 2.0]))]).expect("runs")), [1.0, 4.0]);
    assert_eq!(y(scaled.run(&[]).expect("runs")), [9.0, 9.0]);
}

#[test]
fn a_scalar_is_broadcast_where_a_shape_is_described() {
    for mode in [Mode::Eager, Mode::Lazy, Mode::Compiled] {
        let mut filled = Executable::builder("filled")
            .parameter("w", aval(&[2, 2]))
            .input("x", aval(&[2, 2]))
            .resident("sum", aval(&[2, 2]))
            .output("sum")
            .output("y")
            .feed("sum", "sum")
            .mode(mode)
            .build(|given| {
                let sum = given.get("sum")?.add(given.get("x")?.matmul(given.get("w")?)?)?;
                Ok(vec![sum.clone(), sum])
            })
            .expect("builds");
        filled.set_parameter("w", Array::from_f32(0.5)).expect("is broadcast");
        filled.set_input("sum", Array::from_f32(1.0)).expect("is broadcast");
        assert_eq!(filled.resident("sum").expect("is set").aval().expect("has one"), aval(&[2, 2]));
        let x = Array::from_f32(3.0);
        for sum in [4.0, 7.0] {
            let outputs = filled.run(&[("x", &x)]).expect("runs");
            assert_eq!(dense(outputs.get("y").expect("is returned")), [sum; 4], "{mode:?}");
        }
        assert!(filled.set_parameter("w", vector(&[0.5])).is_err(), "one element in an axis is another shape");
    }
}

#[test]
fn a_scalar_of_another_dtype_is_not_converted() {
    let mut filled = decoder();
    let scalar = Array::from_f32(0.0).as_dtype(Dtype::Float16).expect("builds");
    expect![[r#"
        resident input sum is f16[] and described as f32[1,2]
        help: convert it with `as_dtype`, or describe it as f16"#]]
    .assert_eq(&message(&error(filled.set_input("sum", scalar))));
}
