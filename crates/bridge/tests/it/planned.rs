//! A plan that somebody waits for runs on the thread that waits, and is to everybody else what it is on another.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use mlx_rs::error::Exception;
use mlx_rs::transforms::{async_eval, eval, grad};
use mlx_rs::{Array, Dtype, ops};
use tacit_bridge::kernel::{Input, Kernel, Output};
use tacit_bridge::{
    Aval, BoxError, Differentiable, PlanBuilder, Primitive, Program, array_id, cse, custom_vjp, difference,
};

use crate::arrays::{numbers, vector};
use crate::failed_kernels::{Encode, FAILED, assert_poisoned, bad, encode_by, failure};
use crate::turns;

/// One more than its input, or, without one, than what its output begins with; it notes the thread that it runs on.
#[derive(Default)]
pub(crate) struct Next(Mutex<Option<ThreadId>>);

impl Next {
    fn thread(&self) -> Option<ThreadId> {
        *self.0.lock().expect("no panic")
    }
}

impl Kernel for Next {
    fn name(&self) -> &'static str {
        "next"
    }

    fn output_avals(&self, inputs: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        Ok(inputs.to_vec())
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
        *self.0.lock().expect("no panic") = Some(thread::current().id());
        let y = outputs[0].elements::<f32>()?;
        if let Some(x) = inputs.first() {
            y.copy_from_slice(x.elements()?);
        }
        for y in y {
            *y += 1.0;
        }
        Ok(())
    }

    fn decompose(&self, inputs: &[Array]) -> Result<Vec<Array>, BoxError> {
        Ok(vec![inputs[0].add(Array::from_f32(1.0))?])
    }
}

/// `x + 1` and `x + 2` by one plan.
fn twice(kernel: &Arc<Next>, x: &Array) -> [Array; 2] {
    let mut plan = PlanBuilder::default();
    let input = plan.input(Aval::from(x));
    let one = plan.stage(kernel.clone(), &[input]).expect("a stage")[0];
    let two = plan.stage(kernel.clone(), &[one]).expect("a stage")[0];
    let plan = plan.finish(&[one, two]).expect("a plan");
    plan.apply(std::slice::from_ref(x)).expect("a node").try_into().expect("two results")
}

#[test]
fn whoever_waits_runs_it_and_whoever_does_not_has_it_run() {
    let kernel = Arc::new(Next::default());
    // While an eval of another test fails, MLX runs all of them.
    let runs_here = || {
        let [one, two] = twice(&kernel, &vector(&[1.0, 2.0]));
        eval([&two]).expect("an eval");
        assert_eq!([&one, &two].map(numbers), [[2.0, 3.0], [3.0, 4.0]]);
        kernel.thread() == Some(thread::current().id())
    };
    assert!((0..1000).any(|_| runs_here() || (thread::sleep(Duration::from_millis(1)), false).1));

    let [one, two] = twice(&kernel, &vector(&[5.0]));
    async_eval([&one]).expect("an eval");
    assert_eq!([&two, &one].map(numbers), [[7.0], [6.0]]);
    assert_ne!(kernel.thread(), Some(thread::current().id()));
}

#[test]
fn beside_other_ops_and_after_them_it_is_right() {
    let kernel = Arc::new(Next::default());
    let x = vector(&[1.0]);
    let [one, two] = twice(&kernel, &x.add(&x).expect("builds"));
    let sum = one.add(&two).expect("builds");
    eval([&two, &sum]).expect("an eval");
    assert_eq!([&one, &two, &sum].map(numbers), [[3.0], [4.0], [7.0]]);
    // Columns of a matrix do not lie row by row.
    let columns = ops::arange::<_, f32>(0, 4, None).and_then(|all| all.reshape(&[2, 2])?.transpose()).expect("builds");
    columns.eval().expect("an eval");
    let [one, two] = twice(&kernel, &columns);
    eval([&one, &two, &one]).expect("an eval");
    let found = [&one, &two].map(|all| numbers(&all.flatten(None, None).expect("builds")));
    assert_eq!(found, [[1.0, 3.0, 2.0, 4.0], [2.0, 4.0, 3.0, 5.0]]);
}

