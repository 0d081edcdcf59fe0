//! The structure of trees: what is part of it, how it compares, how it prints.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use expect_test::expect;
use mlx_rs::Array;
use tacit::tree::{self, Open, TreeDef};
use tacit::{Tree, Value};

use crate::types::{Left, matrix, numbers, vector};

pub(crate) fn a() -> Array {
    vector(&[1.0])
}

/// Arrays of these numbers, one each.
pub(crate) fn leaves(values: &[f32]) -> Vec<Value> {
    values.iter().map(|value| vector(&[*value]).into()).collect()
}

/// The number in an array of one.
pub(crate) fn number(array: &Array) -> f32 {
    numbers(array)[0]
}

pub(crate) fn def(tree: &impl Tree) -> TreeDef {
    tree::structure(tree).expect("has a structure")
}

pub(crate) fn paths(def: &TreeDef) -> Vec<String> {
    def.paths().iter().map(ToString::to_string).collect()
}

pub(crate) fn hash(def: &TreeDef) -> u64 {
    let mut hasher = DefaultHasher::new();
    def.hash(&mut hasher);
    hasher.finish()
}

/// What the first differing place of two trees is, both ways.
pub(crate) fn difference(first: &impl Tree, second: &impl Tree) -> String {
    let (first, second) = (def(first), def(second));
    assert_ne!(first, second);
    assert!(second.difference(&first).is_some(), "a difference has two sides");
    first.difference(&second).expect("they differ").to_string()
}

fn same(first: &impl Tree, second: &impl Tree) {
    let (first, second) = (def(first), def(second));
    assert_eq!(first, second);
    assert_eq!(hash(&first), hash(&second));
    assert_eq!(first.difference(&second), None);
}

#[test]
fn a_list_of_one_and_another_of_one_are_not_a_list_of_two() {
    let first = (vec![vec![a()]], a());
    let second = vec![vec![a(), a()]];
    let third = vec![vec![a()], vec![a()]];
    assert_eq!(def(&first).leaves(), def(&second).leaves());
    assert_eq!(difference(&first, &second), "tuple of 2 -> list of 1 at the root");
    assert_eq!(difference(&second, &third), "list of 1 -> list of 2 at the root");
    assert_eq!(difference(&(vec![a()], a()), &(vec![a(), a()],)), "tuple of 2 -> tuple of 1 at the root");
}

#[test]
fn the_kind_of_a_container_is_part_of_the_structure() {
    assert_eq!(difference(&(a(), a()), &vec![a(), a()]), "tuple of 2 -> list of 2 at the root");
    assert_eq!(difference(&[a(), a()], &vec![a(), a()]), "array of 2 -> list of 2 at the root");
    assert_eq!(difference(&(a(),), &a()), "tuple of 1 -> an array at the root");
    assert_eq!(difference(&vec![(a(),)], &vec![a()]), "tuple of 1 -> an array at `0`");
    assert_eq!(difference(&Vec::<Array>::new(), &()), "list -> tuple at the root");
    same(&Box::new(a()), &a());
}

#[test]
fn leaves_are_no_part_of_the_structure() {
    same(&vec![a(), a()], &vec![matrix(2, 3), matrix(1, 1)]);
    same(&vec![Value::from(a())], &vec![Left::of(&a())]);
}

#[test]
fn keys_are_sorted_in_whatever_order_they_came() {
    let orders = [["b", "a", "c"], ["c", "b", "a"], ["a", "c", "b"]];
    let trees = orders.map(|order| {
        let number = |key: &str| f32::from(key.as_bytes()[0] - b'a');
        order.into_iter().map(|key| (key.to_owned(), vector(&[number(key)]))).collect::<HashMap<_, _>>()
    });
    for tree in &trees {
        let (leaves, def) = tree::flatten(tree, Open::Closed).expect("flattens");
        assert_eq!(paths(&def), ["a", "b", "c"]);
        assert_eq!(
            leaves.iter().map(|leaf| number(leaf.as_dense().expect("dense"))).collect::<Vec<_>>(),
            [0.0, 1.0, 2.0]
        );
        same(tree, &trees[0]);
    }
    let sorted: BTreeMap<String, Array> = trees[1].clone().into_iter().collect();
    same(&sorted, &trees[0]);
    let other = HashMap::from([("a".to_owned(), a()), ("b".to_owned(), a()), ("d".to_owned(), a())]);
    assert_eq!(difference(&trees[0], &other), "map with the keys a, b, c -> map with the keys a, b, d at the root");
}

#[test]
fn a_map_comes_back_by_its_keys() {
    let tree = HashMap::from([("x".to_owned(), vector(&[1.0])), ("a".to_owned(), vector(&[2.0]))]);
    let (leaves, def) = tree::flatten(&tree, Open::Closed).expect("flattens");
    let back: HashMap<String, Array> = tree::unflatten(&def, leaves.clone()).expect("fits");
    assert_eq!((number(&back["x"]), number(&back["a"])), (1.0, 2.0));
    let back: BTreeMap<Box<str>, Array> = tree::unflatten(&def, leaves).expect("fits");
    assert_eq!((number(&back["x"]), number(&back["a"])), (1.0, 2.0));
}

#[test]
fn nothing_and_something_differ() {
    assert_eq!(difference(&None::<Array>, &Some(a())), "None -> Some at the root");
    assert_eq!(difference(&(None::<Array>, a()), &(Some(a()), a())), "None -> Some at `0`");
    let nested: [Option<Option<()>>; 3] = [None, Some(None), Some(Some(()))];
    for (i, first) in nested.iter().enumerate() {
        for second in &nested[..i] {
            assert_ne!(def(first), def(second));
        }
        let back: Option<Option<()>> = tree::unflatten(&def(first), Vec::new()).expect("fits");
        assert_eq!(&back, first);
    }
    let printed = nested.map(|tree| def(&tree).to_string());
    assert_eq!(printed, ["None", "None", "()"]);
}

#[test]
fn a_tree_without_leaves_is_one() {
    let empty = ((), Vec::<Array>::new(), BTreeMap::<String, Array>::new());
    let (leaves, def) = tree::flatten(&empty, Open::Fully).expect("flattens");
    assert!(leaves.is_empty() && def.leaves() == 0 && def.paths().is_empty());
    let ((), list, map): ((), Vec<Array>, BTreeMap<String, Array>) = tree::unflatten(&def, leaves).expect("fits");
    assert!(list.is_empty() && map.is_empty());
}

#[test]
fn paths_join_the_labels() {
    let tree = (vec![a(), a()], Some(BTreeMap::from([("w".to_owned(), [a()])])), a());
    assert_eq!(paths(&def(&tree)), ["0.0", "0.1", "1.w.0", "2"]);
    assert_eq!(paths(&def(&a())), [""]);
}

#[test]
fn a_structure_prints_as_the_tree() {
    let tree = (vec![a(), a()], Some(BTreeMap::from([("w".to_owned(), [a()])])), None::<Array>, (a(),), ());
    let def = def(&tree);
    expect!["([*, *], {w: [*]}, None, (*), ())"].assert_eq(&def.to_string());
    assert_eq!(format!("{def:?}"), format!("TreeDef({def})"));
}
