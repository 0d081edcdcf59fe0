//! Rewiring recorded nodes in place.

use mlx_rs::ops;
use tacit_bridge::{Scope, Tape};

use crate::arrays::{numbers, placeholders, vector};

#[test]
fn every_edge_to_a_placeholder_is_replaced_in_place() {
    let scope = Scope::new().expect("memory");
    let [x, y] = placeholders(&scope, [&[2], &[2]]);
    let out = x.add(&y).expect("builds").multiply(&x).expect("builds");
    let mut tape = Tape::walk(std::slice::from_ref(&out), &[x, y], &[]).expect("memory");
    let (two, three) = (tape.keep(vector(&[2.0, 20.0])), tape.keep(vector(&[3.0, 30.0])));
    tape.plan(0, 0, two);
    tape.plan(0, 1, three);
    tape.plan(1, 1, two);
    tape.rewire().expect("the edges are there");
    assert_eq!(scope.live(), 0);
    drop(tape);
    assert_eq!(numbers(&out), [10.0, 1000.0]);
}

#[test]
fn all_siblings_of_a_node_are_rewired() {
    let scope = Scope::new().expect("memory");
    let [x] = placeholders(&scope, [&[6]]);
    let parts = ops::split_equal(&x, 3, 0).expect("builds");
    let mut tape = Tape::walk(&parts[1..2], &[x], &[]).expect("memory");
    let value = tape.keep(vector(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    tape.plan(0, 0, value);
    tape.rewire().expect("the edge is there");
    drop(tape);
    assert_eq!(scope.live(), 0);
    let all: Vec<_> = parts.iter().map(numbers).collect();
    assert_eq!(all, [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]);
}

#[test]
fn an_edge_that_is_not_there_is_an_error() {
    let scope = Scope::new().expect("memory");
    let [x] = placeholders(&scope, [&[2]]);
    let mut tape = Tape::walk(&[x.exp().expect("builds")], &[x], &[]).expect("memory");
    let value = tape.keep(vector(&[1.0, 2.0]));
    tape.plan(0, 3, value);
    assert!(tape.rewire().is_err());
    assert!(!tape.has_plan(), "a plan that failed is not tried again");
    tape.plan(9, 0, value);
    assert!(tape.rewire().is_err());
    tape.plan(0, 0, value);
    tape.rewire().expect("this edge is there");
}

#[test]
fn a_tape_may_be_rewired_again_and_its_nodes_stay() {
    let scope = Scope::new().expect("memory");
    let [x] = placeholders(&scope, [&[2]]);
    let out = x.negative().expect("builds").negative().expect("builds");
    let mut tape = Tape::walk(std::slice::from_ref(&out), &[x], &[]).expect("memory");
    for numbers in [[1.0, 2.0], [3.0, 4.0]] {
        let value = tape.keep(vector(&numbers));
        tape.plan(0, 0, value);
        tape.rewire().expect("the edge is there");
    }
    assert_eq!(tape.operand(0, 0).expect("the node is there").shape(), [2]);
    drop(tape);
    assert_eq!(out.as_slice::<f32>(), [3.0, 4.0]);
}

#[test]
fn a_walk_does_not_go_beyond_its_boundaries() {
    let scope = Scope::new().expect("memory");
    let [x] = placeholders(&scope, [&[2]]);
    let before = x.exp().expect("builds");
    let out = before.negative().expect("builds");
    let walked = |boundaries: &[_]| {
        Tape::walk(std::slice::from_ref(&out), std::slice::from_ref(&x), boundaries).expect("memory").len()
    };
    assert_eq!((walked(&[]), walked(std::slice::from_ref(&before))), (2, 0));
}

#[test]
fn a_result_that_is_kept_becomes_what_supersedes_it() {
    let scope = Scope::new().expect("memory");
    let [x] = placeholders(&scope, [&[2]]);
    let kept = x.exp().expect("builds");
    let out = kept.negative().expect("builds");
    let mut tape = Tape::walk(std::slice::from_ref(&out), &[x], &[]).expect("memory");
    tape.supersede([(0, [Some(&vector(&[1.0, 2.0]))])]).expect("the node is there");
    assert_eq!(scope.live(), 0, "nothing holds the placeholder any more");
    drop(tape);
    // Also by the edges that nobody has rewired.
    assert_eq!([numbers(&kept), numbers(&out)], [[1.0, 2.0], [-1.0, -2.0]]);
}

#[test]
fn all_siblings_of_a_node_are_superseded() {
    let scope = Scope::new().expect("memory");
    let [x] = placeholders(&scope, [&[6]]);
    let parts = ops::split_equal(&x, 3, 0).expect("builds");
    let mut tape = Tape::walk(&parts[1..2], &[x], &[]).expect("memory");
    let values: Vec<_> = [1.0, 3.0, 5.0].map(|first| vector(&[first, first + 1.0])).into();
    tape.supersede([(0, values.iter().map(Some))]).expect("the node is there");
    drop(tape);
    assert_eq!(scope.live(), 0);
    let all: Vec<_> = parts.iter().map(numbers).collect();
    assert_eq!(all, [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]);
}

#[test]
fn a_node_or_a_result_that_is_not_there_is_not_superseded() {
    let scope = Scope::new().expect("memory");
    let [x] = placeholders(&scope, [&[2]]);
    let out = x.exp().expect("builds");
    let mut tape = Tape::walk(std::slice::from_ref(&out), &[x], &[]).expect("memory");
    let value = vector(&[1.0, 2.0]);
    assert!(tape.supersede([(9, [Some(&value)])]).is_err());
    assert!(tape.supersede([(0, [Some(&value), Some(&value)])]).is_err());
}

#[test]
fn a_node_that_nobody_holds_lets_go_of_what_it_takes() {
    let scope = Scope::new().expect("memory");
    let [x] = placeholders(&scope, [&[2]]);
    let kept = x.exp().expect("builds");
    let mut out = kept.negative().expect("builds");
    let mut tape = Tape::walk(std::slice::from_ref(&out), &[x], &[]).expect("memory");
    out = vector(&[0.0]);
    let value = vector(&[1.0, 2.0]);
    tape.supersede([(0, [Some(&value)]), (1, [None])]).expect("the nodes are there");
    assert_eq!(scope.live(), 0, "nothing holds the placeholder any more");
    assert!(tape.operand(1, 0).is_err(), "the second node takes nothing");
    drop((tape, out));
    assert_eq!(numbers(&kept), [1.0, 2.0]);
}

#[test]
fn a_held_node_with_nothing_to_give_stays() {
    let scope = Scope::new().expect("memory");
    let [x] = placeholders(&scope, [&[2]]);
    let out = x.exp().expect("builds");
    let mut tape = Tape::walk(std::slice::from_ref(&out), &[x], &[]).expect("memory");
    tape.supersede([(0, [None])]).expect("the node is there");
    assert_eq!(scope.live(), 1);
    assert_eq!(tape.operand(0, 0).expect("it takes the placeholder").shape(), [2]);
}
