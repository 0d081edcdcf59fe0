//! The tape: which nodes, in which order, on which slots.

use mlx_rs::error::Exception;
use mlx_rs::transforms::grad;
use mlx_rs::{Array, ops};
use tacit_bridge::{Aval, NameId, Scope, Tape, array_id};

use crate::arrays::{matrix, names, numbers, operands, placeholders, results, vector};

#[test]
fn placeholders_have_the_first_slots_and_results_follow_in_order() {
    let scope = Scope::new().expect("memory");
    let [x, y] = placeholders(&scope, [&[2], &[2]]);
    let sum = x.add(&y).expect("builds");
    let out = sum.multiply(&x).expect("builds").exp().expect("builds");
    let tape = Tape::walk(std::slice::from_ref(&out), &[x, y], &[]).expect("memory");
    assert_eq!(names(&tape), ["Add", "Multiply", "Exp"]);
    assert_eq!(
        (0..3).map(|node| operands(&tape, node)).collect::<Vec<_>>(),
        [vec![Some(0), Some(1)], vec![Some(2), Some(0)], vec![Some(3)],]
    );
    assert_eq!((0..3).flat_map(|node| results(&tape, node)).collect::<Vec<_>>(), [2, 3, 4]);
    assert_eq!(tape.outputs().map(|slot| slot.map(tacit_bridge::Slot::index)).collect::<Vec<_>>(), [Some(4)]);
    assert_eq!((tape.len(), tape.slots(), tape.is_empty()), (3, 5, false));
    assert_eq!(tape.name(0), NameId::intern("Add").expect("a name"));
}

#[test]
fn nodes_on_constants_are_not_on_the_tape() {
    let scope = Scope::new().expect("memory");
    let [x] = placeholders(&scope, [&[2]]);
    let constant = vector(&[1.0, 2.0]).exp().expect("builds");
    let out = x.add(&constant).expect("builds");
    let aside = constant.negative().expect("builds");
    let tape = Tape::walk(&[out, aside, constant.clone()], &[x], &[]).expect("memory");
    assert_eq!(names(&tape), ["Add"]);
    assert_eq!(operands(&tape, 0), [Some(0), None]);
    assert_eq!(array_id(&tape.operand(0, 1).expect("is there")), array_id(&constant));
    assert_eq!(tape.outputs().map(|slot| slot.is_some()).collect::<Vec<_>>(), [true, false, false]);
}

#[test]
fn a_node_with_several_results_is_walked_once_with_all_siblings() {
    let scope = Scope::new().expect("memory");
    let [x] = placeholders(&scope, [&[2, 6]]);
    let parts = ops::split_equal(&x, 3, 1).expect("builds");
    let out = parts[2].add(&parts[0]).expect("builds");
    let tape = Tape::walk(&[out, parts[1].clone()], &[x], &[]).expect("memory");
    assert_eq!(names(&tape), ["Split", "Add"]);
    assert_eq!(results(&tape, 0), [1, 2, 3]);
    assert_eq!(operands(&tape, 1), [Some(3), Some(1)]);
    assert_eq!(tape.outputs().map(|slot| slot.map(tacit_bridge::Slot::index)).collect::<Vec<_>>(), [Some(4), Some(2)]);
    for (position, part) in parts.iter().enumerate() {
        assert_eq!(array_id(&tape.result(0, position).expect("is there")), array_id(part));
    }
}

#[test]
fn a_placeholder_may_be_an_output_and_an_output_may_repeat() {
    let scope = Scope::new().expect("memory");
    let [x, unused] = placeholders(&scope, [&[2], &[3]]);
    let y = x.exp().expect("builds");
    let tape = Tape::walk(&[x.clone(), y.clone(), x.clone(), y], &[unused, x], &[]).expect("memory");
    assert_eq!(names(&tape), ["Exp"]);
    let outputs: Vec<_> = tape.outputs().map(|slot| slot.map(tacit_bridge::Slot::index)).collect();
    assert_eq!(outputs, [Some(1), Some(2), Some(1), Some(2)]);
}

#[test]
fn what_no_output_needs_is_not_walked() {
    let scope = Scope::new().expect("memory");
    let [x] = placeholders(&scope, [&[2]]);
    let _aside = x.exp().expect("builds");
    let tape = Tape::walk(&[x.negative().expect("builds")], &[x], &[]).expect("memory");
    assert_eq!(names(&tape), ["Negative"]);
    assert!(Tape::walk(&[], &[], &[]).expect("memory").is_empty());
}

#[test]
fn operands_and_results_are_what_was_recorded() {
    let scope = Scope::new().expect("memory");
    let [x] = placeholders(&scope, [&[4, 2]]);
    let out = matrix(3, 4).matmul(&x).expect("builds");
    let tape = Tape::walk(&[out], &[x], &[]).expect("memory");
    let aval = |array| Aval::from(&array).to_string();
    assert_eq!(aval(tape.operand(0, 0).expect("is there")), "f32[3,4]");
    assert_eq!(aval(tape.operand(0, 1).expect("is there")), "f32[4,2]");
    assert_eq!(aval(tape.result(0, 0).expect("is there")), "f32[3,2]");
    assert!(tape.operand(0, 2).is_err() && tape.result(0, 1).is_err() && tape.result(0, 7).is_err());
}

#[test]
fn a_hundred_thousand_nodes_are_walked_and_freed_without_recursion() {
    let scope = Scope::new().expect("memory");
    let [x] = placeholders(&scope, [&[1]]);
    let out = (0..100_000).try_fold(x.clone(), |sum, _| sum.add(&x)).expect("builds");
    let tape = Tape::walk(&[out], &[x], &[]).expect("memory");
    assert_eq!(tape.len(), 100_000);
    assert_eq!(operands(&tape, 99_999), [Some(99_999), Some(0)]);
    drop(tape);
    assert_eq!(scope.live(), 0);
}

#[test]
fn names_that_are_built_at_run_time_are_told_apart() {
    let scope = Scope::new().expect("memory");
    let [x] = placeholders(&scope, [&[4]]);
    let views: Vec<_> = [mlx_rs::Dtype::Int32, mlx_rs::Dtype::Uint8, mlx_rs::Dtype::Uint16]
        .map(|dtype| x.view_dtype(dtype).expect("builds"))
        .into();
    let tape = Tape::walk(&views, &[x], &[]).expect("memory");
    assert_eq!(names(&tape), ["View int32", "View uint8", "View uint16"]);
}

#[test]
fn what_is_evaluated_is_where_a_walk_ends() {
    // A gradient keeps the graph of what is evaluated inside it.
    let walked = std::cell::RefCell::new(Vec::new());
    let mut gradient = grad(|x: &Array| -> Result<Array, Exception> {
        let y = x.exp()?;
        y.eval()?;
        let scope = Scope::new().expect("memory");
        let [placeholder] = placeholders(&scope, [&[2]]);
        let out = y.add(&placeholder)?.multiply(&y)?;
        for boundaries in [&[][..], std::slice::from_ref(&y)] {
            let tape = Tape::walk(std::slice::from_ref(&out), std::slice::from_ref(&placeholder), boundaries);
            walked.borrow_mut().push(tape.expect("memory").len());
        }
        y.sum(None)
    });
    let found = gradient(&vector(&[0.0, 0.0])).expect("a gradient");
    assert_eq!((numbers(&found), walked.borrow().as_slice()), (vec![1.0, 1.0], &[2, 2][..]));
}