#[test]
fn it_waits_for_an_input_that_is_under_way() {
    let held = Arc::new(AtomicBool::new(false));
    let [x, _] = encode_by(Encode { held: Some(Arc::clone(&held)), ..Encode::default() }, &vector(&[1.0]));
    async_eval([&x]).expect("begins");
    let [one, _] = twice(&Arc::default(), &x);
    let release = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        held.store(true, Ordering::Release);
    });
    one.eval().expect("an eval");
    release.join().expect("no panic");
    assert_eq!(numbers(&one), [2.0]);
}

/// Two more than each, by a plan for each.
fn two_more(args: Vec<Array>) -> Result<Vec<Array>, BoxError> {
    let two_more = |x: Array| {
        let [_, two] = twice(&Arc::default(), &x);
        two
    };
    Ok(args.into_iter().map(two_more).collect())
}

#[test]
fn what_is_known_serves_the_trace_that_it_was_made_of_alone() {
    let traced = |inputs: &[&Array]| {
        let mut program = Program::new(false).expect("memory");
        program.call(inputs, &mut Vec::new(), &mut two_more).expect("runs");
        program
    };
    let (x, w) = (vector(&[1.0]), vector(&[10.0]));
    let mut program = traced(&[&x, &w]);
    let known = program.know(1, &[&w]).expect("memory").expect("it is there");
    let mut results = Vec::new();
    assert!(program.call_beside(&[&known], &[&x], &mut results).expect("runs"));
    assert_eq!(results.iter().map(numbers).collect::<Vec<_>>(), [[3.0], [12.0]]);

    let wide = vector(&[1.0, 2.0]);
    assert!(program.know(1, &[&wide]).expect("memory").is_none());
    assert!(program.know(2, &[&w]).expect("memory").is_none());
    assert!(program.know(usize::MAX, &[&w]).expect("memory").is_none());
    let other = traced(&[&x, &w, &x]);
    assert!(!other.matches_beside(&[&known], &[&x, &x]));
    assert!(!other.call_beside(&[&known], &[&x, &x], &mut results).expect("looks"));
    assert!(!Program::new(false).expect("memory").call_beside(&[], &[], &mut results).expect("looks"));
    program.call(&[&x, &wide], &mut results, &mut two_more).expect("runs");
    assert!(!program.matches_beside(&[&known], &[&x]));
    assert!(!program.call_beside(&[&known], &[&x], &mut results).expect("looks"));
}

#[test]
fn a_result_is_not_emitted_again() {
    let [one, _] = twice(&Arc::default(), &vector(&[1.0]));
    let primitive = Primitive::making(&one).expect("memory").expect("it is made");
    let other = ops::zeros_dtype(&[0], Dtype::Bool).expect("builds");
    let error = primitive.emit(&[other]).expect_err("it is no plan").to_string();
    assert_eq!(error, "a result of a plan belongs to its node and cannot be emitted again");
    assert_eq!(numbers(&one), [2.0]);
}

#[test]
fn a_trace_without_shapes_that_has_plans_serves_its_own_shapes() {
    let mut program = Program::new(true).expect("memory");
    for x in [vector(&[1.0]), vector(&[1.0, 2.0]), vector(&[4.0, 5.0])] {
        let mut results = Vec::new();
        program.call(&[&x], &mut results, &mut two_more).expect("runs");
        let expected: Vec<f32> = numbers(&x).iter().map(|x| x + 2.0).collect();
        assert_eq!(numbers(&results[0]), expected);
    }
}

#[test]
fn a_failure_is_told_at_once_and_poisons_every_result() {
    let encoded = |x: &Array| {
        let mut plan = PlanBuilder::default();
        let input = plan.input(Aval::from(x));
        let [numbers, bytes] = plan.stage(Arc::new(Encode::default()), &[input]).expect("a stage")[..] else {
            panic!()
        };
        let plan = plan.finish(&[numbers, bytes]).expect("a plan");
        plan.apply(std::slice::from_ref(x)).expect("a node")
    };
    let all = encoded(&bad());
    let [good, _] = twice(&Arc::default(), &vector(&[1.0]));
    let error = eval([&good, &all[0]]).expect_err("it fails");
    assert_eq!(failure(&error), FAILED);
    all.iter().for_each(assert_poisoned);
    assert_eq!(numbers(&good), [2.0]);
    let again = encoded(&vector(&[3.0]));
    assert_eq!((numbers(&again[0]), again[1].as_slice::<u8>()), (vec![3.0], &[3][..]));
}

