//! Graphs that are the same program, and those that are not.

use std::sync::Arc;

use mlx_rs::{Array, Dtype, memory, ops};
use tacit_bridge::kernel::{Input, Kernel, Output, apply};
use tacit_bridge::{Aval, BoxError, BridgeError, Param, Primitive, difference, has_shape_rules, record_shapeless};

use crate::arrays::{matrix, numbers, vector};
use crate::turns;

type Made = Result<Vec<Array>, BoxError>;
type Recordable<'a> = &'a dyn Fn(&[Array]) -> Made;

/// How the graph that `f` records at shape `b` differs from that at shape `a`.
fn compared(a: &[i32], b: &[i32], f: impl Fn(&Array) -> Made) -> Option<String> {
    let [(a_in, a_out), (b_in, b_out)] = [a, b].map(|shape| {
        let x = ops::zeros::<f32>(shape).expect("builds");
        record_shapeless(&[&x], &mut |args| f(&args[0])).expect("records")
    });
    difference(&a_out, &a_in, &b_out, &b_in).expect("compares").map(|found| found.to_string())
}

#[test]
fn one_function_at_two_batch_sizes_is_one_program() {
    let (weight, bias) = (matrix(6, 5), vector(&[1.0; 5]));
    let f = |x: &Array| -> Made {
        let y = x.matmul(&weight)?.add(&bias)?;
        let y = ops::softmax_axis(y, -1, None)?.multiply(Array::from_f32(0.5))?;
        Ok(vec![y.sum_axis(-1, None)?, y.add(x.max_axis(-1, true)?)?])
    };
    assert_eq!(compared(&[2, 6], &[7, 6], f), None);
    assert_eq!(compared(&[3, 2, 6], &[5, 4, 6], |x| Ok(vec![x.matmul(&weight)?.add(&bias)?])), None);
}

#[test]
fn extents_that_the_function_wrote_down_are_found() {
    let flat = |x: &Array| -> Made { Ok(vec![x.reshape(&[x.shape()[0] * x.shape()[1], -1])?.exp()?]) };
    let found = compared(&[2, 3, 10], &[3, 5, 4], flat);
    assert_eq!(
        found.as_deref(),
        Some("the static parameters of a node differ: reshape[shape=(6,-1)] became reshape[shape=(15,-1)]")
    );
    let mean = |x: &Array| -> Made { Ok(vec![x.sum(None)?.divide(Array::from_f32(x.shape()[0] as f32))?]) };
    assert_eq!(compared(&[2], &[4], mean).as_deref(), Some("the constants differ: 2 f32[] became 4 f32[]"));
}

#[test]
fn a_fallback_that_writes_extents_down_is_found() {
    let round = |x: &Array| -> Made {
        let (codes, scales, biases) = ops::quantize(x, 64, 4)?;
        Ok(vec![ops::dequantize(codes, scales, &biases, 64, 4)?])
    };
    let found = compared(&[4, 128], &[8, 128], round).expect("differs");
    assert!(found.contains("reshape") || found.contains("flatten") || found.contains("broadcast"), "{found}");
}

/// MLX writes the extents of the addend down, also while it traces for shapeless, and then reads beyond its end.
#[test]
fn addmm_is_recorded_without_extents() {
    let (weight, bias) = (matrix(6, 5), vector(&[1.0; 5]));
    let f = |x: &Array| -> Made { Ok(vec![ops::addmm(&bias, x.exp()?, &weight, 0.5, 2.0)?.exp()?]) };
    for (a, b) in [(&[2, 6][..], &[7, 6][..]), (&[3, 2, 6], &[5, 4, 6]), (&[3, 2, 2, 6], &[5, 4, 1, 6])] {
        assert_eq!(compared(a, b, f), None);
    }
}

/// Where MLX records shapes nobody needs a rule.
#[test]
fn what_has_no_rule_for_its_shapes_is_told() {
    let x = matrix(2, 6);
    let cut = |x: &Array| -> Result<Array, BoxError> { Ok(x.split_equal(2, 0)?.swap_remove(1).exp()?) };
    let has = |result: &Array, from: &Array| has_shape_rules(result, from).expect("memory");
    assert!(has(&cut(&x).expect("builds"), &x));
    let told = &mut |args: Vec<Array>| -> Made {
        let (x, kernel) = (&args[0], shift(&args[0], 1.0, true));
        assert_eq!([&x.exp()?, x, &kernel, &cut(x)?].map(|result| has(result, x)), [true, true, true, false]);
        // What was cut before does not belong to it.
        let before = cut(x)?;
        assert!(has(&before.exp()?, &before));
        Ok(args)
    };
    record_shapeless(&[&x], told).expect("records");
}

#[test]
fn the_cause_is_told_rather_than_what_follows_from_it() {
    let f = |x: &Array| -> Made {
        let ones = ops::full::<f32>(&[x.shape()[0]], Array::from_f32(1.0))?;
        Ok(vec![x.add(ones)?.exp()?.sum(None)?])
    };
    let found = compared(&[2], &[3], f).expect("differs");
    assert!(found.contains("(2)") && found.contains("(3)"), "{found}");
}

