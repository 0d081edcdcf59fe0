//! What the bridge says of wrong arguments, from the first word to the last.

use std::slice::from_ref;
use std::sync::Arc;

use mlx_rs::transforms::eval;
use mlx_rs::{Array, Dtype, ops};
use tacit_bridge::kernel::{Fallback, Input, Kernel, Output, apply};
use tacit_bridge::typed::{AddMM, Arange, AsStrided, AsType, Concatenate, TypedPrimitive};
use tacit_bridge::{Aval, BoxError, Param, Plan, PlanBuilder, arg_partition, difference, in_chunks, record_shapeless};

use crate::arrays::{aval, matrix, vector};
use crate::failed_kernels::failure;
use crate::turns;

/// A kernel of this name and result, which may write over its input and reads it all the same.
struct Told(&'static str, Aval);

impl Kernel for Told {
    fn name(&self) -> &'static str {
        self.0
    }

    fn output_avals(&self, _: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        Ok(vec![self.1.clone()])
    }

    fn in_place(&self, _: &[Aval]) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], _: &mut [Output<'_>]) -> Result<(), BoxError> {
        Ok(inputs[0].elements::<f32>().map(drop)?)
    }

    fn decompose(&self, inputs: &[Array]) -> Result<Vec<Array>, BoxError> {
        Ok(inputs.to_vec())
    }
}

/// A plan of these stages, each of which has a result of so many elements, for `f32[2]`.
fn plan(stages: &[(&'static str, &[i32])]) -> Result<Plan, BoxError> {
    let mut plan = PlanBuilder::default();
    let mut last = plan.input(aval(&[2]));
    for &(name, extents) in stages {
        last = plan.stage(Arc::new(Told(name, aval(extents))), &[last])?[0];
    }
    plan.finish(&[last])
}

#[test]
fn of_names_and_parameters() {
    let error = "f32[4".parse::<Aval>().expect_err("lacks its end");
    assert_eq!(error.to_string(), "\"f32[4\" is not an aval such as f32[4,8]");
    let named = apply(Arc::new(Told("a\0b", aval(&[1]))), &[vector(&[1.0])]).map(drop);
    assert_eq!(named.expect_err("no name").to_string(), "the name \"a\\0b\" holds a NUL byte");
    let flag = [Param::Bool(true), Param::Bool(true), Param::Bool(true)];
    let all = [
        ("Concatenate", "axis", "a 32-bit integer", Concatenate::from_params(&flag[..1]).map(drop)),
        ("AddMM", "alpha", "a real number", AddMM::from_params(&flag[..2]).map(drop)),
        ("Arange", "start", "a real number", Arange::from_params(&flag).map(drop)),
        ("AsType", "dtype", "a dtype", AsType::from_params(&flag[..1]).map(drop)),
    ];
    for (primitive, field, expected, read) in all {
        assert_eq!(
            read.expect_err("a flag").to_string(),
            format!(
                "parameter {field} of {primitive} is true, which is not {expected}\n\
                 help: read it from a primitive of that name"
            )
        );
    }
    let strides = [Param::Ints(vec![2]), Param::Int(1), Param::Int(0)];
    assert_eq!(
        AsStrided::from_params(&strides).map(drop).expect_err("one stride").to_string(),
        "parameter strides of AsStrided is 1, which is not a list of integers\n\
         help: read it from a primitive of that name"
    );
}

#[test]
fn of_places_and_chunks() {
    assert_eq!(
        arg_partition(&[1.0, 2.0], 2, &mut [0; 2]).expect_err("two numbers").to_string(),
        "the number at place 2 of 2 numbers is asked for, and there are 2 places\n\
         help: ask for one that is there, and give a place for each number"
    );
    let chunks = in_chunks(|args| Ok(args.to_vec()), &[matrix(2, 2), matrix(3, 2)], 2, 1).map(drop);
    assert_eq!(
        chunks.expect_err("other rows").to_string(),
        "no chunks of 1 rows of the first 2 arguments\n\
         help: give arguments of the same number of rows, and chunks of at least one"
    );
}

#[test]
fn of_graphs_that_differ() {
    let record = |x: &Array, f: &dyn Fn(&Array) -> Result<Array, BoxError>| {
        record_shapeless(&[x], &mut |args| Ok(vec![f(&args[0])?])).expect("records")
    };
    let x = vector(&[1.0]);
    let joined = |count: usize| record(&x, &move |x| Ok(ops::concatenate(&vec![x.clone(); count], 0)?));
    let exponential = |x: &Array| record(x, &|x| Ok(x.exp()?));
    let told = |(a_in, a_out): &(Vec<Array>, Vec<Array>), (b_in, b_out): &(Vec<Array>, Vec<Array>)| {
        difference(a_out, a_in, b_out, b_in).expect("compares").map(|found| found.to_string())
    };
    let one = exponential(&x);
    assert_eq!(told(&one, &(Vec::new(), one.1.clone())).as_deref(), Some("the numbers of inputs differ: 1 became 0"));
    assert_eq!(
        told(&joined(2), &joined(3)).as_deref(),
        Some("the numbers of a node's operands differ: concatenate[axis=0] became concatenate[axis=0]")
    );
    let half = exponential(&x.as_dtype(Dtype::Float16).expect("builds"));
    assert_eq!(told(&one, &half).as_deref(), Some("the results of a node differ: exp became exp"));
}

#[test]
fn of_what_stands_for_a_kernel() {
    let all = [
        Fallback::Device,
        Fallback::Vjp,
        Fallback::Jvp,
        Fallback::Vmap { examples: 1 },
        Fallback::Vmap { examples: 2 },
    ];
    assert_eq!(
        all.map(|fallback| fallback.to_string()),
        ["off the CPU", "for a gradient", "for a derivative", "mapped over 1 example", "mapped over 2 examples"]
    );
}

#[test]
fn of_plans() {
    let other = plan(&[("same", &[2])]).expect("a plan").apply(&[vector(&[1.0])]).map(drop);
    assert_eq!(
        other.expect_err("of two elements").to_string(),
        "a plan was given f32[1] and was made for f32[2]\nhelp: make a plan for these"
    );
    let too_large = plan(&[("grow", &[i32::MAX; 3]), ("shrink", &[1])]).map(drop);
    assert_eq!(
        too_large.expect_err("no address").to_string(),
        "the arrays of a plan need more memory than there can be\n\
         help: compile smaller steps, or set `Passes::Off`"
    );
    let large = plan(&[("grow", &[1 << 30, 1 << 20]), ("shrink", &[1])]).expect("a plan");
    let made = large.apply(&[vector(&[1.0, 2.0])]).expect("a node");
    assert_eq!(
        failure(&eval([&made[0]]).expect_err("no such memory")),
        "kernel Plan failed: there is no memory for the 4503599627370496 bytes of a plan\n\
         help: compile smaller steps, or set `Passes::Off`"
    );
}

#[test]
fn of_an_input_that_lies_in_an_output() {
    let _turn = turns::of_memory();
    let x = vector(&[1.0, 2.0]).add(Array::from_f32(1.0)).expect("builds");
    x.eval().expect("evaluates");
    let made = plan(&[("over", &[2])]).expect("a plan").apply(from_ref(&x)).expect("a node");
    drop(x);
    assert_eq!(
        failure(&eval([&made[0]]).expect_err("it lies in the output")),
        "kernel over failed: the array f32[2] is what output 0 begins as\n\
         help: read it there, before the output is written"
    );
}