#[test]
fn on_another_thread_it_is_refused_and_nothing_is_lost() {
    let kernel = Arc::new(Next::default());
    let [one, two] = twice(&kernel, &vector(&[1.0]));
    let refused = |array: Array, evaluate: fn(&Array) -> Result<(), Exception>| {
        let (array, refusal) = thread::spawn(move || {
            let refusal = evaluate(&array).map_err(|error| error.what().to_owned());
            (array, refusal)
        })
        .join()
        .expect("no panic");
        let text = refusal.expect_err("it is of another thread");
        assert!(text.contains("in current thread"), "{text}");
        array
    };
    let two = refused(two, |array| eval([array]));
    assert_eq!(kernel.thread(), None);
    eval([&two]).expect("an eval");
    // The plan has run; its other result is of this thread still.
    let one = refused(one, |array| eval([array]));
    let one = refused(one, |array| async_eval([array]));
    eval([&one]).expect("an eval");
    assert_eq!([&one, &two].map(numbers), [[2.0], [3.0]]);
}

/// Evaluates a result of a plan twice while a gradient is made, which lets arrays keep what they are made of.
struct Evaluates(Mutex<Array>);

impl Differentiable for Evaluates {
    fn name(&self) -> &'static str {
        "evaluates"
    }

    fn forward(&self, args: &[Array]) -> Result<Vec<Array>, BoxError> {
        Ok(vec![args[0].square()?])
    }

    fn backward(&self, primals: &[Array], cotangents: &[Array], _: &[Array]) -> Result<Vec<Array>, BoxError> {
        let factor = self.0.lock().expect("no panic");
        eval([&*factor])?;
        eval([&*factor])?;
        Ok(vec![primals[0].multiply(&*factor)?.multiply(&cotangents[0])?])
    }
}

#[test]
fn within_a_gradient_and_after_it_what_is_there_is_left_alone() {
    let [one, _] = twice(&Arc::default(), &vector(&[1.0]));
    let kept = one.clone();
    let mut gradient = grad(move |x: &Array| {
        let y = custom_vjp(Evaluates(Mutex::new(one.clone())), std::slice::from_ref(x))
            .map_err(|error| Exception::custom(error.to_string()))?;
        y[0].sum(None)
    });
    assert_eq!(numbers(&gradient(&vector(&[5.0])).expect("a gradient")), [10.0]);
    eval([&kept]).expect("an eval");
    eval([&kept, &kept]).expect("an eval");
    assert_eq!(numbers(&kept), [2.0]);
}

#[test]
fn what_is_dropped_while_a_kernel_computes_it_is_nobody_elses_memory() {
    const COUNT: usize = 1237; // bytes that no other test asks for
    let (held, place) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let x = vector(&[1.0; COUNT]);
    let kernel = Encode { held: Some(Arc::clone(&held)), place: Arc::clone(&place) };
    let results = encode_by(kernel, &x);
    async_eval([&results[0]]).expect("begins");
    drop(results);
    let y = vector(&[5.0; COUNT]);
    held.store(true, Ordering::Release);
    // Behind the kernel, on the same stream.
    eval([&x.square().expect("builds")]).expect("an eval");
    assert_ne!(place.load(Ordering::Acquire), y.as_slice::<f32>().as_ptr().addr());
    assert_eq!(y.as_slice::<f32>(), [5.0; COUNT]);
}

#[test]
fn what_a_compiled_function_captured_of_a_plan_that_has_run_is_there_each_time_and_afterwards() {
    let [one, two] = twice(&Arc::default(), &vector(&[1.0]));
    eval([&one]).expect("an eval");
    let mut program = Program::new(false).expect("memory");
    let mut sum = |args: Vec<Array>| -> Result<Vec<Array>, BoxError> { Ok(vec![args[0].add(&two)?]) };
    for x in [10.0, 20.0] {
        let mut outputs = Vec::new();
        program.call(&[&vector(&[x])], &mut outputs, &mut sum).expect("runs");
        assert_eq!(numbers(&outputs[0]), [x + 3.0]);
    }
    assert_eq!(numbers(&two), [3.0]);
}