#[test]
fn programs_that_differ_are_told_apart() {
    let x = vector(&[1.0, 2.0]);
    let record = |f: Recordable<'_>| record_shapeless(&[&x, &x], &mut |args| f(&args)).expect("records");
    let base = record(&|args| Ok(vec![args[0].subtract(&args[1])?]));
    let cases: [(Recordable<'_>, Option<&str>); 5] = [
        (&|args| Ok(vec![args[0].subtract(&args[1])?]), None),
        (&|args| Ok(vec![args[1].subtract(&args[0])?]), Some("the graphs use their inputs in different places")),
        (&|args| Ok(vec![args[0].add(&args[1])?]), Some("the primitives of a node differ: subtract became add")),
        (&|args| Ok(vec![args[0].subtract(&x)?]), Some("the graphs use their inputs in different places")),
        (&|args| Ok(vec![args[0].subtract(&args[1])?, x.clone()]), Some("the numbers of results differ: 1 became 2")),
    ];
    for (f, expected) in cases {
        let (b_in, b_out) = record(f);
        let found = difference(&base.1, &base.0, &b_out, &b_in).expect("compares").map(|found| found.to_string());
        match expected {
            None => assert_eq!(found, None),
            Some(text) => assert!(found.as_ref().is_some_and(|found| found.starts_with(text)), "{found:?}"),
        }
    }
}

#[test]
fn constants_are_compared_by_their_elements_while_they_are_few() {
    let with = |values: Vec<f32>| {
        let x = Array::from_f32(1.0);
        let constant = Array::from_slice(&values, &[values.len() as i32]);
        record_shapeless(&[&x], &mut |args| Ok(vec![args[0].add(&constant)?])).expect("records")
    };
    let same = |a: Vec<f32>, b: Vec<f32>| {
        let ((a_in, a_out), (b_in, b_out)) = (with(a), with(b));
        difference(&a_out, &a_in, &b_out, &b_in).expect("compares").is_none()
    };
    assert!(same(vec![1.0, 2.0], vec![1.0, 2.0]) && !same(vec![1.0, 2.0], vec![1.0, 3.0]));
    assert!(!same(vec![1.0; 2], vec![1.0; 3]) && !same(vec![1.0; 5000], vec![1.0; 5000]));
}

/// Adds a number to each element.
struct Shift {
    by: f32,
    told: bool,
}

impl Kernel for Shift {
    fn name(&self) -> &'static str {
        "Shift"
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        self.told.then(|| vec![("by", Param::Float(f64::from(self.by)))])
    }

    fn output_avals(&self, inputs: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        Ok(inputs.to_vec())
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
        for (y, x) in outputs[0].elements::<f32>()?.iter_mut().zip(inputs[0].elements::<f32>()?) {
            *y = x + self.by;
        }
        Ok(())
    }

    fn decompose(&self, inputs: &[Array]) -> Result<Vec<Array>, BoxError> {
        Ok(vec![inputs[0].add(Array::from_f32(self.by))?])
    }
}

fn shift(x: &Array, by: f32, told: bool) -> Array {
    apply(Arc::new(Shift { by, told }), std::slice::from_ref(x)).expect("fits").remove(0)
}

#[test]
fn kernels_are_equal_by_their_parameters() {
    let at = |n: i32, by: f32, told: bool| {
        let x = ops::zeros::<f32>(&[n]).expect("builds");
        record_shapeless(&[&x], &mut |args| Ok(vec![shift(&args[0], by, told)])).expect("records")
    };
    let compare = |a: (Vec<Array>, Vec<Array>), b: (Vec<Array>, Vec<Array>)| {
        difference(&a.1, &a.0, &b.1, &b.0).expect("compares").map(|found| found.to_string())
    };
    assert_eq!(compare(at(2, 1.0, true), at(3, 1.0, true)), None);
    assert_eq!(
        compare(at(2, 1.0, true), at(3, 2.0, true)).as_deref(),
        Some("the static parameters of a node differ: Shift[by=1] became Shift[by=2]")
    );
    assert!(compare(at(2, 1.0, false), at(3, 1.0, false)).is_some());
}

#[test]
fn a_kernel_shows_its_parameters() {
    let x = vector(&[1.0]);
    let primitive = Primitive::making(&shift(&x, 0.5, true)).expect("memory").expect("a node");
    assert_eq!(primitive.to_string(), "Shift[by=0.5]");
    assert_eq!(primitive.params().expect("known"), [Param::Float(0.5)]);
    let primitive = Primitive::making(&shift(&x, 0.5, false)).expect("memory").expect("a node");
    assert_eq!(primitive.to_string(), "Shift");
    assert!(Primitive::making(&x).expect("memory").is_none());
}

#[test]
fn recording_leaves_nothing_behind() {
    let _turn = turns::of_memory();
    let x = vector(&[1.0; 1024]);
    let f = &mut |args: Vec<Array>| -> Made { Ok(vec![args[0].add(vector(&[1.0; 1024]))?]) };
    drop(record_shapeless(&[&x], f).expect("records"));
    let before = memory::active_memory().expect("counts");
    for _ in 0..10_000 {
        drop(record_shapeless(&[&x], f).expect("records"));
    }
    // Other tests run meanwhile, with small arrays.
    assert!(memory::active_memory().expect("counts") < before + (1 << 22));
}

#[test]
fn an_error_while_recording_comes_back_itself() {
    let x = vector(&[1.0]);
    let error = record_shapeless(&[&x], &mut |_| Err("the function's own words".into())).expect_err("fails");
    assert!(matches!(&error, BridgeError::Callback(_)) && error.to_string() == "the function's own words");
    let error = record_shapeless(&[&x], &mut |args| Ok(vec![args[0].eval().map(|()| args[0].clone())?]));
    assert!(error.is_err());
    let (tracers, outputs) = record_shapeless(&[&x], &mut |args| Ok(vec![args[0].exp()?])).expect("records");
    assert_eq!((tracers.len(), outputs.len()), (1, 1));
    assert_eq!((outputs[0].dtype(), numbers(&x)), (Dtype::Float32, vec![1.0]));
}
