//! Outputs that take the memory of inputs.

use std::sync::Arc;

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype};

use super::{Computes, Stage, builder, numbers, results, results_of_own, stage};
use crate::{Aval, Plan, PlanValue};

#[test]
fn an_output_takes_the_memory_of_an_input_that_nothing_needs_any_more() {
    let floats = || Aval::new(&[10_000], Dtype::Float32);
    let sums = |later: bool, threads: usize| {
        let mut plan = builder(threads);
        let [x, y] = [floats(), floats()].map(|aval| plan.input(aval));
        let mut sum = |a: PlanValue, b: PlanValue| plan.stage(stage(Computes::Sum), &[a, b]).expect("a stage")[0];
        let first = sum(x, y);
        let second = if later { sum(first, x) } else { sum(y, y) };
        let outputs = [first, second];
        plan.finish(&outputs).expect("a plan")
    };
    // What is read twice stays, and what is read later.
    let [now, later] = [false, true].map(|later| sums(later, 0).donated);
    assert_eq!((now, later), (vec![(0, 0), (0, 1)], vec![(0, 1), (1, 0)]));
    assert_eq!((sums(false, 0).arena(), sums(false, 1).pieced()), (0, 0));
    let (x, y) = (numbers(10_000), numbers(10_000).multiply(Array::from_f32(3.0)).expect("numbers"));
    crate::eval(std::slice::from_ref(&y)).expect("numbers");
    let copied = |array: &Array| Array::from_slice(array.as_slice::<f32>(), array.shape());
    for later in [false, true] {
        // Somebody holds them.
        let before = [&x, &y].map(|array| array.as_slice::<f32>().to_vec());
        let expected = results(sums(later, 0), &[x.clone(), y.clone()]).expect("it runs");
        assert_eq!([&x, &y].map(|array| array.as_slice::<f32>().to_vec()), before);
        let (first, other) = (copied(&x), copied(&y));
        let taken = if later { &other } else { &first };
        let memory = taken.as_slice::<f32>().as_ptr();
        let outputs = sums(later, 0).apply(&[first, other]).expect("a node");
        crate::eval(&outputs).expect("it runs");
        assert_eq!(outputs[0].as_slice::<f32>().as_ptr(), memory);
        assert_eq!(outputs.iter().map(|output| output.as_slice::<f32>().to_vec()).collect::<Vec<_>>(), expected);
        if !later {
            // Of two inputs that would do, the one that nobody holds.
            let (held, other) = (copied(&x), copied(&y));
            let memory = other.as_slice::<f32>().as_ptr();
            let outputs = sums(later, 0).apply(&[held.clone(), other]).expect("a node");
            crate::eval(&outputs).expect("it runs");
            assert_eq!(
                (outputs[0].as_slice::<f32>().as_ptr(), outputs[0].as_slice::<f32>()),
                (memory, &expected[0][..])
            );
            assert_eq!(held.as_slice::<f32>(), before[0]);
        }
        // One array as both inputs is held by the other one.
        let both = results(sums(later, 0), &[x.clone(), x.clone()]).expect("it runs");
        let one = copied(&x);
        assert_eq!(results_of_own(sums(later, 0), [one.clone(), one]), both);
    }
}