#[test]
fn what_a_compiled_function_captured_of_a_plan_that_runs_between_its_calls_is_there_as_well() {
    let [one, two] = twice(&Arc::default(), &vector(&[1.0]));
    let mut program = Program::new(false).expect("memory");
    let mut sum = |args: Vec<Array>| -> Result<Vec<Array>, BoxError> { Ok(vec![args[0].add(&two)?]) };
    for x in [10.0, 20.0, 30.0] {
        let mut outputs = Vec::new();
        program.call(&[&vector(&[x])], &mut outputs, &mut sum).expect("runs");
        assert_eq!(numbers(&outputs[0]), [x + 3.0]);
        eval([&one]).expect("an eval");
    }
    assert_eq!(numbers(&two), [3.0]);
}

/// A replay leaves an input that is there out of the plan's node.
#[test]
fn plans_of_one_program_that_read_other_arrays_are_others() {
    let mut program = Program::new(false).expect("memory");
    let mut made_of = |arrays: [&Array; 2]| {
        let mut results = Vec::new();
        for x in arrays {
            program.call(&[x], &mut results, &mut two_more).expect("runs");
        }
        let differ = difference(&results[..1], &[], &results[1..], &[]).expect("compares").is_some();
        let (left, _) = cse(&results, &[]).expect("compares");
        assert_eq!(array_id(&left[0]) != array_id(&left[1]), differ);
        (differ, left)
    };
    let (x, y) = (vector(&[1.0]), vector(&[10.0]));
    let (differ, left) = made_of([&x, &y]);
    assert!(differ);
    assert_eq!([&left[0], &left[1]].map(numbers), [[3.0], [12.0]]);
    // While an eval of another test fails, a node has all its inputs.
    assert!((0..1000).any(|_| !made_of([&x, &x]).0 || (thread::sleep(Duration::from_millis(1)), false).1));
}

#[test]
fn results_of_plans_that_have_run_are_told_apart() {
    let mut both =
        |args: Vec<Array>| -> Result<Vec<Array>, BoxError> { Ok(Vec::from(twice(&Arc::default(), &args[0]))) };
    let (mut results, mut program) = (Vec::new(), Program::new(false).expect("memory"));
    for x in [1.0, 10.0] {
        program.call(&[&vector(&[x])], &mut results, &mut both).expect("runs");
    }
    eval([&results[0], &results[2]]).expect("an eval");
    let differ = |a: usize, b: usize| {
        let found = difference(&results[a..=a], &[], &results[b..=b], &[]).expect("compares");
        found.is_some()
    };
    assert_eq!([differ(1, 1), differ(1, 3)], [false, true]);
}

#[test]
fn what_a_plan_knows_it_knows_where_a_compiled_function_makes_it_again() {
    let _turn = turns::of_memory();
    let mut of_large = |args: Vec<Array>| -> Result<Vec<Array>, BoxError> {
        // Too large to be kept by whoever captures what comes of it.
        let large = args[0].add(&args[0])?;
        let (kernel, mut plan) = (Arc::new(Next::default()), PlanBuilder::default());
        let inputs = [&args[1], &large].map(|x| plan.input(Aval::from(x)));
        let outputs = inputs.map(|input| plan.stage(kernel.clone(), &[input]).expect("a stage")[0]);
        Ok(plan.finish(&outputs)?.apply(&[args[1].clone(), large])?)
    };
    let (x, w) = (ops::ones::<f32>(&[1 << 19]).expect("ones"), vector(&[10.0]));
    let (mut results, mut maker) = (Vec::new(), Program::new(false).expect("memory"));
    maker.call(&[&x, &w], &mut results, &mut of_large).expect("runs");
    let mut sum = |args: Vec<Array>| -> Result<Vec<Array>, BoxError> { two_more(vec![args[0].add(&results[0])?]) };
    let mut program = Program::new(false).expect("memory");
    for x in [1.0, 2.0] {
        let mut outputs = Vec::new();
        program.call(&[&vector(&[x])], &mut outputs, &mut sum).expect("runs");
        assert_eq!(numbers(&outputs[0]), [x + 13.0]);
    }
    assert_eq!(numbers(&results[0]), [11.0]);
}