#[test]
fn what_writes_over_an_input_runs_behind_what_reads_it() {
    let plan_of = |taken: bool, updated: bool| {
        let mut plan = builder(0);
        let [x, y] = [0, 1].map(|_| plan.input(Aval::new(&[5_000], Dtype::Float32)));
        let sum = plan.stage(stage(Computes::Sum), &[x, y]).expect("a stage")[0];
        let mut outputs = vec![sum];
        if taken {
            outputs.push(plan.stage(stage(Computes::Reversed), &[sum]).expect("a stage")[0]);
        }
        if updated {
            outputs.push(plan.update(stage(Computes::Next), y, &[]));
        }
        for input in [x, y] {
            outputs.push(plan.stage(stage(Computes::Reversed), &[input]).expect("a stage")[0]);
        }
        plan.finish(&outputs).expect("a plan")
    };
    let told = |plan: &Plan| plan.stages().map(|(kernel, _)| kernel.name()).collect::<Vec<_>>();
    let plan = plan_of(false, false);
    assert_eq!((told(&plan), &plan.donated[..]), (vec!["Reversed", "Reversed", "Sum"], &[(0, 0), (0, 1)][..]));
    let plan = plan_of(true, false);
    assert_eq!((told(&plan)[0], plan.donated.len()), ("Sum", 0));
    assert_eq!(told(&plan_of(false, true))[0], "Sum");
    let inputs = || [numbers(5_000), numbers(5_000)];
    let expected = results(plan_of(false, false), &inputs()).expect("it runs");
    assert_eq!(results_of_own(plan_of(false, false), inputs()), expected);
    let more = results_of_own(plan_of(true, true), inputs());
    assert_eq!([&more[0], &more[3], &more[4]], [&expected[0], &expected[1], &expected[2]]);
}

/// The sum of two inputs, and what a later stage makes of it.
fn sum(later: Option<Stage>) -> Plan {
    let mut plan = builder(0);
    let [x, y] = [0, 1].map(|_| plan.input(Aval::new(&[5_000], Dtype::Float32)));
    let sum = plan.stage(stage(Computes::Sum), &[x, y]).expect("a stage")[0];
    let mut outputs = vec![sum];
    if let Some(later) = later {
        outputs.extend(plan.stage(Arc::new(later), &[sum]).expect("a stage"));
    }
    let plan = plan.finish(&outputs).expect("a plan");
    assert_eq!(plan.donated, [(0, 0), (0, 1)]);
    plan
}

#[test]
fn of_memory_that_inputs_share_none_is_written_over() {
    let parts = |starts: [i32; 2]| {
        let whole = numbers(5_001);
        let parts = starts.map(|start| whole.try_index(start..start + 5_000).expect("a part"));
        crate::eval(&parts).expect("parts");
        parts
    };
    for starts in [[0, 1], [1, 0], [1, 1]] {
        let expected = results(sum(None), &parts(starts)).expect("it runs");
        assert_eq!(results_of_own(sum(None), parts(starts)), expected, "{starts:?}");
    }
    // A part of what is gone has its memory alone, wherever it begins.
    let ([_, part], [_, other]) = (parts([0, 1]), parts([1, 0]));
    let expected = results(sum(None), &[part.clone(), other.clone()]).expect("it runs");
    let memory = part.as_slice::<f32>().as_ptr();
    let output = sum(None).apply(&[part, other]).expect("a node").swap_remove(0);
    crate::eval(std::slice::from_ref(&output)).expect("it runs");
    assert_eq!((output.as_slice::<f32>().as_ptr(), output.as_slice::<f32>()), (memory, &expected[0][..]));
}

#[test]
fn a_plan_that_fails_once_it_has_written_over_an_input_gives_nothing() {
    let failing = || sum(Some(Stage { computes: Computes::Reversed, bad: Some((7, false)) }));
    let inputs = || [numbers(5_000), numbers(5_000)];
    let held = inputs();
    assert!(results(failing(), &held).is_err());
    let floats = |arrays: &[Array; 2]| arrays.each_ref().map(|array| array.as_slice::<f32>().to_vec());
    assert_eq!(floats(&held), floats(&inputs()));
    let outputs = failing().apply(&inputs()).expect("a node");
    for array in [&outputs[0], &outputs[1], &outputs[0]] {
        assert!(crate::eval(std::slice::from_ref(array)).is_err());
    }
}

/// Some allocators give all arrays without elements one address.
#[test]
fn what_has_no_elements_lies_in_no_input() {
    let mut plan = builder(0);
    let [x, y] = [0, 1].map(|_| plan.input(Aval::new(&[0], Dtype::Float32)));
    let sum = plan.stage(stage(Computes::Sum), &[x, y]).expect("a stage");
    assert!(plan.finish(&sum).expect("a plan").donated.is_empty());
}
